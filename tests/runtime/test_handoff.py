"""Something owned crosses from one task to another, or stays where it was."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from tripower.runtime.kernel import HandOff


class Counting(HandOff[int]):
    __slots__ = ("left",)

    def __init__(self) -> None:
        super().__init__()
        self.left = 0

    def abandoned(self) -> None:
        self.left += 1


async def take_into(taken: list[Any], hand_off: HandOff[int], scope: trio.CancelScope) -> None:
    with scope:
        try:
            taken.append(await hand_off.take())
        except ValueError as error:
            taken.append(error)


async def test_nobody_takes_before_take_is_called() -> None:
    hand_off = Counting()
    assert not hand_off.waiting
    assert not hand_off.give(1) and not hand_off.fail(ValueError())


async def test_a_value_is_given_once() -> None:
    async with trio.open_nursery() as nursery:
        hand_off, taken = Counting(), list[Any]()
        nursery.start_soon(take_into, taken, hand_off, trio.CancelScope())
        await wait_all_tasks_blocked()
        assert hand_off.waiting and hand_off.give(1)
        assert not hand_off.waiting and not hand_off.give(2)
    assert taken == [1] and hand_off.left == 0


async def test_a_failure_is_raised_where_the_value_was_awaited() -> None:
    async with trio.open_nursery() as nursery:
        hand_off, taken, error = Counting(), list[Any](), ValueError("broken")
        nursery.start_soon(take_into, taken, hand_off, trio.CancelScope())
        await wait_all_tasks_blocked()
        assert hand_off.fail(error)
    assert taken == [error]


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_in_one_turn_either_the_value_arrives_or_the_giver_keeps_it(cancel_first: bool) -> None:
    async with trio.open_nursery() as nursery:
        hand_off, taken, scope = Counting(), list[Any](), trio.CancelScope()
        nursery.start_soon(take_into, taken, hand_off, scope)
        await wait_all_tasks_blocked()
        if cancel_first:
            scope.cancel()
            assert not hand_off.give(1)
        else:
            assert hand_off.give(1)
            scope.cancel()
    assert (taken, hand_off.left) == (([], 1) if cancel_first else ([1], 0))


async def test_a_taker_that_is_cancelled_already_takes_nothing() -> None:
    hand_off, taken, scope = Counting(), list[Any](), trio.CancelScope()
    scope.cancel()
    await take_into(taken, hand_off, scope)
    assert taken == [] and hand_off.left == 1 and not hand_off.give(1)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(["give", "cancel", "turn"]), min_size=1, max_size=6))
def test_under_any_interleaving_the_value_has_exactly_one_owner(seed: int, acts: list[str]) -> None:
    async def main() -> None:
        hand_off, taken, scope = Counting(), list[Any](), trio.CancelScope()
        given_away = 0

        async def act() -> None:
            nonlocal given_away
            for what in acts:
                if what == "give":
                    given_away += hand_off.give(1)
                elif what == "cancel":
                    scope.cancel()
                else:
                    await trio.lowlevel.checkpoint()
            scope.cancel()

        async with trio.open_nursery() as nursery:
            tasks: list[Any] = [(take_into, taken, hand_off, scope), (act,)]
            random.Random(seed).shuffle(tasks)
            for task in tasks:
                nursery.start_soon(*task)
        assert len(taken) == given_away <= 1
        assert hand_off.left == (0 if taken else 1)

    trio.run(main)
