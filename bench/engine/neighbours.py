"""What a busy neighbour does to a step.

A step on all cores waits for its slowest thread, so one core that somebody else uses can cost more than its share: what helps is to give
out work in small pieces, and to stop waiting in a spin. The neighbour is one process that takes a share of one core. It is stopped by a
signal while the quiet side is measured, and so is nothing else: the engine's process waits for its next order without running.
"""

from __future__ import annotations

from tripower.bench.engine.child import Worker, awake, competitor, running_worker
from tripower.bench.measured_model import MeasuredModel
from tripower.bench.paired import Progress, alternate, summarise
from tripower.bench.schema import Cell, Target, paired_cell

SHARES = ((0.3, 1.5), (1.0, 2.1))
"""How busy the neighbour is, and how much longer a step may take."""
AGAINST_ONE_THREAD = 1.05
ROWS = 1


def neighbour_cells(model: MeasuredModel, threads: int, *, rounds: int, steps: int, progress: Progress) -> list[Cell]:
    """Both shares against quiet, and the greater one against an engine with one thread. Blocks."""
    progress("neighbours: loading")
    with running_worker(model.path, threads=threads) as worker:
        cells = [_against_quiet(worker, share, limit, rounds, steps, progress) for share, limit in SHARES]
        if threads > 1:
            with running_worker(model.path, threads=1) as single:
                cells.append(_against_one_thread(worker, single, rounds, steps, progress))
    return cells


def _against_quiet(worker: Worker, share: float, limit: float, rounds: int, steps: int, progress: Progress) -> Cell:
    name = f"step beside a neighbour of {share:.0%}"
    with competitor(share) as process:
        worker.step_milliseconds(ROWS, steps)

        def beside() -> float:
            with awake(process):
                return worker.step_milliseconds(ROWS, steps)

        measured = alternate(
            beside, lambda: worker.step_milliseconds(ROWS, steps), rounds=rounds, label=name, progress=progress
        )
    note = f"{ROWS} row; peer: the same engine without a neighbour"
    return paired_cell(name, summarise(measured), unit="ms", target=Target("ratio", "<=", limit), note=note)


def _against_one_thread(worker: Worker, single: Worker, rounds: int, steps: int, progress: Progress) -> Cell:
    share, _ = SHARES[-1]
    name = f"step beside a neighbour of {share:.0%}, against one thread"
    with competitor(share) as process, awake(process):
        single.step_milliseconds(ROWS, steps)
        measured = alternate(
            lambda: worker.step_milliseconds(ROWS, steps),
            lambda: single.step_milliseconds(ROWS, steps),
            rounds=rounds,
            label=name,
            progress=progress,
        )
    note = f"{ROWS} row; peer: one thread beside the same neighbour"
    return paired_cell(name, summarise(measured), unit="ms", target=Target("ratio", "<=", AGAINST_ONE_THREAD), note=note)
