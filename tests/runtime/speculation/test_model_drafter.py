"""A drafter that pays for its guesses: it guesses where that is worth it, and no text makes a request slower than it may be."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.speculation.drafts import OtherToy, answer_of, source_of
from tripower.backends.toy import ToyEngine
from tripower.runtime.engine.drafting import Beside
from tripower.runtime.engine.row_costs import RowCosts
from tripower.runtime.engine.row_sharing import LATER_MAX
from tripower.runtime.speculation import SLOWEST, Member, ModelDrafter, Simulation, simulate, simulate_together
from tripower.runtime.speculation.model_drafter import LOAN

PROMPT = list(b"it was a dark and stormy night")
FLAT = RowCosts((1.0, 1.0, 1.2, 2.1, 4.3))
STEEP = RowCosts((1.0, 1.9, 3.7, 7.0, 13.0))


def answer(draft: ToyEngine, count: int, right: float, seed: int = 0) -> list[int]:
    """A text in which this draft is right about so many tokens."""
    chance, said = random.Random(seed), list[int]()
    for _ in range(count):
        [token] = answer_of(draft, [*PROMPT, *said], 1)
        said.append(token if chance.random() < right else 33)
    return said


def drafted(
    output: Sequence[int], draft: OtherToy, costs: RowCosts, *, cost: float, beside: int = 0, width: int = 4
) -> Simulation:
    drafter = ModelDrafter(source_of(draft, PROMPT, cost=cost), costs, width_max=width)
    return simulate(output, drafter, costs, beside=Beside(beside))


def test_a_cheap_draft_that_is_right_saves_what_it_can() -> None:
    draft = OtherToy()
    found = drafted(answer(draft, 200, 1.0), draft, FLAT, cost=0.05)
    assert found.accepted == found.proposed > 120
    assert found.gain > 2


def test_the_gain_is_reckoned_with_what_guessing_costs() -> None:
    draft = OtherToy()
    output = answer(draft, 200, 1.0)
    cheap, dear = (drafted(output, draft, FLAT, cost=cost).gain for cost in (0.05, 0.2))
    assert 1.1 < dear < cheap - 0.4


@pytest.mark.parametrize("costs", [FLAT, STEEP])
def test_a_draft_as_dear_as_its_target_is_never_asked(costs: RowCosts) -> None:
    draft = OtherToy()
    output = answer(ToyEngine(), 100, 1.0)
    found = drafted(output, draft, costs, cost=1.0)
    assert (found.proposed, draft.steps, found.gain) == (0, 0, 1.0)


@settings(deadline=None, max_examples=25)
@given(
    right=st.sampled_from([0.0, 0.3, 0.6, 0.8, 1.0]),
    cost=st.sampled_from([0.01, 0.1, 0.3, 0.7]),
    costs=st.sampled_from([FLAT, STEEP]),
    beside=st.sampled_from([0, 1, 7]),
    width=st.sampled_from([1, 4, 15]),
    seed=st.integers(0, 99),
)
def test_no_text_is_slower_than_it_may_be_or_loses_more_than_a_step_at_any_of_its_tokens(
    right: float, cost: float, costs: RowCosts, beside: int, width: int, seed: int
) -> None:
    draft = OtherToy()
    output = answer(draft, 70, right, seed)
    for count in (5, 20, 45, 70):
        found = drafted(output[:count], OtherToy(), costs, cost=cost, beside=beside, width=width)
        assert found.gain >= SLOWEST - 1e-9 or found.cost <= found.baseline_cost + LOAN


def test_a_draft_that_is_never_right_is_asked_less_and_less() -> None:
    output = answer(OtherToy(), 600, 0.0)
    half, whole = (drafted(output[:count], OtherToy(), FLAT, cost=0.01).proposed for count in (300, 600))
    assert 0 < whole - half < half < 150
    assert drafted(output, OtherToy(), FLAT, cost=0.1).proposed < 10


def test_a_long_prompt_keeps_nobody_from_guessing() -> None:
    draft, prompt = OtherToy(), PROMPT * 100
    output = answer_of(draft, prompt, 150)
    drafter = ModelDrafter(source_of(draft, prompt, cost=0.1), FLAT)
    drafter.accept(output[:1], 0)
    at, steps = 1, 0
    while at < len(output) - 8:
        guesses = drafter.propose(4)
        ahead = 1 if guesses else 9  # an engine runs ahead where nobody had a guess
        for _ in range(ahead):
            drafter.accept(output[at : at + len(guesses) + 1], len(guesses))
            at += len(guesses) + 1
            steps += 1
    assert steps < 130


def test_a_text_that_becomes_easy_is_found_out() -> None:
    draft = OtherToy()
    hard = answer(draft, 300, 0.0)
    easy = answer_of(draft, [*PROMPT, *hard], 300)
    found = drafted([*hard, *easy], draft, FLAT, cost=0.02)
    assert found.accepted > 100


def test_what_was_guessed_and_not_evaluated_is_paid_for_and_learnt_from() -> None:
    draft = OtherToy()
    drafter = ModelDrafter(source_of(draft, PROMPT, cost=0.1), FLAT)
    drafter.accept([65], 0)
    drafter.controller.ledger.plain = 50.0
    guesses = drafter.propose(4)
    assert guesses
    drafter.accept([33], 0)  # a constraint forbade all of them
    ledger = drafter.controller.ledger
    assert ledger.cost == pytest.approx(1 + len(guesses) * 0.1) and ledger.plain == 51
    assert drafter.spent == 0


def test_a_lost_draft_lets_the_engine_run_ahead() -> None:
    draft = OtherToy()
    drafter = ModelDrafter(source_of(draft, PROMPT, cost=0.1), FLAT)
    drafter.accept([65], 0)
    drafter.controller.ledger.plain, draft.failing = 50.0, True
    assert not drafter.propose(4) and drafter.quiet > 1000
    drafter.accept([66], 0)


def test_a_plain_neighbour_waits_no_longer_for_guesses_that_cost() -> None:
    draft = OtherToy()
    text = answer(draft, 300, 0.5)
    plain = Member(text, None)
    drafter = ModelDrafter(source_of(draft, PROMPT, cost=0.1), FLAT)
    simulate_together([plain, Member(text, drafter)], FLAT)
    assert plain.plain < plain.cost <= LATER_MAX * plain.plain
