"""`tripower bench overhead`: what the runtime adds to whatever engine it runs.

Kernel, step and HTTP, each against the least that would do the same; with `--model`, the step of a real engine as well. See the modules
beside this one for what a cell measures.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

import trio

from tripower.bench.host import describe_host
from tripower.bench.measured_model import add_model_options, find_measured_model
from tripower.bench.overhead.http import http_cells
from tripower.bench.overhead.kernel import kernel_cells
from tripower.bench.overhead.model_step import model_step_cells
from tripower.bench.overhead.step import step_cells
from tripower.bench.paired import Progress
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, add_report_options, finish, make_report
from tripower.runtime.host import read_host_limits

PARTS = ("kernel", "step", "http")


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status. Raises `Unavailable` when a server does not start."""
    parser = argparse.ArgumentParser(
        prog="tripower bench overhead",
        description="What the runtime adds: asks and one-way messages, a step's engine-free share, HTTP with an engine that takes no time.",
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="leave out the other parts; may be given several times")
    add_model_options(parser, default=None)
    parser.add_argument("--threads", type=int, metavar="N", help="threads of that model's engine (the cores of this process)")
    add_report_options(parser)
    options = parser.parse_args(argv)
    host = describe_host("pykka", "starlette")
    with progress_line() as progress:
        cells = measure(options.only or PARTS, quick=options.quick, progress=progress)
        if options.model is not None:
            model = find_measured_model(options.model, options.encoding, progress)
            threads = options.threads or read_host_limits().cores
            host |= model.described() | {"threads": threads}
            cells += trio.run(functools.partial(model_step_cells, model, threads, quick=options.quick, progress=progress))
    return finish(make_report("overhead", host, cells), options)


def measure(parts: Sequence[str], *, quick: bool, progress: Progress) -> list[Cell]:
    """The cells of these parts. Blocks: minutes, or seconds when `quick`."""
    cells: list[Cell] = []
    if "kernel" in parts:
        cells += kernel_cells(rounds=1 if quick else 10, count=200 if quick else 20_000, progress=progress)
    if "step" in parts:
        cells += step_cells(rounds=1 if quick else 10, steps=16 if quick else 250, progress=progress)
    if "http" in parts:
        rounds, requests = (1, 16) if quick else (10, 800)

        async def http() -> list[Cell]:
            return await http_cells(rounds=rounds, requests=requests, progress=progress)

        cells += trio.run(http)
    return cells
