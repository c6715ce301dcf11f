"""`tripower bench simulate`: the whole runtime on virtual time, one scenario of requests and faults for each seed.

A broken invariant is printed with the one command that repeats its run, and is the only thing here that fails a command. The hash of
all traces says whether two machines, or two versions, ran the very same schedules.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence

from tripower.actors.simulation.harness import ENDS, Report
from tripower.actors.simulation.runner import repeat_command, run_parallel
from tripower.bench.host import describe_host
from tripower.bench.progress import progress_line
from tripower.bench.schema import Target, add_report_options, finish, make_report, single_cell

EXIT_BROKEN = 1
SEEDS, SEEDS_QUICK = 1000, 50


class Totals:
    """What all runs did together."""

    def __init__(self) -> None:
        self.ends = dict.fromkeys(ENDS, 0)
        self.crashes = 0
        self.broken: list[int] = []
        self._digest = hashlib.sha256()

    def add(self, report: Report) -> None:
        self._digest.update(report.trace_hash.encode())
        self.crashes += report.crashes
        for end, count in report.ends.items():
            self.ends[end] += count
        if report.violations:
            self.broken.append(report.seed)

    @property
    def trace(self) -> str:
        return self._digest.hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the seeds; 1 when an invariant was broken."""
    parser = argparse.ArgumentParser(prog="tripower bench simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, metavar="N", help=f"how many scenarios to run (default {SEEDS})")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (default 0)")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: all cores)"
    )
    parser.add_argument("--trace", action="store_true", help="print every event of the runs")
    add_report_options(parser)
    options = parser.parse_args(argv)
    seeds = options.seeds or (SEEDS_QUICK if options.quick else SEEDS)
    totals = Totals()
    with progress_line() as progress:
        for done, report in enumerate(run_parallel(options.first, seeds, options.processes)):
            totals.add(report)
            progress(f"{done + 1} of {seeds} seeds")
            _show(report, trace=options.trace)
    cells = [
        single_cell(
            "broken runs", len(totals.broken), unit="runs", target=Target("ours", "<=", 0), note=f"trace {totals.trace}"
        ),
        single_cell("runs", seeds, unit="runs"),
        single_cell("injected crashes", totals.crashes, unit="crashes"),
        *(single_cell(end, count, unit="requests") for end, count in totals.ends.items()),
    ]
    finish(make_report("simulate", describe_host("trio"), cells), options)
    return EXIT_BROKEN if totals.broken else 0


def _show(report: Report, *, trace: bool) -> None:
    if trace:
        print("\n".join(report.trace))
    if report.violations:
        print("\n".join(report.violations), file=sys.stderr)
        print(f"repeat with: {repeat_command(report.seed)}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
