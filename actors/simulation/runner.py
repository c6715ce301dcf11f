"""Many seeds, on all cores, and the one command that repeats a failure."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from tripower.actors.simulation.harness import ENDS, Report, simulate

CHUNK = 50


def repeat_command(seed: int) -> str:
    """What to type to see one run again."""
    return f"tripower bench simulate --first {seed} --seeds 1 --trace"


def run_seeds(seeds: Sequence[int]) -> list[Report]:
    """Run them one after the other. A run that raises is a violation too."""
    reports = []
    for seed in seeds:
        try:
            reports.append(simulate(seed))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            reports.append(Report(seed, dict.fromkeys(ENDS, 0), [], [f"raised {error!r}"]))
    return reports


def run_parallel(first: int, seeds: int, processes: int) -> Iterator[Report]:
    """All reports, in the order of their seeds. Blocks."""
    chunks = [range(start, min(start + CHUNK, first + seeds)) for start in range(first, first + seeds, CHUNK)]
    if processes <= 1 or len(chunks) == 1:
        for chunk in chunks:
            yield from run_seeds(chunk)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for reports in pool.map(run_seeds, chunks):
            yield from reports
