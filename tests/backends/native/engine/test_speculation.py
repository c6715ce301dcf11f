"""Guesses change how many steps an answer takes, and nothing else: tokens, log probabilities and states keep every bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.native.engine.constrained import Answer, Member, Picky, answers_of
from tests.backends.native.engine.rigs import (
    GREEDY,
    SAMPLED,
    VOCABULARY,
    build_engine,
    logits_alone,
    new_table,
    same_bits,
    tokens_of,
)
from tests.drafters import Failing, Resting, Teller
from tripower.backends.picolm.native.drafts import StepDrafts
from tripower.backends.picolm.native.engine import NativeEngine
from tripower.backends.picolm.native.program import Program
from tripower.backends.picolm.native.stepwise import Stepwise
from tripower.runtime.engine import StepTable
from tripower.runtime.engine.drafting import ALONE, Beside
from tripower.runtime.engine.drafts import SPARE_TOKENS
from tripower.runtime.engine.row_costs import RowCosts
from tripower.runtime.speculation import SpeculationSettings, Strategy, make_drafter

PLAIN_SAMPLED = msgspec.structs.replace(SAMPLED, repeat_penalty=1.0, presence_penalty=0.0)
BIASED = msgspec.structs.replace(GREEDY, logit_bias=((3, 2.0), (9, -1.0)))
COUNTING = msgspec.structs.replace(GREEDY, frequency_penalty=0.3, repeat_penalty=1.3)
BANNED = msgspec.structs.replace(SAMPLED, banned=tuple(range(0, VOCABULARY, 2)), banned_until=4)
ENDS = frozenset(range(0, VOCABULARY, 9))


@pytest.fixture(scope="module")
def engine(tiny_model: Any) -> Iterator[NativeEngine]:
    made = build_engine(tiny_model("llama", layers=2), threads=2, slots_max=4, sequences_max=8)
    yield made
    made.close()


def run(engine: NativeEngine, members: list[Member], drafters: list[Any], **limits: Any) -> StepTable:
    """One job over all members, to its end."""
    for sequence in range(len(members)):
        engine.open_sequence(sequence)
    slots = [member.slot(drafter=drafter) for member, drafter in zip(members, drafters, strict=True)]
    table = new_table(engine, *slots, **limits)
    for _ in engine.run(table):
        pass
    return table


def alone(engine: NativeEngine, member: Member) -> Answer:
    return answers_of(run(engine, [member], [None]))[0]


MEMBERS = st.builds(
    Member,
    prompt=st.builds(lambda seed, length: tuple(tokens_of(seed, length)), st.integers(0, 3), st.integers(1, 30)),
    remaining=st.integers(0, 20),
    sampling=st.sampled_from([GREEDY, PLAIN_SAMPLED, SAMPLED, BIASED, COUNTING, BANNED]),
    constraint=st.sampled_from([None, None, 1, 2]),
    logprobs=st.sampled_from([-1, -1, 0, 3]),
    prompt_logprobs=st.sampled_from([-1, -1, 2]),
    ends=st.sampled_from([frozenset[int](), ENDS]),
)
GUESSING = st.tuples(st.integers(1, 16), st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.integers(0, 99))


@settings(deadline=None, max_examples=60)
@given(
    members=st.lists(st.tuples(MEMBERS, st.none() | GUESSING), min_size=1, max_size=4),
    limits=st.sampled_from([{}, {"rows_max": 9}, {"rows_max": 20, "mixed_rows": 3}, {"rows_max": 4}]),
)
def test_whoever_guesses_and_however_well_everybody_has_the_bits_of_plain_decoding(
    engine: NativeEngine, members: list[tuple[Member, Any]], limits: dict[str, Any]
) -> None:
    expected = [alone(engine, member) for member, _ in members]
    drafters = [
        None if how is None else Teller(answer.drawn, width=how[0], wrong=how[1], seed=how[2])
        for (_, how), answer in zip(members, expected, strict=True)
    ]
    table = run(engine, [member for member, _ in members], drafters, **limits)
    assert answers_of(table) == expected
    for slot, ((member, _), answer, drafter) in enumerate(zip(members, expected, drafters, strict=True)):
        drawn = answer.drawn
        assert engine.length(slot) == len(member.prompt) + max(len(drawn) - 1, 0)
        if drafter is not None:
            assert drafter.told == drawn
        if member.constraint is not None:
            told = table.constraint[slot]
            assert isinstance(told, Picky) and told.accepted == [token for token in drawn if token not in member.ends]


PROMPT = tuple(tokens_of(5, 20))


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN_SAMPLED, SAMPLED])
def test_right_guesses_save_steps(engine: NativeEngine, sampling: Any) -> None:
    member = Member(prompt=PROMPT, remaining=21, sampling=sampling)
    drawn = alone(engine, member).drawn
    table = run(engine, [member], [Teller(drawn, width=4)])
    assert table.steps_done == 1 + 4  # the prompt's, and five tokens in each
    assert [table.proposed[step][0] for step in range(1, 5)] == [4] * 4 and 0 not in table.proposed
    assert [len(table.runs[step][0]) for step in range(1, 5)] == [4] * 4
    assert table.evaluated[1:5, 0].tolist() == [5] * 4


def test_rows_of_wrong_guesses_are_not_kept(engine: NativeEngine) -> None:
    member = Member(prompt=PROMPT, remaining=9, sampling=GREEDY)
    drawn = alone(engine, member).drawn
    table = run(engine, [member], [Teller(drawn, width=3, wrong=1.0)])
    assert table.steps_done == 9 and table.evaluated[1:9, 0].tolist() == [1] * 8
    assert [table.proposed.get(step, {}).get(0, 0) for step in range(9)] == [0, 3, 3, 3, 3, 3, 2, 1, 0]


def test_everybody_has_a_row_and_the_guesses_get_what_is_left(engine: NativeEngine) -> None:
    members = [Member(prompt=PROMPT[slot : slot + 2], remaining=30, sampling=GREEDY) for slot in range(4)]
    answers = [alone(engine, member).drawn for member in members]
    drafters = [*(Teller(answer, width=16) for answer in answers[:3]), None]
    table = run(engine, members, drafters, steps=3, rows_max=10)
    assert table.proposed == {1: {0: 6}, 2: {1: 6}}
    assert table.evaluated[1:3, :4].tolist() == [[7, 1, 1, 1], [1, 7, 1, 1]]


def test_who_is_furthest_behind_guesses_first(engine: NativeEngine) -> None:
    """So after a step whose guesses went to one of them, the next step's go to the other."""
    members = [Member(prompt=PROMPT[slot : slot + 2], remaining=30, sampling=GREEDY) for slot in range(2)]
    drafters = [Teller(alone(engine, member).drawn, width=16) for member in members]
    table = run(engine, members, drafters, steps=5, rows_max=6)
    turns = [set(table.proposed[step]) for step in range(1, 5)]
    assert turns == [turns[0], turns[1]] * 2 and turns[0] != turns[1]


