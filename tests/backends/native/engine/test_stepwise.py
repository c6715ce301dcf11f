"""Jobs with constraints and log probabilities: each sequence answers as it would alone and in Python, whoever runs beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.native.engine.constrained import (
    Answer,
    Member,
    Picky,
    answers_of,
    assert_close,
    expected_answer,
)
from tests.backends.native.engine.rigs import GREEDY, SAMPLED, VOCABULARY, build_engine, ignore_costs, new_table, tokens_of
from tripower.backends.picolm.native import stepwise
from tripower.backends.picolm.native.engine import NativeEngine
from tripower.runtime.engine import StepTable
from tripower.runtime.engine.step_table import INVALID_LOGITS, NOT_DRAWN

BANNED = msgspec.structs.replace(SAMPLED, banned=tuple(range(0, VOCABULARY, 2)), banned_until=4)
ENDS = frozenset(range(0, VOCABULARY, 7))


@pytest.fixture(scope="module")
def engine(tiny_model: Any) -> Iterator[NativeEngine]:
    made = ignore_costs(build_engine(tiny_model("llama", layers=2), threads=2, slots_max=4, sequences_max=6))
    yield made
    made.close()


def run(engine: NativeEngine, *members: Member, slots: list[dict[str, Any]] | None = None, **limits: Any) -> StepTable:
    """One job over all members, to its end."""
    for sequence in range(len(members)):
        engine.open_sequence(sequence)
    table = new_table(engine, *(slots or [member.slot() for member in members]), **limits)
    for _ in engine.run(table):
        pass
    return table


def picky_of(table: StepTable, slot: int) -> Picky:
    found = table.constraint[slot]
    assert isinstance(found, Picky)
    return found


MEMBERS = st.builds(
    Member,
    prompt=st.builds(lambda seed, length: tuple(tokens_of(seed, length)), st.integers(0, 3), st.integers(1, 40)),
    remaining=st.integers(0, 6),
    sampling=st.sampled_from([GREEDY, SAMPLED, BANNED]),
    constraint=st.sampled_from([None, 1, 2]),
    logprobs=st.sampled_from([-1, -1, 0, 3, 20]),
    prompt_logprobs=st.sampled_from([-1, -1, 0, 2]),
    ends=st.sampled_from([frozenset[int](), ENDS]),
)


@settings(deadline=None, max_examples=40)
@given(
    members=st.lists(MEMBERS, min_size=1, max_size=4),
    limits=st.sampled_from([{}, {"rows_max": 9}, {"rows_max": 20, "mixed_rows": 3}, {"rows_max": 4}]),
)
def test_everybody_answers_as_alone_and_as_python_says(
    engine: NativeEngine, members: list[Member], limits: dict[str, Any]
) -> None:
    table = run(engine, *members, **limits)
    found = answers_of(table)
    for member, answer in zip(members, found, strict=True):
        expected = expected_answer(engine, member)
        assert answer.drawn == expected.drawn
        assert_close(answer.told, expected.told)
        assert_close(answer.prompt, expected.prompt)
        assert answer == answers_of(run(engine, member))[0]  # the very bits
    for slot, member in enumerate(members):
        if member.constraint is not None:
            kept = [token for token in found[slot].drawn if token not in member.ends]
            assert picky_of(table, slot).accepted == kept and picky_of(table, slot).asked == len(found[slot].drawn)


CONSTRAINED = Member(prompt=tuple(tokens_of(1, 30)), remaining=8, sampling=SAMPLED, constraint=5, logprobs=2, prompt_logprobs=1)
PLAIN = Member(prompt=tuple(tokens_of(2, 25)), remaining=10, sampling=SAMPLED)


def test_a_neighbour_of_a_constrained_answer_keeps_its_steps(engine: NativeEngine) -> None:
    def columns(table: StepTable) -> list[list[int]]:
        return [table.evaluated[: table.steps_done, 1].tolist(), table.drawn[: table.steps_done, 1].tolist()]

    beside_plain = run(engine, msgspec.structs.replace(CONSTRAINED, constraint=None, logprobs=-1, prompt_logprobs=-1), PLAIN)
    assert columns(run(engine, msgspec.structs.replace(CONSTRAINED, prompt_logprobs=-1), PLAIN)) == columns(beside_plain)
    assert engine.length(1) == len(PLAIN.prompt) + 9


def test_nobody_goes_step_by_step_without_a_need(engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tripower.backends.picolm.native.engine.Stepwise", None)
    table = run(engine, PLAIN, msgspec.structs.replace(PLAIN, sampling=BANNED))
    drawn = answers_of(table)[1].drawn
    assert not table.reports and not any(token in BANNED.banned for token in drawn[:4])
    assert any(token in BANNED.banned for token in drawn[4:])


def test_a_prompt_that_is_told_of_passes_in_pieces_that_the_logits_have_room_for(engine: NativeEngine) -> None:
    member = Member(prompt=tuple(tokens_of(3, 90)), remaining=2, sampling=GREEDY, prompt_logprobs=1)
    table = run(engine, member)
    pieces = table.evaluated[: table.steps_done, 0].tolist()
    assert sum(pieces) == 91 and max(pieces) == engine._usable.drawn_max
    answer = answers_of(table)[0]
    assert [told.token for told in answer.prompt] == list(member.prompt[1:]) and not answer.told
    assert_close(answer.prompt, expected_answer(engine, member).prompt)


def test_what_is_recomputed_after_the_prompt_is_not_told_of(engine: NativeEngine) -> None:
    tokens = tokens_of(4, 20)
    table = run(engine, PLAIN, slots=[CONSTRAINED.slot(pending=tokens, prompt_length=12)])
    assert [told.token for told in answers_of(table)[0].prompt] == tokens[1:12]


@pytest.mark.parametrize("turns", [1, 4, 30])
def test_a_job_that_gives_way_or_stops_is_taken_up_where_it_was(engine: NativeEngine, turns: int) -> None:
    whole = answers_of(run(engine, CONSTRAINED, PLAIN))
    for sequence in range(2):
        engine.open_sequence(sequence)
    slots = [CONSTRAINED.slot(), PLAIN.slot()]
    first = new_table(engine, *slots)
    first.request_turn()
    running = engine.run(first)
    for boundaries, _ in enumerate(running, 1):
        assert first.steps_done == boundaries and not first.turn
        first.request_turn()
        if boundaries == turns:
            first.request_stop()
    parts = [first]
    if going_on := [slot for slot in range(2) if first.pending[slot]]:
        rest = [
            slots[slot]
            | {
                "sequence": slot,
                "pending": first.pending[slot],
                "remaining": int(first.remaining[slot]),
                "output_index": int(first.output_index[slot]),
                "history": first.history[slot],
                "prompt_length": len((CONSTRAINED, PLAIN)[slot].prompt),
            }
            for slot in going_on
        ]
        assert first.steps_done == turns and picky_of(first, 0).accepted == answers_of(first)[0].drawn
        parts.append(new_table(engine, *rest))
        for _ in engine.run(parts[1]):
            pass
    found = [answers_of(part) for part in parts]
    for slot in range(2):
        pieces = [found[0][slot], *([found[1][going_on.index(slot)]] if slot in going_on else [])]
        joined = Answer([], [], [])
        for piece in pieces:
            joined = Answer(joined.drawn + piece.drawn, joined.told + piece.told, joined.prompt + piece.prompt)
        assert joined == whole[slot]


def test_a_stop_from_a_constraint_ends_the_job_behind_its_step(engine: NativeEngine) -> None:
    slot = CONSTRAINED.slot()
    engine.open_sequence(0)
    table = new_table(engine, slot)
    slot["constraint"].accept = lambda token: table.request_stop()
    assert list(engine.run(table)) == [] and answers_of(table)[0].drawn and table.steps_done < 5
    assert engine.length(0) == int(table.position[0]) and len(table.pending[0]) == 1


class Failing(Picky):
    """Fails when the answer has `after` tokens."""

    def __init__(self, seed: int, after: int, where: str) -> None:
        super().__init__(seed)
        self.after, self.where = after, where

    def mask(self) -> Any:
        if self.where == "mask" and len(self.accepted) == self.after:
            raise ArithmeticError("the automaton is broken")
        return super().mask()

    def accept(self, token: int) -> None:
        if self.where == "accept" and len(self.accepted) == self.after:
            raise ArithmeticError("the automaton is broken")
        super().accept(token)


def test_a_constraint_that_cannot_say_what_may_come_ends_its_own_answer(engine: NativeEngine) -> None:
    whole = answers_of(run(engine, CONSTRAINED, PLAIN))
    broken = CONSTRAINED.slot(constraint=Failing(5, 3, "mask"))
    found = answers_of(run(engine, CONSTRAINED, PLAIN, slots=[broken, PLAIN.slot()]))
    assert found[0].drawn == [*whole[0].drawn[:3], INVALID_LOGITS] and found[1] == whole[1]


def test_a_job_that_fails_leaves_everything_at_the_last_step_that_was_told(
    engine: NativeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Member(prompt=CONSTRAINED.prompt, remaining=8, sampling=SAMPLED, constraint=6, logprobs=0)
    whole = answers_of(run(engine, CONSTRAINED, told))
    real, calls = stepwise.token_logprobs, iter(range(1000))

    def fail_late(*arguments: Any) -> Any:
        if next(calls) == len(CONSTRAINED.prompt) + 6:
            raise ArithmeticError("no memory")
        return real(*arguments)

    monkeypatch.setattr(stepwise, "token_logprobs", fail_late)
    for sequence in range(2):
        engine.open_sequence(sequence)
    table = new_table(engine, CONSTRAINED.slot(), told.slot())
    with pytest.raises(ArithmeticError):
        list(engine.run(table))
    found = answers_of(table)
    assert 0 < len(found[0].drawn) < 8
    for slot in range(2):
        assert found[slot].drawn == whole[slot].drawn[: len(found[slot].drawn)] == picky_of(table, slot).accepted
        assert engine.length(slot) == table.position[slot] and table.pending[slot] == found[slot].drawn[-1:]
        assert table.history[slot][len(CONSTRAINED.prompt) :] == found[slot].drawn
    monkeypatch.undo()
    before = table.steps_done
    list(engine.run(table))  # the same table goes on
    assert table.steps_done > before
    assert [answer.drawn for answer in answers_of(table)] == [answer.drawn for answer in whole]


def test_a_constraint_that_loses_a_token_fails_the_job_after_its_step(engine: NativeEngine) -> None:
    whole = answers_of(run(engine, CONSTRAINED, CONSTRAINED))
    for sequence in range(2):
        engine.open_sequence(sequence)
    table = new_table(engine, CONSTRAINED.slot(), CONSTRAINED.slot(constraint=Failing(5, 2, "accept")))
    with pytest.raises(ArithmeticError):
        list(engine.run(table))
    found = answers_of(table)
    assert found[1].drawn == whole[1].drawn[:3] and engine.length(1) == len(CONSTRAINED.prompt) + 2
    assert picky_of(table, 0).accepted == found[0].drawn


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="this system has no eventfd")
def test_a_step_is_told_of_once_and_with_all_its_reports(engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = StepTable.commit

    def commit(table: StepTable, evaluated: Any, drawn: Any) -> None:
        report = table.reports[table.steps_done][0]
        assert (report.drawn is None) == (drawn[0] == NOT_DRAWN)
        seen.append(drawn[0])
        real(table, evaluated, drawn)

    monkeypatch.setattr(StepTable, "commit", commit)
    engine.open_sequence(0)
    table = new_table(engine, CONSTRAINED.slot())
    descriptor = os.eventfd(0, os.EFD_NONBLOCK)
    table.set_signal_fd(descriptor)
    try:
        list(engine.run(table))
        assert os.eventfd_read(descriptor) == table.steps_done == len(seen)
    finally:
        os.close(descriptor)


def test_a_step_is_told_of_when_the_next_one_needs_python_no_more(
    engine: NativeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    class Noting(Picky):
        def mask(self) -> Any:
            happened.append("mask")
            return super().mask()

        def accept(self, token: int) -> None:
            happened.append("accept")
            super().accept(token)

    monkeypatch.setattr("tripower.backends.picolm.native.stepwise.os.write", lambda descriptor, data: happened.append("tell"))
    engine.open_sequence(0)
    table = new_table(engine, msgspec.structs.replace(CONSTRAINED, prompt_logprobs=-1).slot(constraint=Noting(5)))
    table.set_signal_fd(1)
    list(engine.run(table))
    assert happened == ["mask", *["accept", "mask", "tell"] * (CONSTRAINED.remaining - 1), "accept", "tell"]


def test_what_one_job_asked_for_is_gone_in_the_next(engine: NativeEngine) -> None:
    expected = expected_answer(engine, PLAIN).drawn
    run(engine, CONSTRAINED)
    table, program = run(engine, PLAIN), engine._usable
    assert not table.reports and answers_of(table)[0].drawn == expected
    assert not program.sampling.records["mask"][0] and not np.any(program.slots.all_rows)
