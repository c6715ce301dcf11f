"""Widths by counts and costs, and the bound on what guessing may cost, against texts that want it broken."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.runtime.engine.drafting import ALONE, Beside
from tripower.runtime.engine.row_costs import RowCosts
from tripower.runtime.speculation import SLOWEST, AdaptiveDrafter, Lookup, SpeculationSettings, Strategy, make_drafter, simulate
from tripower.runtime.speculation.controller import HOT_WIDTHS, Controller

NATIVE = RowCosts((3.9, 3.9, 4.7, 8.3, 16.7))
"""Measured on two cores: milliseconds of SmolLM2's steps."""
EVEN = RowCosts((1.0, 1.1, 1.3, 1.6, 2.4))
DEAR = RowCosts((1.0, 2.0, 4.0, 8.0, 16.0))
FREE = RowCosts((1.0,))
TABLES = (NATIVE, EVEN, DEAR, FREE)
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 9, 4, 5, 1]
RECORDED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))
"""SmolLM2-135M's own greedy answers to prompts of `tripower.bench.workloads`, as token ids."""


def adaptive(prompt: Sequence[int], costs: RowCosts, *, width_max: int = 8, grows: bool = True) -> AdaptiveDrafter:
    return AdaptiveDrafter(Lookup(prompt, grows=grows), costs, width_max=width_max)


class Spiteful:
    """An answer made while it is drafted: what is guessed becomes true as `plan` says, and is wrong otherwise."""

    def __init__(self, plan: Iterator[bool]) -> None:
        self._plan = plan

    def answer(self, drafter: AdaptiveDrafter, costs: RowCosts, steps: int) -> Iterator[tuple[float, float]]:
        """After each step, what steps have cost, and what plain ones would have."""
        drafter.accept([1], 0)
        cost = plain = 0.0
        for step in range(steps):
            draft = list(drafter.propose(64))
            right = 0
            while right < len(draft) and next(self._plan, False):
                right += 1
            drafter.accept([*draft[:right], 1000 + step], len(draft))
            cost += costs.step(1 + len(draft))
            plain += 1 + right
            yield cost, plain


def counted(first: int) -> list[int]:
    """A list of counted numbers: what stands between the numbers repeats, so that a suffix always matches and what follows is new."""
    return [token for number in range(64) for token in (7, 8, 9, first + number)]


@pytest.mark.parametrize("costs", TABLES)
@settings(deadline=None, max_examples=25)
@given(plan=st.lists(st.booleans(), max_size=200), width=st.integers(1, 64))
def test_no_answer_is_slower_than_the_bound_at_any_of_its_tokens(costs: RowCosts, plan: list[bool], width: int) -> None:
    drafter = adaptive([1, 1000, 1, 1000] * 5, costs, width_max=width)
    for cost, plain in Spiteful(iter(plan)).answer(drafter, costs, 60):
        assert cost * SLOWEST <= plain + 1e-9


@pytest.mark.parametrize("costs", TABLES)
@settings(deadline=None, max_examples=30)
@given(
    prompt=st.lists(st.integers(0, 4), max_size=40),
    output=st.lists(st.integers(0, 4), max_size=150),
    beside=st.sampled_from([0, 1, 3, 15]),
    prompts=st.sampled_from([0, 24]),
)
def test_texts_of_few_tokens_stay_within_the_bound(
    costs: RowCosts, prompt: list[int], output: list[int], beside: int, prompts: int
) -> None:
    """Few different tokens: everything seems to have stood there before."""
    result = simulate(output, adaptive(prompt, costs), costs, beside=Beside(beside, prompts, 0.5 * beside))
    assert result.cost * SLOWEST <= result.baseline_cost + 1e-9