def continued(engine: NativeEngine, table: StepTable, *, steps: int, rows_max: int = 10) -> StepTable:
    """The next job over the same members."""
    slots = [
        {
            "sequence": int(table.sequence[slot]), "pending": table.pending[slot], "remaining": int(table.remaining[slot]),
            "output_index": int(table.output_index[slot]), "sampling": table.sampling[slot],
            "history": table.history[slot], "prompt_length": table.prompt_length[slot], "drafter": table.drafter[slot],
            "constraint": table.constraint[slot], "logprobs": table.logprobs[slot],
        }
        for slot in range(table.slots)
        if table.pending[slot]
    ]  # fmt: skip
    following = new_table(engine, *slots, steps=steps, rows_max=rows_max, mixed_rows=rows_max)
    for _ in engine.run(following):
        pass
    return following


def test_while_a_drafter_rests_the_native_loop_runs_ahead(engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member(prompt=PROMPT, remaining=24, sampling=SAMPLED)
    drawn = alone(engine, member).drawn
    drafter = Resting(drawn, rest=6, width=2)
    entered = 0
    go = Program.go

    def counting(program: Program) -> None:
        nonlocal entered
        entered += 1
        go(program)

    monkeypatch.setattr(Program, "go", counting)
    table = run(engine, [member], [drafter])
    assert answers_of(table)[0].drawn == drawn == drafter.told
    assert entered < table.steps_done - 8
    assert table.control[2] == 64  # STEPS_MAX


def test_a_drafter_hears_what_other_sequences_states_add_to_a_step(engine: NativeEngine) -> None:
    heard: list[float] = []

    class Hearing(Teller):
        def propose(self, most: int, beside: Beside = ALONE) -> Sequence[int]:
            heard.append(beside.reading)
            return super().propose(most, beside)

    engine.info = msgspec.structs.replace(engine.info, weight_bytes=1000, state_bytes_per_token=10)
    engine.take_row_costs(engine.info.row_costs)
    members = [Member(prompt=PROMPT, remaining=8, sampling=GREEDY) for _ in range(2)]
    drawn = alone(engine, members[0]).drawn
    run(engine, members[:1], [Hearing(drawn)])
    assert heard and not any(heard)
    heard.clear()
    run(engine, members, [Hearing(drawn), Hearing(drawn)])
    assert heard[0] == pytest.approx(0.01 * len(PROMPT)) and heard[0] < heard[-1]


def test_a_drafter_that_had_nothing_for_a_while_is_asked_again(engine: NativeEngine) -> None:
    class Late(Teller):
        """Has nothing before it was told so many tokens."""

        def propose(self, most: int, beside: Beside = ALONE) -> Sequence[int]:
            return super().propose(most, beside) if len(self.told) >= 12 else ()

    member = Member(prompt=PROMPT, remaining=40, sampling=GREEDY)
    drawn = alone(engine, member).drawn
    table = run(engine, [member], [Late(drawn, width=4)])
    assert answers_of(table)[0].drawn == drawn
    assert sum(guesses[0] for guesses in table.proposed.values()) >= 12


@pytest.mark.parametrize("when", ["asked", "told"])
def test_a_drafter_that_fails_costs_its_guesses_only(engine: NativeEngine, when: str, caplog: pytest.LogCaptureFixture) -> None:
    member = Member(prompt=PROMPT, remaining=8, sampling=GREEDY)
    table = run(engine, [member], [Failing(when=when)])
    assert answers_of(table)[0].drawn == alone(engine, member).drawn
    assert table.drafter == [None] and "a drafter failed" in caplog.text


def test_a_job_ends_when_more_guesses_were_right_than_it_has_room_for(engine: NativeEngine) -> None:
    member = Member(prompt=PROMPT, remaining=150, sampling=GREEDY)
    expected = answers_of(run(engine, [member], [None], steps=200))[0].drawn
    table = run(engine, [member], [Teller(expected, width=15)], steps=8)
    first = answers_of(table)[0].drawn
    assert table.steps_done < 8 and table.pending[0] and len(first) == table.steps_done + 8 + SPARE_TOKENS
    assert engine.pages_free > 0
    following = continued(engine, table, steps=64, rows_max=64)
    assert first + answers_of(following)[0].drawn == expected


class Tripwire(Teller):
    """Stops the job, or fails it, when it has been told so many tokens."""

    def __init__(self, answer: list[int], at: int, act: Any, **how: Any) -> None:
        super().__init__(answer, **how)
        self._at, self._act = at, act

    def accept(self, tokens: Any, proposed: int) -> None:
        super().accept(tokens, proposed)
        if len(self.told) >= self._at:
            self._act()


@settings(deadline=None, max_examples=30)
@given(
    member=st.builds(
        Member,
        prompt=st.just(PROMPT),
        remaining=st.just(16),
        sampling=st.sampled_from([GREEDY, SAMPLED]),
        constraint=st.sampled_from([None, 4]),
        logprobs=st.sampled_from([-1, 2]),
    ),
    at=st.integers(1, 14),
    how=GUESSING,
)
def test_a_job_that_is_stopped_anywhere_goes_on_with_the_same_bits(
    engine: NativeEngine, member: Member, at: int, how: tuple[int, float, int]
) -> None:
    expected = alone(engine, member)
    box: list[StepTable] = []
    drafter = Tripwire(expected.drawn, at, lambda: box[0].request_stop(), width=how[0], wrong=how[1], seed=how[2])
    engine.open_sequence(0)
    box.append(new_table(engine, member.slot(drafter=drafter)))
    for _ in engine.run(box[0]):
        pass
    parts = [answers_of(box[0])[0]]
    assert len(parts[0].drawn) >= min(at, 16)
    if len(parts[0].drawn) < 16:
        parts.append(answers_of(continued(engine, box[0], steps=32))[0])
    assert [token for part in parts for token in part.drawn] == expected.drawn
    assert [told for part in parts for told in part.told] == expected.told


@settings(deadline=None, max_examples=40)
@given(
    sampling=st.sampled_from([GREEDY, SAMPLED]),
    constraint=st.sampled_from([None, 4]),
    step=st.integers(0, 6),
    where=st.sampled_from(["walk", "_reports", "put"]),
    how=GUESSING,
)
def test_a_step_that_fails_anywhere_leaves_what_was_committed_and_the_next_job_the_same_bits(
    engine: NativeEngine, sampling: Any, constraint: int | None, step: int, where: str, how: tuple[int, float, int]
) -> None:
    member = Member(prompt=PROMPT, remaining=16, sampling=sampling, constraint=constraint, logprobs=1)
    expected = alone(engine, member)
    drafter = Teller(expected.drawn, width=how[0], wrong=how[1], seed=how[2])
    engine.open_sequence(0)
    table = new_table(engine, member.slot(drafter=drafter))
    owner = Stepwise if where == "_reports" else StepDrafts
    real, calls = getattr(owner, where), []

    def failing(*arguments: Any) -> Any:
        calls.append(1)
        result = real(*arguments)
        if len(calls) > step:
            raise RuntimeError("cut here")
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, where, failing)
        try:
            for _ in engine.run(table):
                pass
        except RuntimeError:
            pass
    first = answers_of(table)[0]
    assert first.drawn == expected.drawn[: len(first.drawn)]
    assert engine.length(0) == table.position[0]
    rest = answers_of(continued(engine, table, steps=32))[0] if table.pending[0] else Answer([], [], [])
    assert first.drawn + rest.drawn == expected.drawn and first.told + rest.told == expected.told
    if constraint is not None:
        told = table.constraint[0]
        assert isinstance(told, Picky) and told.accepted == expected.drawn
    assert same_bits(engine.logits(0, [1]), logits_alone(engine, [*PROMPT, *expected.drawn[:-1], 1])[-1:])


