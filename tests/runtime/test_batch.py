"""The continuous batch against its acceptance checks (scheduling and service, §2.5) and under random steps."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.constraints import Script
from tripower.runtime.batching import Batch, BrokenStep, Member
from tripower.runtime.engine import RowReport, SamplingParameters, StepTable, TokenLogprobs
from tripower.runtime.engine.step_loop import plan_rows
from tripower.runtime.engine.step_table import INVALID_LOGITS

NONE = -1
END = 99


def new_batch(members_max: int = 4) -> tuple[Batch[str], StepTable]:
    return Batch(members_max), StepTable(slots_max=members_max, steps_max=4, rows_max=8)


def join(batch: Batch[str], prompt: tuple[int, ...], owner: str, *, max_tokens: int = 3, **sampling: Any) -> Member[str]:
    return batch.join(
        prompt, max_tokens=max_tokens, sampling=SamplingParameters(**sampling), ends=frozenset({END}), owner=owner
    )


def snapshot(batch: Batch[str]) -> list[tuple[str, int, list[int]]]:
    return [(member.owner, member.evaluated, list(member.output)) for member in batch.members]


def test_a_new_batch_wants_a_job_that_closes_what_others_left() -> None:
    batch, table = new_batch()
    assert batch.stale
    assert batch.plan(table, steps_max=4) == ([], []) and table.slots == 0
    batch.end_job()
    assert not batch.stale


def test_the_roster_is_everybody_once_in_join_order_and_newcomers_wait_for_the_next() -> None:
    batch, table = new_batch()
    a, b = join(batch, (1, 2), "a"), join(batch, (3,), "b")
    assert batch.plan(table, steps_max=4) == ([0, 1], [0, 1])
    assert table.slots == 2 and table.pending == [[1, 2], [3]] and table.sequence[:2].tolist() == [0, 1]
    join(batch, (4,), "c")
    assert table.slots == 2 and batch.statistics().members == 3
    assert batch.commit([2, 1], [10, 11]) == [(a, 10), (b, 11)]
    batch.end_job()
    assert batch.plan(table, steps_max=2) == ([0, 1, 2], [2])
    assert table.pending == [[10], [11], [4]] and table.position[:3].tolist() == [2, 1, 0]
    assert table.remaining[:3].tolist() == [2, 2, 3] and table.output_index[:3].tolist() == [1, 1, 0]
    assert table.steps_max == 2


def test_a_run_to_the_end_adds_up() -> None:
    batch, table = new_batch()
    a, b = join(batch, (1, 2), "a", max_tokens=2), join(batch, (3,), "b", max_tokens=1)
    batch.plan(table, steps_max=4)
    batch.commit([2, 1], [10, 11])
    batch.finish(b)
    batch.commit([1, 0], [12, NONE])
    batch.finish(a)
    batch.finish(a)
    batch.end_job()
    s = batch.statistics()
    assert (s.joined, s.finished, s.left, s.failed, s.members) == (2, 2, 0, 0, 0)
    assert (s.steps, s.prefill_rows, s.decode_rows, s.largest_step) == (2, 3, 1, 3)
    assert batch.stale and batch.plan(table, steps_max=4) == ([], [])  # their states are freed


def test_a_member_without_finite_logits_is_told_of_and_gets_no_token() -> None:
    batch, table = new_batch()
    a, b = join(batch, (1, 2), "a"), join(batch, (3,), "b")
    batch.plan(table, steps_max=4)
    assert batch.commit([2, 1], [INVALID_LOGITS, 11]) == [(a, INVALID_LOGITS), (b, 11)]
    assert (a.output, b.output) == ([], [11])
    batch.leave(a, failed=True)
    assert batch.commit([0, 1], [NONE, 12]) == [(b, 12)]
    batch.end_job()
    s = batch.statistics()
    assert (s.joined, s.failed, s.members) == (2, 1, 1)
    assert batch.plan(table, steps_max=4) == ([1], [])


@pytest.mark.parametrize("outcome_of_a", [(2, 10), (0, NONE), (77, 5)])
def test_the_rows_of_a_member_that_left_in_flight_are_dropped(outcome_of_a: tuple[int, int]) -> None:
    batch, table = new_batch()
    a, b = join(batch, (1, 2), "a"), join(batch, (3,), "b")
    batch.plan(table, steps_max=4)
    batch.leave(a)
    batch.leave(a)
    assert batch.commit([outcome_of_a[0], 1], [outcome_of_a[1], 11]) == [(b, 11)]
    assert a.output == [] and a.evaluated == 0
    batch.end_job()
    assert batch.plan(table, steps_max=4) == ([1], [])
    assert batch.statistics().left == 1


def test_a_place_is_free_as_soon_as_its_member_has_gone() -> None:
    batch, table = new_batch(1)
    a = join(batch, (1,), "a")
    batch.plan(table, steps_max=4)
    batch.leave(a, failed=True)
    join(batch, (2,), "b")
    batch.end_job()
    assert batch.plan(table, steps_max=4) == ([1], [1])
    assert batch.statistics().failed == 1


def test_one_job_at_a_time() -> None:
    batch, table = new_batch()
    join(batch, (1,), "a")
    batch.plan(table, steps_max=4)
    assert batch.running
    with pytest.raises(AssertionError, match="one job at a time"):
        batch.plan(table, steps_max=4)
    batch.end_job()
    assert not batch.running
    with pytest.raises(AssertionError, match="no job is in flight"):
        batch.commit([1], [10])


@pytest.mark.parametrize(
    ("evaluated", "drawn"),
    [
        ([2], [10]),
        ([2, 1, 1], [10, 11, 12]),
        ([2, 1], [10]),
        ([3, 1], [10, 11]),
        ([-1, 1], [NONE, 11]),
        ([1, 1], [10, 11]),
        ([0, 1], [10, 11]),
        ([2, 1], [10, NONE]),
        ([2, 0], [NONE, NONE]),
        ([2, 1], [INVALID_LOGITS - 1, 11]),
        ([1, 1], [INVALID_LOGITS, 11]),
    ],
    ids=[
        "one missing",
        "one too many",
        "a token missing",
        "more rows than pending",
        "negative rows",
        "a token inside the prompt",
        "a token without a row",
        "no token at the end of a prompt",
        "no token, and the other in no step",
        "what is no token",
        "logits inside the prompt",
    ],
)
def test_a_step_that_cannot_be_true_changes_nothing(evaluated: list[int], drawn: list[int]) -> None:
    batch, table = new_batch()
    join(batch, (1, 2), "a")
    join(batch, (3,), "b")
    batch.plan(table, steps_max=4)
    before, figures = snapshot(batch), batch.statistics()
    with pytest.raises(BrokenStep):
        batch.commit(evaluated, drawn)
    assert snapshot(batch) == before and batch.statistics() == figures
    assert len(batch.commit([2, 1], [10, 11])) == 2  # the same step may still be committed


def test_no_token_is_due_beyond_the_members_limit() -> None:
    batch, table = new_batch()
    a = join(batch, (1,), "a", max_tokens=1)
    batch.plan(table, steps_max=4)
    batch.commit([1], [10])
    with pytest.raises(BrokenStep, match="none was due"):
        batch.commit([1], [11])
    assert a.output == [10]


def test_a_prompt_alone_draws_nothing() -> None:
    batch, table = new_batch()
    a = join(batch, (1, 2), "a", max_tokens=0)
    batch.plan(table, steps_max=4)
    assert batch.commit([2], [NONE]) == [] and a.evaluated == 2


def test_a_prompt_in_three_chunks_draws_once_at_its_end() -> None:
    batch, table = new_batch()
    a = join(batch, (1, 2, 3, 4, 5), "a")
    batch.plan(table, steps_max=4)
    for rows, token, outcome in ((2, NONE, []), (2, NONE, []), (1, 10, [(a, 10)])):
        assert batch.commit([rows], [token]) == outcome
    assert a.output == [10] and a.pending == [10]
    assert (batch.statistics().prefill_rows, batch.statistics().decode_rows) == (5, 0)


def test_after_an_abort_everybody_goes_on_from_the_last_commit() -> None:
    batch, table = new_batch()
    a, b = join(batch, (1, 2, 3), "a"), join(batch, (4,), "b")
    batch.plan(table, steps_max=4)
    batch.commit([2, 1], [NONE, 11])
    batch.leave(b)
    batch.end_job(aborted=True)
    assert snapshot(batch) == [("a", 2, [])] and a.pending == [3]
    assert batch.plan(table, steps_max=4) == ([0], [])
    assert table.position[0] == 2 and table.pending == [[3]]
    assert batch.statistics().aborted_jobs == 1 and batch.statistics().steps == 1


def test_a_sequence_of_which_nothing_was_committed_is_opened_anew() -> None:
    batch, table = new_batch()
    join(batch, (1,), "a")
    batch.plan(table, steps_max=4)
    batch.end_job(aborted=True)
    assert batch.plan(table, steps_max=4) == ([0], [0])


def test_after_an_abort_the_device_is_asked_once_more_to_close_the_rest() -> None:
    batch, table = new_batch()
    a = join(batch, (1,), "a")
    batch.plan(table, steps_max=4)
    batch.leave(a)
    for aborted in (True, True, False):  # the job that closes may fail too
        batch.end_job(aborted=aborted)
        assert batch.stale is aborted
        if aborted:
            assert batch.plan(table, steps_max=4) == ([], [])


def test_sequence_ids_are_never_used_twice_even_by_a_later_batch() -> None:
    ids = itertools.count()
    first: Batch[str] = Batch(2, sequences=ids)
    join(first, (1,), "a")
    second: Batch[str] = Batch(2, sequences=ids)
    assert join(second, (1,), "b").sequence == 1


@pytest.mark.parametrize(
    ("sampling", "needed"),
    [({}, False), ({"repeat_penalty": 1.1}, True), ({"presence_penalty": 0.5}, True), ({"frequency_penalty": -0.5}, True)],
)
def test_the_history_travels_only_where_penalties_need_it(sampling: dict[str, Any], needed: bool) -> None:
    batch, table = new_batch()
    join(batch, (1, 2), "a", **sampling)
    batch.plan(table, steps_max=4)
    assert table.history == [[1, 2] if needed else []]
    assert table.prompt_length == [2]


def test_statistics_and_members_name_no_token() -> None:
    batch, _ = new_batch()
    join(batch, (123456,), "a")
    assert "123456" not in repr(batch.statistics()) + repr(batch)


@settings(deadline=None)
@given(st.data())
def test_random_jobs_keep_the_books_and_every_member_its_own_tokens(data: st.DataObject) -> None:
    """Tokens are numbered by member, so that a mixed-up row would show."""
    batch, table = new_batch(3)
    everybody: list[Member[str]] = []
    for _ in range(data.draw(st.integers(1, 6))):
        while len(batch.members) < 3 and data.draw(st.booleans()):
            prompt = (0,) * data.draw(st.integers(1, 4))
            everybody.append(join(batch, prompt, "m", max_tokens=data.draw(st.integers(1, 3))))
        batch.plan(table, steps_max=4)
        roster = batch.members
        for _ in range(data.draw(st.integers(0, 4))):
            for member in roster:
                if data.draw(st.integers(0, 9)) == 0:
                    batch.leave(member, failed=data.draw(st.booleans()))
            alive = [not (member.leaving or member.finished) for member in roster]
            rows = plan_rows([len(member.pending) if lives else 0 for member, lives in zip(roster, alive, strict=True)], 5)
            due = [bool(count) and count == len(member.pending) for member, count in zip(roster, rows, strict=True)]
            drawn = [
                1000 * member.sequence + len(member.output) if now else NONE for member, now in zip(roster, due, strict=True)
            ]
            for member, _token in batch.commit(rows, drawn):
                if len(member.output) == member.max_tokens:
                    batch.finish(member)
        batch.end_job(aborted=data.draw(st.booleans()))
        s = batch.statistics()
        assert s.joined == s.finished + s.left + s.failed + s.members == len(everybody)
    for member in everybody:
        assert member.output == [1000 * member.sequence + n for n in range(len(member.output))]
        assert member.finished == (len(member.output) == member.max_tokens)


def told(*tokens: int, drawn: int | None = None) -> RowReport:
    return RowReport(
        drawn=None if drawn is None else TokenLogprobs(drawn, -1.0), prompt=[TokenLogprobs(token, -1.0) for token in tokens]
    )


def new_told_member(batch: Batch[str], **more: Any) -> Member[str]:
    settings: dict[str, Any] = {"max_tokens": 3, "sampling": SamplingParameters(), "ends": frozenset(), "owner": "a"} | more
    return batch.join((1, 2, 3), **settings)


def test_what_a_member_is_held_to_and_wants_to_know_is_in_its_slot() -> None:
    batch, table = new_batch()
    script = Script([], 1)
    new_told_member(batch, constraint=script, logprobs=2, prompt_logprobs=0)
    join(batch, (1,), "b")
    batch.plan(table, steps_max=4)
    assert table.constraint == [script, None]
    assert table.logprobs == [2, NONE] and table.prompt_logprobs == [0, NONE] and table.stepwise


def test_a_prompts_log_probabilities_are_kept_once_over_chunks_and_a_retry() -> None:
    batch, table = new_batch()
    member = new_told_member(batch, logprobs=0, prompt_logprobs=0)
    batch.plan(table, steps_max=4)
    batch.commit([1], [NONE], {0: told(2)})
    batch.end_job(aborted=True)
    batch.plan(table, steps_max=4)
    assert table.position[0] == 1 and table.pending == [[2, 3]]
    batch.commit([2], [7], {0: told(3, drawn=7)})
    assert [each.token for each in member.prompt_told] == [2, 3]
    assert member.told == TokenLogprobs(7, -1.0)
    batch.commit([1], [8], {0: told(drawn=8)})
    assert len(member.prompt_told) == 2 and member.told == TokenLogprobs(8, -1.0)


@pytest.mark.parametrize(
    ("rows", "token", "reports"),
    [
        (2, NONE, {}),
        (2, NONE, {0: told(2)}),
        (3, 7, {0: told(2, 3)}),
        (3, 7, {0: told(2, 3, 4, drawn=7)}),
        (3, 7, {1: told(2, 3, drawn=7)}),
    ],
)
def test_a_step_that_does_not_tell_what_it_should_is_broken_and_changes_nothing(
    rows: int, token: int, reports: dict[int, RowReport]
) -> None:
    batch, table = new_batch()
    member = new_told_member(batch, logprobs=0, prompt_logprobs=0)
    batch.plan(table, steps_max=4)
    with pytest.raises(BrokenStep, match="did not tell"):
        batch.commit([rows], [token], reports)
    assert (member.evaluated, member.output, member.prompt_told) == (0, [], [])


def test_a_member_that_leaves_need_not_be_told_of() -> None:
    batch, table = new_batch()
    member = new_told_member(batch, logprobs=0, prompt_logprobs=0)
    batch.plan(table, steps_max=4)
    batch.leave(member)
    assert batch.commit([3], [7], {}) == [] and member.prompt_told == []
