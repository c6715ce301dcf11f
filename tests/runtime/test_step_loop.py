"""The step table and the Python loop over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.constraints import Broken, Script, mask_of
from tripower.backends.toy import ToyEngine
from tripower.runtime.engine import SamplingParameters, StepRow, StepTable, TokenLogprobs, run_steps
from tripower.runtime.engine.step_loop import SCORED_ROWS_MAX, plan_rows
from tripower.runtime.engine.step_table import INVALID_LOGITS, NOT_DRAWN, SIGNAL_FD, STEPS_DONE

END = 7


class Parrot(ToyEngine):
    """Draws the number of the sequence's positions; keeps what it was asked; fails at the step it is told to."""

    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.steps: list[list[StepRow]] = []
        self._fails_at = fails_at

    def step(self, rows: Sequence[StepRow]) -> list[int]:
        if len(self.steps) == self._fails_at:
            raise RuntimeError("failed")
        self.steps.append(list(rows))
        return [row.position + len(row.tokens) if row.draw else NOT_DRAWN for row in rows]


def new_table(slots_max: int = 4, steps_max: int = 8, rows_max: int = 4, *, steps: int = 8) -> StepTable:
    table = StepTable(slots_max=slots_max, steps_max=steps_max, rows_max=rows_max)
    table.clear(steps_max=steps)
    return table


def add(
    table: StepTable,
    pending: list[int],
    remaining: int = 100,
    *,
    position: int = 0,
    ends: frozenset[int] = frozenset(),
    **more: Any,
) -> None:
    table.add(
        sequence=10 + table.slots,
        position=position,
        pending=pending,
        remaining=remaining,
        output_index=0,
        sampling=SamplingParameters(),
        ends=ends,
        history=pending,
        prompt_length=position + len(pending),
        **more,
    )


def rows_of(table: StepTable) -> list[tuple[list[int], list[int]]]:
    return [
        (table.evaluated[step, : table.slots].tolist(), table.drawn[step, : table.slots].tolist())
        for step in range(table.steps_done)
    ]


@settings(deadline=None)
@given(st.lists(st.integers(0, 20), max_size=8), st.integers(1, 24))
def test_everybody_gets_a_row_and_prompts_share_the_rest(pending: list[int], rows_max: int) -> None:
    rows = plan_rows(pending, rows_max)
    assert all((row > 0) == (count > 0) and row <= count for row, count in zip(rows, pending, strict=True))
    assert sum(rows) <= max(rows_max, sum(1 for count in pending if count))
    if any(row < count for row, count in zip(rows, pending, strict=True)):
        assert sum(rows) >= rows_max  # nothing is left over while somebody could use it


@pytest.mark.parametrize(
    ("pending", "rows_max", "rows"),
    [
        ([1, 1, 1], 8, [1, 1, 1]),
        ([10, 1, 5], 8, [6, 1, 1]),
        ([3, 1, 5], 8, [3, 1, 4]),
        ([5, 5, 5], 2, [1, 1, 1]),
        ([0, 4, 0], 2, [0, 2, 0]),
        ([], 2, []),
    ],
)
def test_rows_are_shared_in_slot_order(pending: list[int], rows_max: int, rows: list[int]) -> None:
    assert plan_rows(pending, rows_max) == rows


def test_a_long_prompt_is_chunked_beside_a_stream() -> None:
    table, engine = new_table(rows_max=4, steps=4), Parrot()
    add(table, [1, 2, 3, 4, 5, 6])
    add(table, [9], position=3)
    assert len(list(run_steps(engine, table))) == 4
    assert rows_of(table) == [
        ([3, 1], [NOT_DRAWN, 4]),
        ([3, 1], [6, 5]),
        ([1, 1], [7, 6]),
        ([1, 1], [8, 7]),
    ]
    assert [row.tokens for row in engine.steps[1]] == [(4, 5, 6), (4,)]
    assert [row.draw for row in engine.steps[0]] == [False, True]


