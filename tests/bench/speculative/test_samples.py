"""What is made of the times of answers with and without guesses."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock

from tests.actors.rigs import greedy, open_toy, request, warm_up
from tripower.bench.speculative.closed_loop import run_closed_loop
from tripower.bench.speculative.samples import Group, Round, Sample, geometric_mean, rounds_of, run_group, score


def sample(seconds: float, tokens: tuple[int, ...] = (1, 2, 3), accepted: int = 0) -> Sample:
    return Sample(
        prompt=(9,), tokens=tokens, first=seconds / 2, last=seconds, seconds=seconds, drafted=accepted, accepted=accepted
    )


def both(plain: float, guessing: float, *, plain_first: bool) -> Round:
    one, other = (Group(samples=(sample(seconds),), seconds=seconds) for seconds in (plain, guessing))
    return Round(plain=one, guessing=other, plain_first=plain_first)


def test_the_order_with_the_smaller_median_is_the_score() -> None:
    rounds = [both(4, 1, plain_first=True), both(4, 2, plain_first=True), both(3, 2, plain_first=False)]
    assert score([rounds]) == pytest.approx(1.5)
    assert score([rounds[:2]]) == pytest.approx(2)  # of an even number, the lower one
    assert score([rounds], steady=True) == pytest.approx(1.5)


def test_an_order_is_judged_over_all_groups() -> None:
    """Noise that helps one group in one order and another group in the other one says nothing against either order."""
    first = [both(4, 2, plain_first=True), both(8, 2, plain_first=False)]
    second = [both(8, 2, plain_first=True), both(4, 2, plain_first=False)]
    assert score([first, second]) == pytest.approx(8**0.5)
    assert score([first, first]) == pytest.approx(2)


def test_a_tie_and_no_figure_at_all_keep_the_baseline() -> None:
    assert score([[both(2, 2, plain_first=True)]]) == score([[]]) == score([]) == 1


def test_answers_are_the_same_if_every_token_is() -> None:
    assert both(1, 2, plain_first=True).same
    other = Round(
        plain=Group(samples=(sample(1),), seconds=1), guessing=Group(samples=(sample(1, (1, 2)),), seconds=1), plain_first=True
    )
    assert not other.same


def test_passes_and_rates() -> None:
    assert sample(2, (1, 2, 3, 4, 5), accepted=2).passes == 2
    assert sample(2).steady == 2 and sample(0).steady == 0
    assert geometric_mean([1, 4]) == pytest.approx(2) and math.isnan(geometric_mean([]))


async def test_a_group_runs_side_by_side(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        await warm_up(runtime)
        group = await run_group(runtime, [request("a", 5), request("b", 9)], at_once=2)
        assert [list(each.tokens) for each in group.samples] == [greedy("a", 5), greedy("b", 9)]
        assert group.samples[1].prompt == (98,) and group.samples[1].passes == 8
        assert group.seconds < 12


async def test_the_next_question_is_asked_when_one_is_answered(autojump_clock: MockClock) -> None:
    asked = dict[int, float]()

    async def one(place: int) -> int:
        asked[place] = trio.current_time() - began
        await trio.sleep((5, 1, 2, 1)[place])
        return place

    began = trio.current_time()
    assert await run_closed_loop(4, 2, one) == (0, 1, 2, 3)
    assert asked == {0: 0, 1: 0, 2: 1, 3: 3}


@pytest.mark.parametrize(
    ("groups", "rounds", "samples", "each"),
    [(12, 1, 3, 1), (2, 1, 3, 2), (1, 1, 3, 3), (1, 5, 3, 5), (1, 1, 1, 1)],
)
def test_a_figure_of_few_groups_has_more_rounds(groups: int, rounds: int, samples: int, each: int) -> None:
    assert rounds_of(groups, rounds=rounds, samples=samples) == each
