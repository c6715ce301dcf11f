"""What a step costs by its number of rows, as a table that was measured once, at load.

All decisions of speculation read this table and no clock, so a request's steps are the same ones whenever it is run on this table.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Sequence
from math import inf

from tripower.runtime.engine.drafting import Beside

ROWS_TABULATED = 1024
"""Costs up to here are computed once; beyond, they follow the last slope."""


class RowCosts:
    """Relative costs of a step with 1, 2, 4, 8, 16, … rows, linear in between and behind the last one.

    A measured table has noise: a cost below that of fewer rows is raised to it. A table of one entry says that rows are free.
    Raises `ValueError` where there is no entry, or one that is not finite and positive.
    """

    def __init__(self, costs: Sequence[float]) -> None:
        if not costs or not all(0 < cost < inf for cost in costs):
            raise ValueError("row costs are positive numbers, at least one")
        rising = [float(costs[0])]
        for cost in costs[1:]:
            rising.append(max(rising[-1], float(cost)))
        self.measured = tuple(cost / rising[0] for cost in rising)
        """The table, in units of a step with one row."""
        self._steps = [self._interpolate(rows) for rows in range(ROWS_TABULATED + 1)]

    def step(self, rows: int) -> float:
        """What a step with so many rows costs; one row costs 1."""
        return self._steps[rows] if rows <= ROWS_TABULATED else self._interpolate(rows)

    def extra(self, rows: int, more: int) -> float:
        """What `more` rows add to a step that has `rows` without them."""
        return self.step(rows + more) - self.step(rows)

    def token(self, beside: Beside) -> float:
        """What a token costs without guesses: a row's part of a step with so many others, without prompts.

        Prompts are left out because they cost the same whenever they are evaluated; what a guess saves is a row of some later step.
        """
        rows = beside.rows + 1
        return (self.step(rows) + beside.reading) / rows

    def guesses(self, beside: Beside, count: int) -> float:
        """What evaluating so many guesses adds to a step."""
        return self.extra(beside.rows + beside.prompts + 1, count)

    def _interpolate(self, rows: int) -> float:
        table = self.measured
        if rows <= 1 or len(table) == 1:
            return table[0]
        counts = [1 << power for power in range(len(table))]
        above = min(bisect_left(counts, rows), len(table) - 1)
        low, high = counts[above - 1], counts[above]
        return table[above - 1] + (table[above] - table[above - 1]) * (rows - low) / (high - low)


DEFAULT_ROW_COSTS = RowCosts((1.0, 1.1, 1.4, 2.3, 4.4))
"""For an engine that was not measured: cautious, as on two cores of a processor."""


@functools.lru_cache(maxsize=64)
def costs_of(measured: tuple[float, ...]) -> RowCosts:
    """The table of an engine, `EngineInfo.row_costs`; the cautious one where nothing was measured."""
    return RowCosts(measured) if measured else DEFAULT_ROW_COSTS
