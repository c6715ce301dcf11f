"""Guesses in the Python step loop, on engines that draw in Python: the toy, and torch on a tiny model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.backends.native.engine.constrained import Answer, answers_of
from tests.constraints import Script
from tests.drafters import Teller
from tripower.backends.toy import ToyEngine
from tripower.runtime.engine import SamplingParameters, StepRow, StepTable, run_steps
from tripower.runtime.engine.row_costs import costs_of
from tripower.runtime.engine.step_table import INVALID_LOGITS
from tripower.runtime.kernel.errors import DeviceFailed

GREEDY = SamplingParameters(temperature=0.0)
SAMPLED = SamplingParameters(temperature=0.9, top_p=0.95, top_k=40, seed=77, repeat_penalty=1.2, presence_penalty=0.2)
BANNED = msgspec.structs.replace(GREEDY, banned=tuple(range(0, 96, 2)), banned_until=4)
LETTERS = tuple(range(60, 96))


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence: `constrained` allows half of the letters at each place."""

    prompt: tuple[int, ...]
    remaining: int
    sampling: SamplingParameters
    constrained: bool
    logprobs: int
    ends: frozenset[int]


def run(engine: Any, members: Sequence[Member], drafters: Sequence[Any], *, rows_max: int = 64) -> StepTable:
    """All members in one job, to its end."""
    table = StepTable(slots_max=4, steps_max=64, rows_max=rows_max)
    table.clear(steps_max=64)
    for sequence, (member, drafter) in enumerate(zip(members, drafters, strict=True)):
        engine.open_sequence(sequence)
        script = Script([LETTERS[place % 2 :: 2] for place in range(40)], engine.info.vocabulary_size)
        table.add(
            sequence=sequence, position=0, pending=member.prompt, remaining=member.remaining, output_index=0,
            sampling=member.sampling, ends=member.ends, history=member.prompt, prompt_length=len(member.prompt),
            constraint=script if member.constrained else None, logprobs=member.logprobs, drafter=drafter,
        )  # fmt: skip
    for _ in run_steps(engine, table):
        pass
    return table


MEMBERS = st.builds(
    Member,
    prompt=st.lists(st.integers(0, 95), min_size=1, max_size=20).map(tuple),
    remaining=st.integers(0, 20),
    sampling=st.sampled_from([GREEDY, SAMPLED, BANNED]),
    constrained=st.booleans(),
    logprobs=st.sampled_from([-1, 0, 3]),
    ends=st.sampled_from([frozenset[int](), frozenset(range(0, 96, 9))]),
)
GUESSING = st.tuples(st.integers(1, 16), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 99))
BATCHES = st.lists(st.tuples(MEMBERS, st.none() | GUESSING), min_size=1, max_size=4)


def drafters_for(members: list[tuple[Member, Any]], answers: list[Answer]) -> list[Teller | None]:
    return [
        None if how is None else Teller(answer.drawn, width=how[0], wrong=how[1], seed=how[2])
        for (_, how), answer in zip(members, answers, strict=True)
    ]


