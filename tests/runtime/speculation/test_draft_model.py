"""A draft model's guesses follow the text whatever was drawn, and what is not needed of them is freed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.speculation.drafts import GREEDY, OtherToy, answer_of, source_of
from tripower.backends.toy import ToyEngine
from tripower.runtime.engine import SamplingParameters, StepTable
from tripower.runtime.engine.contract import EngineInfo
from tripower.runtime.engine.row_costs import DEFAULT_ROW_COSTS
from tripower.runtime.speculation import DraftedEngine, DraftModel, FixedDrafter, ModelSource
from tripower.runtime.speculation.draft_model import ROWS_AT_A_TIME

PROMPT = list(b"once upon a time")
SAMPLED = SamplingParameters(temperature=0.7, seed=5)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6), st.integers(65, 90)), max_size=12))
def test_a_guess_is_what_the_draft_would_say_of_the_text_whatever_came_before(rounds: list[tuple[int, int, int]]) -> None:
    engine = OtherToy(every=3)
    source, text = source_of(engine, PROMPT), list(PROMPT)
    source.push(65)
    text.append(65)
    for most, right, token in rounds:
        guesses = source.guess(most)
        assert guesses == answer_of(engine, text, most)
        drawn = [*guesses[:right], token]  # a capital, which no toy says
        for each in drawn:
            source.push(each)
        text += drawn
        assert engine.length(0) <= len(text)
    assert engine.sequences() == ([0] if rounds else [])


def test_a_step_that_is_asked_for_again_gets_the_same_guesses_for_nothing() -> None:
    engine = OtherToy()
    source = source_of(engine, PROMPT)
    source.push(65)
    first, steps, spent = source.guess(4), engine.steps, source.spent
    assert source.guess(4) == first and source.guess(2) == first[:2]
    assert (engine.steps, source.spent) == (steps, spent)


def test_what_was_guessed_right_is_not_evaluated_again() -> None:
    engine = OtherToy()
    source = source_of(engine, PROMPT)
    source.push(65)
    guesses = source.guess(4)
    rows = engine.rows
    for token in (*guesses, 66):
        source.push(token)
    source.guess(1)
    assert engine.rows - rows == 2  # the last guess, which was not evaluated, and what came behind it


def test_what_a_guess_costs_counts_what_has_come_since_and_not_the_prompt() -> None:
    engine = OtherToy()
    engine.info = EngineInfo(
        backend="toy", architecture="toy", context_max=99, vocabulary_size=257, sequences_max=1, row_costs=(1.0, 1.5, 2.0)
    )
    source = source_of(engine, PROMPT, cost=0.2)
    for token in (65, 66):
        source.push(token)
    assert source.first_cost == pytest.approx(0.2 * 1.5)
    source.guess(3)
    assert source.spent == pytest.approx(0.2 * 1.5 + 2 * 0.2)
    source.push(1)  # wrong
    assert source.spent == 0 and source.first_cost == pytest.approx(0.2)


def test_a_long_prompt_is_read_in_parts_and_guesses_begin_behind_it() -> None:
    engine = OtherToy()
    source = source_of(engine, [7] * (2 * ROWS_AT_A_TIME + 9))
    source.push(65)
    assert [source.guess(2), engine.length(0)] == [[], ROWS_AT_A_TIME]
    assert [source.guess(2), engine.length(0)] == [[], 2 * ROWS_AT_A_TIME]
    assert source.spent == 0
    source.push(66)
    source.push(67)
    assert len(source.guess(2)) == 2 and source.spent == pytest.approx(0.1 * DEFAULT_ROW_COSTS.step(3) + 0.1)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_a_draft_that_agrees_draws_what_the_target_draws(sampling: SamplingParameters) -> None:
    source = ModelSource(DraftModel(ToyEngine(), step_cost=0.1), PROMPT, sampling)
    source.sequence = 3
    answer = answer_of(ToyEngine(), PROMPT, 9, sampling)
    source.push(answer[0])
    assert source.guess(8) == answer[1:]


@pytest.mark.parametrize(("sure", "count"), [(0.0, 5), (0.2, 5), (0.999, 0)])
def test_a_guess_ends_in_front_of_a_token_that_is_not_likely_enough(sure: float, count: int) -> None:
    source = source_of(OtherToy(), PROMPT, sure=sure)
    source.push(65)
    assert len(source.guess(5)) == count


def test_guesses_end_with_the_context_of_the_draft() -> None:
    source = source_of(OtherToy(context=len(PROMPT) + 3), PROMPT)
    source.push(65)
    assert len(source.guess(9)) == 3
    for token in (1, 2, 3):
        source.push(token)
    assert source.guess(9) == []


def test_a_draft_that_fails_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    engine = OtherToy()
    source = source_of(engine, PROMPT)
    source.push(65)
    engine.failing = True
    assert source.guess(3) == [] and source.lost and "the draft model failed" in caplog.text
    engine.failing = False
    source.push(66)
    assert source.guess(3) == []


@pytest.fixture
def pair() -> Iterator[tuple[DraftedEngine, OtherToy, OtherToy]]:
    """An engine with a draft, its target and its draft."""
    target, draft = OtherToy(), OtherToy(every=4)
    made = DraftedEngine(target, DraftModel(draft, step_cost=0.1))
    yield made, target, draft
    made.close()
    assert target.closed and draft.closed


def run(engine: DraftedEngine, members: dict[int, list[int]], *, count: int = 12, width: int = 4) -> dict[int, list[int]]:
    """What sequences with these prompts, each open, answer in one job."""
    table = StepTable(slots_max=8, steps_max=64, rows_max=64)
    table.clear(steps_max=64)
    for sequence, prompt in members.items():
        source = ModelSource(engine.draft, prompt, GREEDY)
        table.add(
            sequence=sequence, position=engine.length(sequence), pending=prompt[engine.length(sequence) :], remaining=count,
            output_index=0, sampling=GREEDY, ends=frozenset(), history=(), prompt_length=len(prompt),
            drafter=FixedDrafter(source, width_max=width),
        )  # fmt: skip
    for _ in engine.run(table):
        pass
    said: dict[int, list[int]] = {sequence: [] for sequence in members}
    for step in range(table.steps_done):
        for slot, sequence in enumerate(members):
            if table.drawn[step, slot] >= 0:
                said[sequence] += [*table.runs.get(step, {}).get(slot, ()), int(table.drawn[step, slot])]
    assert any(table.runs.values())
    return said


def test_everybody_in_a_job_has_a_state_of_the_draft_and_closing_frees_it(
    pair: tuple[DraftedEngine, OtherToy, OtherToy],
) -> None:
    engine, target, draft = pair
    prompts = {5: PROMPT, 6: list(b"the other one")}
    for sequence in prompts:
        engine.open_sequence(sequence)
    assert run(engine, prompts) == {sequence: answer_of(OtherToy(), prompt, 12) for sequence, prompt in prompts.items()}
    assert draft.sequences() == target.sequences() == [5, 6]
    engine.close_sequence(5)
    assert draft.sequences() == target.sequences() == [6]
    engine.open_sequence(6)  # anew
    assert draft.sequences() == [] and engine.length(6) == 0


def test_who_starts_from_another_sequence_starts_from_its_draft_too(pair: tuple[DraftedEngine, OtherToy, OtherToy]) -> None:
    engine, _, draft = pair
    engine.open_sequence(1)
    said = run(engine, {1: PROMPT})[1]
    engine.retain(1, len(PROMPT))
    assert draft.length(1) == len(PROMPT)
    engine.fork(1, 2, len(PROMPT) - 2)
    assert draft.length(2) == len(PROMPT) - 2
    rows = draft.rows
    assert run(engine, {2: PROMPT})[2] == said
    assert draft.rows - rows < len(PROMPT) + 12
    engine.trim(2, 3)
    assert (engine.length(2), draft.length(2)) == (3, 3)


def test_memory_is_that_of_both() -> None:
    def with_bytes(weights: int, state: int) -> ToyEngine:
        engine = ToyEngine()
        engine.info = EngineInfo(
            backend="toy", architecture="toy", context_max=99, vocabulary_size=257, sequences_max=1,
            weight_bytes=weights, state_bytes_per_token=state,
        )  # fmt: skip
        return engine

    info = DraftedEngine(with_bytes(100, 10), DraftModel(with_bytes(20, 3), step_cost=1.0)).info
    assert (info.weight_bytes, info.state_bytes_per_token) == (120, 13)