def test_a_plain_neighbour_is_not_slowed_by_more_than_a_twentieth(tiny_model: Any) -> None:
    engine = build_engine(tiny_model("llama", layers=2), row_costs=(1.0, 1.2, 1.6, 2.4, 4.4), rows_max=64)
    costs = RowCosts(engine.info.row_costs)
    members = [Member(prompt=PROMPT[slot : slot + 2], remaining=60, sampling=GREEDY) for slot in range(2)]
    answers = [alone(engine, member).drawn for member in members]
    table = run(engine, members, [Teller(answers[0], width=8, wrong=0.5), None])
    steps = range(1, table.steps_done)
    sat = [step for step in steps if table.evaluated[step, 1]]
    cost = sum(costs.step(2 + table.proposed.get(step, {}).get(0, 0)) for step in sat if table.evaluated[step, 0])
    plain = sum(costs.step(2) for step in sat if table.evaluated[step, 0])
    assert any(table.proposed) and plain < cost <= 1.05 * plain
    engine.close()


@pytest.mark.long
@pytest.mark.parametrize("sampling", [GREEDY, msgspec.structs.replace(SAMPLED, temperature=0.6)])
def test_a_real_model_says_what_it_would_have_said_whatever_guesses(smollm2_path: Path, sampling: Any) -> None:
    engine = build_engine(smollm2_path, threads=2, slots_max=4, sequences_max=4, context=400)
    text = [[int(token) for token in range(2000 + 40 * slot, 2040 + 40 * slot)] for slot in range(4)]
    members = [
        Member(prompt=(*prompt, *prompt[:20]), remaining=60, sampling=sampling, logprobs=2 if slot == 1 else -1)
        for slot, prompt in enumerate(text)
    ]
    expected = [alone(engine, member) for member in members]
    lookup = SpeculationSettings(strategy=Strategy.NGRAM_CONTEXT)
    for width in (1, 3, 8, 15):
        drafters: list[Any] = [
            make_drafter(lookup, members[0].prompt),
            Teller(expected[1].drawn, width=width, wrong=0.3, seed=width, vocabulary=49_000),
            Teller(expected[2].drawn, width=width, wrong=1.0, seed=width, vocabulary=49_000),
            None,
        ]
        table = run(engine, members, drafters, steps=64)
        assert answers_of(table) == expected
        assert any(table.runs.values())
    engine.close()
