"""`tripower bench console`: what it costs to be able to look inside, and how soon one sees something.

Four parts: looking at a server with a thousand requests; the recorder, on against off; attaching while the device is busy; the weight
of the web page. See the modules beside this one for what a cell measures.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import trio

from tripower.api.plan import is_toy
from tripower.bench.console.attaching import PROMPT_TOKENS, attaching_cells
from tripower.bench.console.looking import looking_cells
from tripower.bench.console.page import page_cells
from tripower.bench.console.recording import recording_cells
from tripower.bench.host import describe_host
from tripower.bench.measured_model import add_model_options, find_measured_model
from tripower.bench.paired import Progress
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, add_report_options, finish, make_report

PARTS = ("looking", "recording", "attaching", "page")
REQUESTS = 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status. Raises `Unavailable` when a server does not start, and what a pull raises. Blocks for minutes."""
    parser = argparse.ArgumentParser(
        prog="tripower bench console", description="What the console, the recorder and the web page cost."
    )
    add_model_options(parser)
    parser.add_argument("--only", choices=PARTS, action="append", help="leave out the other parts; may be given several times")
    add_report_options(parser)
    options = parser.parse_args(argv)
    parts = options.only or PARTS
    host = describe_host()
    with progress_line() as progress:
        model = options.model
        if "attaching" in parts and not is_toy(model):
            file = find_measured_model(model, options.encoding, progress)
            model, host = str(file.path), host | file.described()
        cells = measure(parts, model, quick=options.quick, progress=progress)
    return finish(make_report("console", host, cells), options)


def measure(parts: Sequence[str], model: str, *, quick: bool, progress: Progress) -> list[Cell]:
    """The cells of these parts. Blocks."""
    cells: list[Cell] = []
    if "looking" in parts:
        requests, looks = (20, 2) if quick else (REQUESTS, 40)

        async def look() -> list[Cell]:
            return await looking_cells(requests=requests, looks=looks, progress=progress)

        cells += trio.run(look)
    if "recording" in parts:
        cells += recording_cells(
            rounds=1 if quick else 12, asks=1 if quick else 10, steps=16 if quick else 250, progress=progress
        )
    if "attaching" in parts:

        async def attach() -> list[Cell]:
            prompt, answer = (1000, 50) if quick else (PROMPT_TOKENS, 1)
            return await attaching_cells(model, prompt_tokens=prompt, answer_tokens=answer, progress=progress)

        cells += trio.run(attach)
    if "page" in parts:
        progress("the page")
        cells += trio.run(page_cells)
    return cells
