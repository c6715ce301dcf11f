"""`tripower bench simulate`: many seeds, both cores, and the one command that repeats a failure."""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
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
    """All reports, in the order of their seeds."""
    chunks = [range(start, min(start + CHUNK, first + seeds)) for start in range(first, first + seeds, CHUNK)]
    if processes <= 1 or len(chunks) == 1:
        for chunk in chunks:
            yield from run_seeds(chunk)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for reports in pool.map(run_seeds, chunks):
            yield from reports


def main(arguments: Sequence[str]) -> int:
    """Run, print a summary, return 1 when an invariant was broken."""
    parser = argparse.ArgumentParser(prog="tripower bench simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many scenarios to run (default 1000)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (default 0)")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: all cores)"
    )
    parser.add_argument("--trace", action="store_true", help="print every event of the runs")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    options = parser.parse_args(arguments)
    ends = dict.fromkeys(ENDS, 0)
    digest = hashlib.sha256()
    failures: list[Report] = []
    crashes = 0
    for report in run_parallel(options.first, options.seeds, options.processes):
        digest.update(report.trace_hash.encode())
        crashes += report.crashes
        for end, count in report.ends.items():
            ends[end] += count
        if options.trace:
            print("\n".join(report.trace))
        if report.violations:
            failures.append(report)
            print("\n".join(report.violations), file=sys.stderr)
            print(f"repeat with: {repeat_command(report.seed)}", file=sys.stderr)
    summary = {
        "bench": "simulate",
        "seeds": options.seeds,
        "ends": ends,
        "crashes": crashes,
        "failures": [report.seed for report in failures],
        "trace": digest.hexdigest(),
    }
    print(json.dumps(summary) if options.json else _sentence(summary))
    return 1 if failures else 0


def _sentence(summary: dict[str, object]) -> str:
    return (
        f"{summary['seeds']} seeds, {summary['crashes']} injected crashes, ends {summary['ends']}, "
        f"{len(list(summary['failures']))} failures, trace {str(summary['trace'])[:16]}"  # type: ignore[call-overload]
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