@pytest.mark.parametrize("strategy", ["ngram-context", "prompt-lookup"])
@pytest.mark.parametrize("costs", TABLES)
@pytest.mark.parametrize(
    "make",
    [
        lambda: (counted(1000), counted(1001)),
        lambda: ([], counted(1000)),
        lambda: ([1, 2] * 50, [x for n in range(64) for x in (1, 2, 100 + n)]),
        lambda: (list(range(50)), [*range(50), *range(500, 700)]),
        lambda: (list(range(300)), [x for n in range(0, 300, 3) for x in (n, n + 1, 900)]),
        lambda: ([], random.Random(5).choices(range(3), k=400)),
        lambda: ([], [5] * 40 + random.Random(6).choices(range(3), k=400)),
    ],
    ids=[
        "counted in the prompt",
        "counted",
        "every third differs",
        "copies, then does not",
        "edits often",
        "noise",
        "a loop, then noise",
    ],
)
def test_texts_made_to_fool_it_stay_within_the_bound(
    make: Callable[[], tuple[list[int], list[int]]], costs: RowCosts, strategy: str
) -> None:
    prompt, output = make()
    drafter = make_drafter(SpeculationSettings(strategy=Strategy(strategy), draft_max=16), prompt, costs)
    assert drafter is not None
    result = simulate(output, drafter, costs)
    assert result.cost * SLOWEST <= result.baseline_cost + 1e-9


def test_noise_fools_a_fixed_width() -> None:
    """What the bound is for: the same text that the test above passes."""
    drafter = make_drafter(SpeculationSettings(adaptive=False, draft_max=8), [], NATIVE)
    assert drafter is not None
    assert simulate(random.Random(5).choices(range(3), k=400), drafter, NATIVE).gain < 0.7


@pytest.mark.parametrize("costs", [NATIVE, EVEN])
def test_a_copy_is_worth_nearly_what_the_table_allows(costs: RowCosts) -> None:
    text = list(range(200))
    result = simulate([999, *text], adaptive([999, *text], costs), costs)
    best = max((1 + width) / costs.step(1 + width) for width in range(9))
    assert result.gain > 0.8 * best


@pytest.mark.parametrize("costs", [NATIVE, EVEN])
def test_recorded_answers_to_repetitive_work_are_faster(costs: RowCosts) -> None:
    gains: dict[str, list[float]] = {}
    for each in RECORDED:
        result = simulate(each["output"], adaptive(each["prompt"], costs), costs)
        gains.setdefault(each["work"], []).append(result.gain)
    repetitive = [gain for work in ("edit", "quote", "code", "json") for gain in gains[work]]
    assert math.prod(repetitive) ** (1 / len(repetitive)) > 1.75
    assert gains["high-acceptance"][0] > 2.8
    assert min(gain for each in gains.values() for gain in each) > SLOWEST


def test_rows_that_cost_their_full_price_are_not_taken_for_bad_guesses() -> None:
    result = simulate(random.Random(1).choices(range(4), k=300), adaptive([], DEAR), DEAR)
    assert result.proposed < 10


def test_a_full_step_gives_width_back() -> None:
    """The same guesses: alone they are worth a draft; where every row costs its full price they are not."""
    controller = Controller(NATIVE)
    controller.ledger.enter(0.0, 1.0, 100)
    assert controller.choose(8, matched=3, beside=ALONE) >= 2
    assert controller.choose(8, matched=3, beside=Beside(15)) == 0


def test_beside_a_prompt_a_guess_is_worth_what_it_is_beside_the_streams() -> None:
    """A prompt's rows make the step longer, and bring no token that a guess could be measured by."""
    controller = Controller(NATIVE)
    controller.ledger.enter(0.0, 1.0, 100)
    assert controller.choose(8, matched=20, beside=Beside(3, 24)) > 0
    assert controller.choose(8, matched=20, beside=Beside(27)) == 0
    assert Controller(NATIVE).settle(2, 2, Beside(3, 24)) < Controller(NATIVE).settle(2, 2, Beside(3))


