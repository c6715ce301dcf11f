"""`tripower bench overload`: the service under hostile load.

Four parts, each with a server of its own in a child process and clients in this one: ten times the capacity with mixed keys, a noisy
key beside quiet ones, a crowd of idle connections and slow readers, and streams as fast as they can be written. What is compared
alternates in blocks on one running server.

Where there are several cores, one is left to the service and to the clients, which would otherwise take their time from the engine and be
measured as its loss.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import attrs
import trio

from tripower.api.plan import is_toy
from tripower.bench.host import describe_host
from tripower.bench.measured_model import add_model_options, find_measured_model
from tripower.bench.overload.crowd import CrowdPlan, crowd_cells
from tripower.bench.overload.events import EVENTS, event_cells
from tripower.bench.overload.fairness import fairness_cells
from tripower.bench.overload.load import Plan, load_cells
from tripower.bench.overload.service import open_service
from tripower.bench.paired import Progress
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, add_report_options, finish, make_report
from tripower.runtime.host import read_host_limits

PARTS = ("load", "fairness", "crowd", "events")
TOY = "toy:20000"
"""What `--model toy` stands for: steps that take some time, so that there is a capacity to exceed."""
BLOCKS = 9
"""Blocks under excess in all rounds together: a round has two or one of them, in turn."""
ROUNDS = 6
FAIRNESS_ROUNDS = CROWD_ROUNDS = 4
"""Of the crowd each has one once or twice, whose answers take some twenty seconds to generate."""
FEW_KEPT = ("scheduler.prefix_entries=16",)
"""So that the states of prompts that are kept are all there before the first block, and what grows then is a leak."""
WARM_SECONDS_MIN = 5.0
TOKENS = (48, 80)
QUICK = Plan(seats=0, block_seconds=0.5, rounds=1, warm_seconds=0.5, tokens=(4, 8))


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status. Raises `Unavailable` when a server does not start, and what pulling the model raises."""
    options = _parser().parse_args(argv)
    with progress_line() as progress:
        source, described = options.model, {"model": options.model}
        if is_toy(source):
            source = TOY if source == "toy" else source
        else:
            file = find_measured_model(source, options.encoding, progress)
            source, described = str(file.path) if options.encoding else source, file.described()
        threads = options.threads or max(1, read_host_limits().cores - 1)
        host = describe_host() | described | {"threads": threads, "seats": options.seats}
        cells = trio.run(measure, source, options, threads, progress)
    return finish(make_report("overload", host, cells), options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tripower bench overload",
        description="Ten times the capacity, a noisy key, a crowd of connections, streams as fast as they go.",
    )
    add_model_options(parser)
    parser.add_argument(
        "--seconds", type=float, default=300.0, metavar="N", help="how long more than can be served is sent (300)"
    )
    parser.add_argument("--seats", type=int, default=8, metavar="N", help="members of the batch (8)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the engine (the cores of this process but one)")
    parser.add_argument("--only", choices=PARTS, action="append", help="leave out the other parts; may be given several times")
    add_report_options(parser)
    return parser


def full_plan(seconds: float) -> Plan:
    """Blocks that are under excess for so long, all together; the seats are filled in."""
    block_seconds = seconds / BLOCKS
    warm_seconds = max(WARM_SECONDS_MIN, block_seconds / 2)
    return Plan(seats=0, block_seconds=block_seconds, rounds=ROUNDS, warm_seconds=warm_seconds, tokens=TOKENS)


async def measure(source: str, options: argparse.Namespace, threads: int, progress: Progress) -> list[Cell]:
    """The cells of the parts that are wanted. Blocks: about three times as long as the load lasts."""
    parts, quick, seats = options.only or PARTS, options.quick, options.seats
    plan = attrs.evolve(QUICK if quick else full_plan(options.seconds), seats=seats)
    cells: list[Cell] = []
    if "load" in parts:
        progress("overload: loading the model")
        async with open_service(source, seats=seats, threads=threads, settings=FEW_KEPT) as service:
            cells += await load_cells(service, plan, progress)
    if "fairness" in parts:
        progress("fairness: loading the model")
        async with open_service(source, seats=seats, threads=threads) as service:
            fewer = attrs.evolve(plan, rounds=min(plan.rounds, FAIRNESS_ROUNDS))
            cells += await fairness_cells(service, fewer, progress)
    if "crowd" in parts:
        few = CrowdPlan(idle=20, slow=4, tokens=8, rounds=1)
        many = CrowdPlan(idle=1000, slow=200, tokens=256, rounds=CROWD_ROUNDS)
        cells += await crowd_cells(source, few if quick else many, threads, progress)
    if "events" in parts:
        cells += await event_cells(rounds=1 if quick else ROUNDS, events=32 if quick else EVENTS, progress=progress)
    return cells
