"""The table of a step's costs."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.runtime.engine.drafting import Beside
from tripower.runtime.engine.row_costs import RowCosts

NATIVE = RowCosts((3.9, 3.9, 4.7, 8.3, 16.7))


@pytest.mark.parametrize(
    ("rows", "milliseconds"),
    [(1, 3.9), (2, 3.9), (3, 4.3), (4, 4.7), (6, 6.5), (8, 8.3), (12, 12.5), (16, 16.7), (32, 33.5), (2000, 2099.9)],
)
def test_costs_are_interpolated_and_follow_the_last_slope(rows: int, milliseconds: float) -> None:
    assert NATIVE.step(rows) == pytest.approx(milliseconds / 3.9)


def test_further_rows_cost_what_they_add() -> None:
    assert NATIVE.extra(1, 1) == 0
    assert NATIVE.extra(4, 4) == pytest.approx(3.6 / 3.9)


def test_a_token_costs_its_part_of_a_step_without_prompts() -> None:
    assert NATIVE.token(Beside(3)) == NATIVE.token(Beside(3, 24)) == pytest.approx(4.7 / 4 / 3.9)
    assert NATIVE.token(Beside(3, 0, 2.0)) == pytest.approx((4.7 / 3.9 + 2.0) / 4)


def test_a_guess_costs_what_it_adds_to_the_whole_step() -> None:
    assert NATIVE.guesses(Beside(3), 2) == NATIVE.extra(4, 2)
    assert NATIVE.guesses(Beside(3, 24), 2) == NATIVE.extra(28, 2)


def test_a_table_of_one_entry_says_that_rows_are_free() -> None:
    assert RowCosts((5.0,)).step(64) == 1


@pytest.mark.parametrize("costs", [(), (0.0,), (1.0, -1.0), (1.0, math.nan), (1.0, math.inf)])
def test_a_table_that_says_nothing_is_refused(costs: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="row costs"):
        RowCosts(costs)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=7))
def test_noise_never_makes_a_larger_step_cheaper(costs: list[float]) -> None:
    table = RowCosts(costs)
    steps = [table.step(rows) for rows in range(1, 200)]
    assert steps[0] == 1
    assert all(now <= then + 1e-9 for now, then in pairwise(steps))
