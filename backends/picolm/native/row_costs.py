"""What a step costs by its number of rows, measured at the first load of a model on a machine and kept from then on.

A step with several rows of one sequence, logits at all of them, is what verifies guesses. The numbers of rows take turns, each is
compared with the single row of its own round, and the median of the rounds counts: a machine that others use is now quick and now slow, so
that the quickest of each number may be of different moments. Decisions read the kept table and never a clock, so they are the same
ones each time; nothing but the choice of widths depends on it.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Generator
from typing import Protocol

from tripower.backends.picolm.native.kept import read_kept, write_kept
from tripower.runtime.engine import EngineInfo, StepRow

ROW_COUNTS = (1, 2, 4, 8, 16)
ROUNDS_MIN, ROUNDS_MAX = 3, 16
SECONDS_MAX = 1.5
"""After so long, no further round begins."""
PREFIX = 32
"""Positions that the measured rows look back at."""
SEQUENCE = 0


class Measurable(Protocol):
    """What is needed of an engine."""

    info: EngineInfo

    @property
    def verify_rows_max(self) -> int:
        """Rows of one sequence that may have logits in one step."""

    def open_sequence(self, sequence: int) -> None: ...

    def close_sequence(self, sequence: int) -> None: ...

    def trim(self, sequence: int, length: int) -> None: ...

    def step(self, rows: list[StepRow]) -> list[int]: ...

    def verify(self, sequence: int, tokens: tuple[int, ...]) -> None:
        """One step over these tokens with logits at all of them."""


def measure_row_costs(engine: Measurable, key: tuple[object, ...]) -> Generator[None, None, tuple[float, ...]]:
    """The costs of steps with 1, 2, 4, 8 and 16 rows, as far as the engine takes them, relative to the first; yields between steps.

    `key` is all that the times depend on. No sequence may be open.
    """
    name = f"costs-{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}"
    kept = read_kept(name, tuple[float, ...])
    if kept is not None:
        return kept
    counts = [count for count in ROW_COUNTS if count <= engine.verify_rows_max and PREFIX + count <= engine.info.context_max]
    costs = tuple((yield from _measure(engine, counts))) if counts else ()
    write_kept(name, costs)
    return costs


def _measure(engine: Measurable, counts: list[int]) -> Generator[None, None, list[float]]:
    engine.open_sequence(SEQUENCE)
    tokens = tuple(place % engine.info.vocabulary_size for place in range(PREFIX))
    rounds: list[list[float]] = []
    try:
        engine.step([StepRow(SEQUENCE, 0, tokens, draw=False)])
        begun = time.perf_counter()
        for done in range(ROUNDS_MAX):
            if done >= ROUNDS_MIN and time.perf_counter() - begun > SECONDS_MAX:
                break
            took = []
            for count in counts:
                start = time.perf_counter()
                engine.verify(SEQUENCE, tokens[:count])
                took.append(time.perf_counter() - start)
                engine.trim(SEQUENCE, PREFIX)
                yield
            rounds.append([seconds / took[0] for seconds in took])
    finally:
        engine.close_sequence(SEQUENCE)
    return plausible([statistics.median(ratios) for ratios in zip(*rounds, strict=True)])


def plausible(costs: list[float]) -> list[float]:
    """Twice as many rows cost no less, and no more than twice as much: a busy machine may have said otherwise."""
    found = costs[:1]
    for cost in costs[1:]:
        found.append(round(min(max(cost, found[-1]), 2 * found[-1]), 3))
    return found