@settings(deadline=None, max_examples=60)
@given(members=BATCHES, rows_max=st.sampled_from([4, 9, 64]))
def test_with_and_without_guesses_the_toy_answers_alike(members: list[tuple[Member, Any]], rows_max: int) -> None:
    engine = ToyEngine()
    expected = [answers_of(run(engine, [member], [None]))[0] for member, _ in members]
    drafters = drafters_for(members, expected)
    table = run(engine, [member for member, _ in members], drafters, rows_max=rows_max)
    assert answers_of(table) == expected
    for slot, ((member, _), answer, drafter) in enumerate(zip(members, expected, drafters, strict=True)):
        length = len(member.prompt) + max(len(answer.drawn) - 1, 0)
        assert engine.length(slot) == table.position[slot] == length
        if drafter is not None:
            assert drafter.told == answer.drawn or answer.drawn[-1] == INVALID_LOGITS
        if script := table.constraint[slot]:
            assert isinstance(script, Script) and script.accepted == [
                each for each in answer.drawn if each >= 0 and each not in member.ends
            ]


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])  # it keeps no state
@given(members=BATCHES)
def test_torch_draws_the_same_tokens_with_log_probabilities_as_near_as_its_batches(
    torch_engine: Any, members: list[tuple[Member, Any]]
) -> None:
    expected = [answers_of(run(torch_engine, [member], [None]))[0] for member, _ in members]
    found = answers_of(run(torch_engine, [member for member, _ in members], drafters_for(members, expected)))
    assert [answer.drawn for answer in found] == [answer.drawn for answer in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert np.allclose([each.logprob for each in ours.told], [each.logprob for each in theirs.told], atol=1e-3)


@pytest.fixture
def torch_engine(tiny_model: Any, load_torch: Any) -> Any:
    return load_torch(tiny_model("llama", layers=2), context=256, sequences_max=4)


def test_a_round_evaluates_the_anchor_and_the_guesses_and_keeps_what_was_right() -> None:
    """BK 1.6, check 1: guesses `[10, 20, 30]` where the model picks `10, 99`."""

    class Fixed(ToyEngine):
        asked: list[StepRow] = []  # noqa: RUF012 # one engine

        def step(self, rows: Sequence[StepRow]) -> list[int]:
            [row] = rows
            self.asked.append(row)
            self._append(row.sequence, row.tokens)
            if not row.drafts:
                return [5]
            assert row.run is not None
            row.run.append(10)
            return [99]

    engine = Fixed()
    member = Member(prompt=(1, 2), remaining=9, sampling=GREEDY, constrained=False, logprobs=-1, ends=frozenset({99}))
    table = run(engine, [member], [Teller([5, 10, 20, 30, 40], width=3, vocabulary=VOCABULARY)])
    assert [(row.position, row.tokens, row.drafts) for row in engine.asked] == [(0, (1, 2), 0), (2, (5, 10, 20, 30), 3)]
    assert table.runs == {1: {0: (10,)}} and table.proposed == {1: {0: 3}}
    assert table.drawn[:2, 0].tolist() == [5, 99] and table.evaluated[:2, 0].tolist() == [2, 2]
    assert engine.length(0) == 4  # the two wrong ones are forgotten


@pytest.mark.parametrize(("remaining", "width"), [(6, 4), (4, 2), (2, 0), (1, 0)])
def test_a_draft_leaves_room_for_the_token_that_corrects_it(remaining: int, width: int) -> None:
    """BK T2: a drafter of width 4, and so many tokens to come, of which the first is the prompt's."""
    engine = ToyEngine()
    answer = answers_of(run(engine, [(member := plain(remaining=remaining))], [None]))[0].drawn
    table = run(engine, [member], [Teller(answer, width=4)])
    assert table.proposed.get(1, {}).get(0, 0) == width


def plain(*, remaining: int) -> Member:
    return Member(prompt=(7, 8, 9), remaining=remaining, sampling=GREEDY, constrained=False, logprobs=-1, ends=frozenset())


def test_a_step_that_fails_at_its_end_leaves_every_sequence_as_it_was() -> None:
    class Stubborn(ToyEngine):
        refusing = True

        def trim(self, sequence: int, length: int) -> None:
            super().trim(sequence, length)
            if self.refusing:
                self.refusing = False
                raise DeviceFailed("no", code="state_refused")

    engine, member = Stubborn(), plain(remaining=8)
    table = StepTable(slots_max=1, steps_max=8, rows_max=16)
    table.clear(steps_max=8)
    engine.open_sequence(0)
    table.add(
        sequence=0, position=0, pending=member.prompt, remaining=8, output_index=0, sampling=GREEDY, ends=frozenset(),
        history=(), prompt_length=3, drafter=Teller([0] * 9, width=2, wrong=1.0),
    )  # fmt: skip
    with pytest.raises(DeviceFailed):
        list(run_steps(engine, table))
    assert engine.length(0) == table.position[0] == 3 and table.steps_done == 1


@pytest.mark.parametrize("costs", [(1.0, 1.2, 1.6, 2.4, 4.4), ()])
def test_a_plain_neighbour_is_not_slowed_by_more_than_a_twentieth(costs: tuple[float, ...]) -> None:
    engine = ToyEngine()
    engine.info = msgspec.structs.replace(engine.info, row_costs=costs)
    members = [plain(remaining=60), plain(remaining=60)]
    answer = answers_of(run(engine, members[:1], [None]))[0].drawn
    table = run(engine, members, [Teller(answer, width=8, wrong=0.5), None])
    price = costs_of(costs)
    both = [step for step in range(1, table.steps_done) if table.evaluated[step, 0] and table.evaluated[step, 1]]
    cost = sum(price.step(2 + table.proposed.get(step, {}).get(0, 0)) for step in both)
    assert price.step(2) * len(both) < cost <= 1.05 * price.step(2) * len(both)


VOCABULARY = 257
