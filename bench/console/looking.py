"""What it takes to look at a server with a thousand requests: until the answer is there, and of the server's loop at once."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import trio

from tripower.api.console.client import ConsoleClient
from tripower.bench.console.crowd import raise_descriptor_limit, standing_crowd
from tripower.bench.console.watched import forget_places, install_holds, longest_holds, timed_call, watched_server
from tripower.bench.paired import Progress, percentile
from tripower.bench.schema import Cell, Target, single_cell

ANSWER_MS = Target("ours", "<=", 20.0)
HOLD_MS = Target("ours", "<=", 2.0)
FIRST_TREE = "a first tree"
LOOKS = {"ps": ANSWER_MS, "tree": ANSWER_MS, FIRST_TREE: None, "requests": None, "overview": None}
"""What one answer may take. `requests` writes a line for each, and `overview` compares two moments: only their holds are bounded.

A tree remembers where parked tasks are, so one that nobody has looked at before is told apart.
"""
STEP_MICROSECONDS = 50_000
SEATS = 16
PAUSE_SECONDS = 0.05
"""Between two looks."""


async def looking_cells(*, requests: int, looks: int, progress: Progress) -> list[Cell]:
    """Both figures of each verb. Blocks for about a minute. Raises `Unavailable`."""
    raise_descriptor_limit(requests)
    progress(f"{requests} requests arrive")
    settings = (f"scheduler.waiting={requests}", f"scheduler.batch_members={SEATS}")
    cells = list[Cell]()
    async with (
        watched_server(f"toy:{STEP_MICROSECONDS}", *settings) as watched,
        standing_crowd(watched, requests),
        watched.attached() as console,
    ):
        await install_holds(console)
        for what in LOOKS:
            progress(f"{requests} requests: {what}")
            cells += await _look(console, what, requests, looks)
    return cells


async def _look(console: ConsoleClient, what: str, requests: int, looks: int) -> Sequence[Cell]:
    verb = "tree" if what == FIRST_TREE else what
    await console.call(verb)  # the first one imports
    await longest_holds(console)
    took, holds, others = list[float](), list[float](), list[float]()
    for _ in range(looks):
        if what == FIRST_TREE:
            await forget_places(console)
            await longest_holds(console)
        milliseconds, _answer = await timed_call(console, verb)
        hold, other = await longest_holds(console)
        took.append(milliseconds)
        holds.append(hold)
        others.append(other)
        await trio.sleep(PAUSE_SECONDS)
    spread = f"{looks} looks, 95 of 100 within {percentile(took, 0.95):.3g} ms; {SEATS} requests run and the others wait"
    rest = f"processor time of one step at most; median of the looks {statistics.median(holds):.3g}; others' longest {max(others):.3g}"
    return [
        single_cell(f"{what} of {requests} requests", statistics.median(took), unit="ms", target=LOOKS[what], note=spread),
        single_cell(f"{what}, longest hold of the loop", max(holds), unit="ms", target=HOLD_MS, note=rest),
    ]
