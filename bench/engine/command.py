"""`tripower bench engine`: the engine without HTTP and actors, against what the machine allows.

How long a step takes at several batch sizes; how much of the memory bandwidth it uses at one row and of the multiply-adds at many; how
large and how slow to load it is beside llama.cpp; and what a busy neighbour does to it. Engines run in processes of their own, and
what a cell compares alternates in short blocks. See the modules beside this one for what each part measures.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tripower.bench.engine.loads import load_cells, memory_cells
from tripower.bench.engine.neighbours import neighbour_cells
from tripower.bench.engine.steps import step_cells
from tripower.bench.host import describe_host
from tripower.bench.measured_model import MeasuredModel, add_model_options, find_measured_model
from tripower.bench.paired import Progress
from tripower.bench.peers.registry import PEERS, check_peer
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, add_report_options, finish, make_report
from tripower.runtime.host import read_host_limits

PARTS = ("steps", "memory", "load", "neighbours")


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status.

    Raises `InvalidConfiguration` when llama.cpp is missing for the loads, `Unavailable` when a process fails, and what a pull raises.
    """
    parser = argparse.ArgumentParser(
        prog="tripower bench engine",
        description="Steps against the limits of the machine, memory, loads beside llama.cpp, and steps beside a busy neighbour.",
    )
    add_model_options(parser)
    parser.add_argument("--only", choices=PARTS, action="append", help="leave out the other parts; may be given several times")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the engine (the cores of this process)")
    add_report_options(parser)
    options = parser.parse_args(argv)
    parts = options.only or PARTS
    if "load" in parts:
        check_peer("llamacpp")
    threads = options.threads or read_host_limits().cores
    host = describe_host(PEERS["llamacpp"].module)
    with progress_line() as progress:
        model = find_measured_model(options.model, options.encoding, progress)
        cells = measure(model, parts, threads, quick=options.quick, progress=progress)
    host |= model.described() | {"threads": threads}
    return finish(make_report("engine", host, cells), options)


def measure(model: MeasuredModel, parts: Sequence[str], threads: int, *, quick: bool, progress: Progress) -> list[Cell]:
    """The cells of these parts. Blocks, for minutes."""
    cells: list[Cell] = []
    if "steps" in parts:
        cells += step_cells(model, threads, rounds=1 if quick else 9, steps=2 if quick else 24, progress=progress)
    if "memory" in parts:
        cells += memory_cells(model, threads, progress)
    if "load" in parts:
        cells += load_cells(model, threads, rounds=1 if quick else 4, progress=progress)
    if "neighbours" in parts:
        cells += neighbour_cells(model, threads, rounds=1 if quick else 8, steps=2 if quick else 48, progress=progress)
    return cells