def test_a_slot_ends_with_an_end_token_or_its_last_token() -> None:
    table, engine = new_table(), Parrot()
    add(table, [1], remaining=2)
    add(table, [1], position=5, ends=frozenset({END}))
    add(table, [1, 2], remaining=0)
    assert len(list(run_steps(engine, table))) == 1  # between its two steps; the end needs no boundary
    assert rows_of(table) == [([1, 1, 2], [1, 6, NOT_DRAWN]), ([1, 1, 0], [2, 7, NOT_DRAWN])]
    assert table.pending == [[], [], []]
    assert table.remaining[:3].tolist() == [0, 98, 0] and table.output_index[:3].tolist() == [2, 2, 0]


def test_logits_that_are_not_finite_end_their_slot_and_no_other() -> None:
    class Poisoned(Parrot):
        def step(self, rows: Sequence[StepRow]) -> list[int]:
            drawn = super().step(rows)
            return [
                INVALID_LOGITS if row.sequence == 10 and row.draw else token for row, token in zip(rows, drawn, strict=True)
            ]

    table = new_table()
    add(table, [1, 2], remaining=5)
    add(table, [1], remaining=3)
    assert len(list(run_steps(Poisoned(), table))) == 2
    assert [drawn for _, drawn in rows_of(table)] == [[INVALID_LOGITS, 1], [NOT_DRAWN, 2], [NOT_DRAWN, 3]]
    assert table.pending == [[], []] and table.history == [[1, 2], [1, 1, 2, 3]]


def test_rows_carry_the_index_of_the_draw_and_the_history() -> None:
    table, engine = new_table(steps=2), Parrot()
    add(table, [1, 2])
    list(run_steps(engine, table))
    first, second = (rows[0] for rows in engine.steps)
    assert (first.output_index, first.prompt_length, first.sequence) == (0, 2, 10)
    assert (second.output_index, second.position, second.tokens) == (1, 2, (2,))
    assert list(second.history) == [1, 2, 2, 3]  # the table's own list: it has grown with the last draw


def test_it_stops_where_it_is_told() -> None:
    table, engine = new_table(), Parrot()
    add(table, [1])
    steps = run_steps(engine, table)
    next(steps)
    next(steps)
    table.request_stop()
    assert list(steps) == [] and table.steps_done == 2 and len(engine.steps) == 2


def test_a_stop_before_the_first_step_runs_none() -> None:
    table, engine = new_table(), Parrot()
    add(table, [1])
    table.request_stop()
    assert list(run_steps(engine, table)) == [] and table.steps_done == 0


def test_a_table_without_slots_runs_no_step() -> None:
    table = new_table()
    assert list(run_steps(Parrot(), table)) == [] and table.steps_done == 0


def test_a_failing_step_leaves_what_was_committed() -> None:
    table, engine = new_table(), Parrot(fails_at=1)
    add(table, [1, 2])
    steps = run_steps(engine, table)
    next(steps)
    with pytest.raises(RuntimeError, match="failed"):
        next(steps)
    assert rows_of(table) == [([2], [2])]
    assert table.pending == [[2]] and table.position[0] == 2


def test_each_boundary_lies_after_a_complete_step_and_none_after_the_last() -> None:
    table = new_table(steps=3)
    add(table, [1], remaining=3)
    seen = [(table.steps_done, int(table.drawn[table.steps_done - 1, 0])) for _ in run_steps(Parrot(), table)]
    assert seen == [(1, 1), (2, 2)]
    assert table.steps_done == 3


def test_clearing_makes_the_table_new() -> None:
    table = new_table()
    add(table, [1])
    table.set_signal_fd(5)
    table.request_stop()
    table.commit([1], [2])
    table.clear(steps_max=2)
    assert (table.slots, table.steps_done, table.steps_max, table.stop) == (0, 0, 2, False)
    assert table.control[SIGNAL_FD] == -1 and table.control[STEPS_DONE] == 0


@pytest.mark.parametrize("steps", [0, 9])
def test_more_steps_than_there_is_room_for_are_a_mistake(steps: int) -> None:
    with pytest.raises(AssertionError):
        new_table(steps=steps)


def test_more_slots_than_there_is_room_for_are_a_mistake() -> None:
    table = new_table(slots_max=1)
    add(table, [1])
    with pytest.raises(AssertionError):
        add(table, [1])
    with pytest.raises(AssertionError):
        add(new_table(), [])


