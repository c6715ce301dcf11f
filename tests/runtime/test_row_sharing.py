"""Drafts in shared steps: nobody's tokens come later by more than the rule allows."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.runtime.engine import EngineInfo, SamplingParameters, StepTable
from tripower.runtime.engine.drafting import Beside
from tripower.runtime.engine.drafts import reading_cost
from tripower.runtime.engine.row_costs import RowCosts
from tripower.runtime.engine.row_sharing import LATER_MAX, Pace, ask_in_turn, draft_room
from tripower.runtime.speculation import Lookup, Member, SpeculationSettings, make_drafter, simulate_together
from tripower.runtime.speculation.drafter import AdaptiveDrafter

EVEN = RowCosts((1.0, 1.1, 1.3, 1.6, 2.4))
STEEP = RowCosts((1.0, 1.0, 1.2, 2.13, 4.28))


def test_a_member_alone_has_all_the_room() -> None:
    assert draft_room(EVEN, [Pace()], 1, 8) == 8
    assert draft_room(EVEN, [], 0, 8) == 8


def test_free_rows_are_shared_without_a_limit() -> None:
    assert draft_room(RowCosts((1.0,)), [Pace(), Pace()], 2, 30) == 30


def test_beside_a_plain_neighbour_room_is_saved_up_and_spent() -> None:
    """A twentieth of a step is saved with each plain one, until it is enough for a row."""
    paces, rooms = [Pace(), Pace()], []
    for _ in range(12):
        rooms.append(draft_room(EVEN, paces, 2, 8))
        for pace in paces:
            pace.settle(EVEN, 2, rooms[-1], 1)
    assert rooms[0] == 0
    assert 1 <= sum(rooms) <= 8


def test_what_states_add_to_a_step_makes_a_row_the_smaller_part_of_it() -> None:
    """So more of them are within a twentieth."""
    rooms = [draft_room(EVEN, [Pace(), Pace()], 2, 8, reading=reading) for reading in (0.0, 3.0, 9.0)]
    assert rooms == sorted(rooms) and rooms[0] == 0 < rooms[-1]
    paces = [Pace(), Pace()]
    for pace in paces:
        pace.settle(EVEN, 2, 2, 1, reading=3.0)
    assert paces[0].cost == EVEN.step(4) + 3.0 and paces[0].plain == EVEN.step(2) + 3.0


def test_a_sequence_alone_adds_nothing_and_each_further_one_its_share_of_bytes() -> None:
    info = EngineInfo(
        backend="toy", architecture="toy", context_max=99, vocabulary_size=9, sequences_max=4,
        weight_bytes=1000, state_bytes_per_token=2,
    )  # fmt: skip
    assert reading_cost(info, []) == reading_cost(info, [500]) == 0
    assert reading_cost(info, [500, 500]) == pytest.approx(1.0)
    assert reading_cost(info, [100, 200, 300]) == pytest.approx(0.8)
    assert reading_cost(msgspec.structs.replace(info, weight_bytes=0), [500, 500]) == 0


def test_right_guesses_make_room() -> None:
    paces = [Pace(), Pace()]
    for pace in paces:
        pace.settle(EVEN, 2, 4, 3)
    assert draft_room(EVEN, paces, 2, 6) == 6


@pytest.mark.parametrize("costs", [EVEN, STEEP])
@settings(deadline=None, max_examples=15)
@given(
    outputs=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=80), min_size=2, max_size=5),
    plain=st.integers(0, 2),
)
def test_no_neighbours_tokens_come_later_than_the_rule_allows(costs: RowCosts, outputs: list[list[int]], plain: int) -> None:
    """Few different tokens, so that everybody guesses all the time and is wrong most of it."""
    members = [
        Member(output, None if index < plain else make_drafter(SpeculationSettings(), [0, 1, 2] * 5, costs))
        for index, output in enumerate(outputs)
    ]
    simulate_together(members, costs)
    assert all(member.at == len(member.output) for member in members)
    assert all(member.cost <= LATER_MAX * member.plain + 1e-9 for member in members)


def test_copies_beside_each_other_are_faster_together() -> None:
    def members(speculate: bool) -> list[Member]:
        texts = [list(range(start, start + 90)) for start in (0, 1000)]
        return [Member(text, AdaptiveDrafter(Lookup(text, grows=True), EVEN) if speculate else None) for text in texts]

    assert simulate_together(members(False), EVEN) > 1.5 * simulate_together(members(True), EVEN)


def test_a_plain_neighbour_of_a_copy_loses_no_more_than_its_twentieth() -> None:
    text = list(range(200))
    noise = random.Random(3).sample(range(1000, 9000), 200)
    plain = Member(noise, None)
    simulate_together([plain, Member(text, AdaptiveDrafter(Lookup(text, grows=True), EVEN))], EVEN)
    assert plain.cost <= LATER_MAX * plain.plain


def test_a_pace_lasts_from_job_to_job_until_its_sequence_begins_anew() -> None:
    table = StepTable(slots_max=2, steps_max=1, rows_max=4)

    def job(*members: tuple[int, int]) -> list[Pace]:
        table.clear(steps_max=1)
        for sequence, drawn in members:
            table.add(
                sequence=sequence, position=0, pending=(1,), remaining=1, output_index=drawn, sampling=SamplingParameters(),
                ends=frozenset(), history=(), prompt_length=1,
            )  # fmt: skip
        return table.paces()

    seven, nine = job((7, 0), (9, 0))
    assert job((9, 3), (7, 1)) == [nine, seven]
    assert job((7, 0)) != [seven], "it has drawn nothing: another sequence under the same number"
    assert job((9, 4)) != [nine], "it was away"


def test_whoever_is_furthest_behind_is_asked_first_and_may_have_all_the_room() -> None:
    paces = [Pace(), Pace(), Pace()]
    for pace, tokens in zip(paces, (2, 1, 3), strict=True):
        pace.settle(EVEN, 3, 1, tokens)
    asked: list[tuple[int, int, Beside]] = []

    def ask(slot: int, room: int, beside: Beside) -> list[int]:
        asked.append((slot, room, beside))
        return [slot] * min(room, 3) if slot else []

    assert ask_in_turn([0, 1, 2], paces, 5, Beside(2, 4, 0.5), ask) == {1: [1, 1, 1], 2: [2, 2]}
    assert asked == [(1, 5, Beside(2, 4, 0.5)), (0, 2, Beside(5, 4, 0.5)), (2, 2, Beside(5, 4, 0.5))]