def test_beside_long_texts_a_guess_is_worth_its_row_sooner() -> None:
    """What the others' states add to a step is paid for each token, guessed or not."""
    controller = Controller(NATIVE)
    controller.ledger.enter(0.0, 1.0, 100)
    widths = [controller.choose(8, matched=3, beside=Beside(3, 0, reading)) for reading in (0.0, 1.0, 4.0)]
    assert widths == sorted(widths) and widths[0] < widths[-1]
    saved = [Controller(NATIVE).settle(2, 2, Beside(3, 0, reading)) for reading in (0.0, 1.0)]
    assert saved[0] < saved[1]


@pytest.mark.parametrize("most", range(12))
def test_a_width_is_one_of_the_few_or_all_that_there_is(most: int) -> None:
    controller = Controller(FREE)
    assert controller.choose(most, matched=20, beside=ALONE) in {*HOT_WIDTHS, most} - ({0} if most else set())
    assert controller.choose(most, matched=20, beside=ALONE) <= most


def test_the_ledger_allows_no_debt_at_the_first_token() -> None:
    assert Controller(EVEN).choose(8, matched=20, beside=ALONE) == 0
    assert Controller(NATIVE).choose(8, matched=20, beside=ALONE) == 1


def test_steps_are_the_same_ones_each_time() -> None:
    def widths() -> list[int]:
        drafter, found = adaptive(RECORDED[0]["prompt"], NATIVE), []
        output = RECORDED[0]["output"]
        at = 0
        while at < len(output):
            draft = list(drafter.propose(8))
            right = sum(1 for _ in iter_right(draft, output[at:]))
            drafter.accept(output[at : at + right + 1], len(draft))
            found.append(len(draft))
            at += right + 1
        return found

    first = widths()
    assert first == widths()
    assert set(first) <= {0, *HOT_WIDTHS}


def iter_right(draft: Sequence[int], output: Sequence[int]) -> Iterator[int]:
    for guess, token in zip(draft, output, strict=False):
        if guess != token:
            return
        yield guess


def test_a_step_that_fails_is_asked_for_again_and_gets_the_same_draft() -> None:
    drafter = adaptive(PROMPT, FREE)
    drafter.accept([2], 0)
    draft = list(drafter.propose(4, beside=Beside(2)))
    assert draft and draft == list(drafter.propose(4, beside=Beside(2)))
    drafter.accept([9, 4], len(draft))
    assert list(drafter.propose(4)) != draft


def test_tokens_told_in_pieces_or_at_once_are_the_same() -> None:
    output = RECORDED[2]["output"]
    apart, together = adaptive([], NATIVE), adaptive([], NATIVE)
    for token in output:
        apart.accept([token], 0)
    together.accept(output, 0)
    assert list(apart.propose(8)) == list(together.propose(8))
    assert apart.quiet == together.quiet


def test_a_resting_request_proposes_nothing_for_as_long_as_it_says() -> None:
    drafter = adaptive([1, 2, 3] * 4, NATIVE)
    drafter.accept([50 + n for n in range(80)], 0)
    assert drafter.quiet > 0
    output = [50 + n for n in range(30)]
    while drafter.quiet:
        piece, output = output[: drafter.quiet], output[drafter.quiet :]
        for token in piece:
            assert not drafter.propose(8)
            drafter.accept([token], 0)
    assert next(iter(drafter.propose(8))) == output[0]


def test_guesses_that_were_not_evaluated_open_the_way_back() -> None:
    """Rates so bad that nothing is drafted, then a copy of which nothing is drafted either: afterwards drafts are wide again."""
    drafter = adaptive([*range(100), *range(100), 0, 1, 2], EVEN)
    drafter.controller.ledger.enter(0.0, 1.0, 1000)
    for _ in range(60):
        drafter.controller.judge([0], [1], matched=5)  # as many as the prompt's last tokens match
    assert not drafter.propose(8)
    drafter.accept(range(3, 60), 0)
    assert list(drafter.propose(8)) == list(range(60, 68))