def test_a_constraint_is_asked_where_its_slot_draws_and_told_of_what_does_not_end_the_text() -> None:
    table, engine, script = new_table(rows_max=2), Parrot(), Script([[3, 9], [4], [END]], 40)
    add(table, [1, 1, 1], constraint=script, ends=frozenset({5}))
    list(run_steps(engine, table))
    assert [drawn for _, drawn in rows_of(table)] == [[NOT_DRAWN], [3], [4], [5]]
    assert script.asked == [0, 1, 2] and script.accepted == [3, 4]
    masks = [row.mask for [row] in engine.steps]
    assert masks[0] is None and masks[1] is not None and masks[1].tolist() == mask_of([3, 9], 40).tolist()


def test_a_failing_step_leaves_a_constraint_where_the_committed_ones_brought_it() -> None:
    table, engine, script = new_table(), Parrot(fails_at=1), Script([[2], [3]], 40)
    add(table, [1, 2], constraint=script)
    steps = run_steps(engine, table)
    next(steps)
    with pytest.raises(RuntimeError, match="failed"):
        next(steps)
    assert script.accepted == [2]
    next(run_steps(Parrot(), table))  # the same rows once more
    assert script.accepted == [2, 3] and script.asked == [0, 1, 1]


def test_a_constraint_that_fails_allows_nothing() -> None:
    table, engine = new_table(), Parrot()
    add(table, [1], remaining=1, constraint=Broken())
    list(run_steps(engine, table))
    [[row]] = engine.steps
    assert row.mask is not None and not row.mask.any()


class Teller(Parrot):
    """Tells of the tokens that it should tell of."""

    def step(self, rows: Sequence[StepRow]) -> list[int]:
        drawn = super().step(rows)
        for row, token in zip(rows, drawn, strict=True):
            if row.report is not None:
                after = (*row.tokens[1:], row.following) if row.prompt_logprobs >= 0 else ()
                row.report.prompt += [TokenLogprobs(each, -1.0) for each in after if each >= 0]
                row.report.drawn = TokenLogprobs(token, -1.0) if row.logprobs >= 0 else None
        return drawn


def test_each_token_of_a_prompt_is_told_of_once_whatever_its_chunks_and_drawn_ones_are_not() -> None:
    table, engine = new_table(rows_max=3), Teller()
    add(table, [5, 6, 7, 8, 9], remaining=3, prompt_logprobs=1)
    add(table, [1], position=3, remaining=2, logprobs=0)
    add(table, [4, 4], remaining=0)
    list(run_steps(engine, table))
    told = [table.reports.get(step, {}) for step in range(table.steps_done)]
    prompt = [each.token for step in told if 0 in step for each in step[0].prompt]
    assert prompt == [6, 7, 8, 9]
    assert [step[1].drawn.token for step in told if 1 in step and step[1].drawn] == [4, 5]
    assert all(2 not in step for step in told)
    last = [row for rows in engine.steps for row in rows if row.sequence == 10][-1]
    assert (last.position, last.prompt_logprobs, last.report) == (6, -1, None)


def test_few_rows_of_a_prompt_are_told_of_at_a_time() -> None:
    table, engine = new_table(rows_max=400, steps=2), Teller()
    for _ in range(3):
        add(table, [1] * 100, remaining=0, prompt_logprobs=0)
    add(table, [1] * 100, remaining=0)
    list(run_steps(engine, table))
    assert table.evaluated[0, :4].tolist() == [SCORED_ROWS_MAX, 1, 1, 100]
    assert table.evaluated[1, :4].tolist() == [36, 28, 1, 0]


def test_reports_are_there_before_the_step_counts() -> None:
    class Watching(StepTable):
        def commit(self, evaluated: Sequence[int], drawn: Sequence[int]) -> None:
            assert self.reports[self.steps_done][0].drawn is not None
            super().commit(evaluated, drawn)

    table = Watching(slots_max=1, steps_max=2, rows_max=4)
    table.clear(steps_max=2)
    add(table, [1], logprobs=2)
    list(run_steps(Teller(), table))
    assert table.steps_done == 2
