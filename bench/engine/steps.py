"""Step times by rows, and their share of what the machine allows.

At one row a step is bound by reading the weights, at many by multiplying. The limits are measured in every round, beside the steps, so
that both meet the same moment of a machine whose speed drifts; a share is the median over the rounds. Bytes are those of the file: an
engine that blows its weights up has to read more, and that is its loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tripower.backends.gguf.reader import open_gguf
from tripower.bench.engine.child import running_worker
from tripower.bench.engine.limits import FMA_ITERATIONS, fma_peak, read_bandwidth
from tripower.bench.engine.work import StepWork, step_work
from tripower.bench.measured_model import MeasuredModel
from tripower.bench.paired import Progress, quartiles
from tripower.bench.schema import Cell, Target, single_cell

ROWS = (1, 2, 4, 8, 16)
BANDWIDTH_SHARE = Target("ours", ">=", 0.6)
FMA_SHARE = Target("ours", ">=", 0.5)
QUICK_BYTES = 32 << 20
QUICK_ITERATIONS = 20_000
MILLI = 1e-3


class Round(msgspec.Struct, frozen=True):
    """What was measured within a few seconds."""

    milliseconds: Mapping[int, float]
    """Of a step, by its rows."""
    bandwidth: float
    """Bytes a second."""
    peak: float
    """Multiply-adds a second."""


def step_cells(model: MeasuredModel, threads: int, *, rounds: int, steps: int, progress: Progress) -> list[Cell]:
    """Times and shares; `steps` for each block. Blocks."""
    with open_gguf(model.path) as file:
        work = step_work(file)
    quick = rounds == 1
    measured = []
    progress("steps: loading")
    with running_worker(model.path, threads=threads) as worker:
        for rows in ROWS:
            worker.step_milliseconds(rows, 2)  # not counted: first touches, prompts
        for number in range(1, rounds + 1):
            progress(f"steps: round {number} of {rounds}")
            measured.append(
                Round(
                    {rows: worker.step_milliseconds(rows, steps) for rows in ROWS},
                    read_bandwidth(threads, passes=1 if quick else 3, buffer_bytes=QUICK_BYTES if quick else None),
                    fma_peak(threads, passes=1 if quick else 3, iterations=QUICK_ITERATIONS if quick else FMA_ITERATIONS),
                )
            )
        engine = worker.loaded["engine"]
    return cells_of(measured, work, threads, engine)


def cells_of(rounds: Sequence[Round], work: StepWork, threads: int, engine: str) -> list[Cell]:
    """The report of what was measured."""
    cells = []
    for rows in ROWS:
        times = [each.milliseconds[rows] for each in rounds]
        rate = rows / quartiles(times)[1] / MILLI
        note = f"{engine}, {threads} threads; {rate:.0f} tokens/s"
        cells.append(_cell(f"step, {rows} row{'s' if rows > 1 else ''}", times, "ms", None, note))
    few, many = ROWS[0], ROWS[-1]
    read = [work.weight_bytes / (each.milliseconds[few] * MILLI) / each.bandwidth for each in rounds]
    done = [many * work.multiply_adds / (each.milliseconds[many] * MILLI) / each.peak for each in rounds]
    bandwidth = quartiles([each.bandwidth for each in rounds])[1]
    peak = quartiles([each.peak for each in rounds])[1]
    return [
        *cells,
        _cell(
            f"share of the bandwidth limit, {few} row",
            read,
            "share",
            BANDWIDTH_SHARE,
            f"{work.weight_bytes / 1e6:.1f} MB of the file for each step; {bandwidth / 1e9:.1f} GB/s can be read",
        ),
        _cell(
            f"share of the FMA limit, {many} rows",
            done,
            "share",
            FMA_SHARE,
            f"{work.multiply_adds / 1e6:.1f} million multiply-adds for each row; {peak / 1e9:.1f} billion a second can be done",
        ),
    ]


def _cell(name: str, values: Sequence[float], unit: str, target: Target | None, note: str) -> Cell:
    lower, median, upper = quartiles(values)
    return msgspec.structs.replace(single_cell(name, median, unit=unit, target=target, note=note), iqr=(lower, upper))
