"""One writer that never waits, one reader that takes all there is."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tripower.runtime.kernel import Outlet


async def test_what_has_queued_is_received_in_one_go() -> None:
    outlet: Outlet[int] = Outlet(3)
    for item in (1, 2, 3):
        outlet.put(item)
    assert await outlet.receive() == [1, 2, 3]


async def test_a_waiting_reader_is_woken_once_for_several_items() -> None:
    outlet: Outlet[int] = Outlet(3)
    received: list[list[int]] = []

    async def read() -> None:
        received.append(await outlet.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        outlet.put(1)
        outlet.put(2)
    assert received == [[1, 2]]


@pytest.mark.parametrize("queued", [False, True])
async def test_a_cancelled_reader_loses_nothing(queued: bool) -> None:
    outlet: Outlet[int] = Outlet(2)
    if queued:
        outlet.put(1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await outlet.receive()
    assert scope.cancelled_caught
    outlet.put(2)
    assert await outlet.receive() == ([1, 2] if queued else [2])


async def test_an_item_put_in_the_turn_of_the_cancellation_is_received_or_kept() -> None:
    outlet: Outlet[int] = Outlet(2)
    received: list[int] = []

    async def read(scope: trio.CancelScope) -> None:
        with scope:
            received.extend(await outlet.receive())

    for cancel_first in (True, False):
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(read, scope)
            await wait_all_tasks_blocked()
            if cancel_first:
                scope.cancel()
                outlet.put(1)
            else:
                outlet.put(2)
                scope.cancel()
        if cancel_first:
            assert received == [] and await outlet.receive() == [1]
        else:
            assert received == [2]


async def test_after_the_reader_has_left_items_are_dropped() -> None:
    outlet: Outlet[int] = Outlet(1)
    outlet.leave()
    outlet.leave()
    assert outlet.left
    for item in range(5):
        outlet.put(item)  # no room is needed for nobody


async def test_more_items_than_agreed_are_a_programming_error() -> None:
    outlet: Outlet[int] = Outlet(1)
    outlet.put(1)
    with pytest.raises(AssertionError, match="no more than was agreed"):
        outlet.put(2)


async def test_reading_does_not_make_new_room() -> None:
    outlet: Outlet[int] = Outlet(1)
    outlet.put(1)
    assert await outlet.receive() == [1]
    with pytest.raises(AssertionError):
        outlet.put(2)


async def test_receiving_is_always_a_checkpoint() -> None:
    outlet: Outlet[int] = Outlet(1)
    outlet.put(1)
    with trio.testing.assert_checkpoints():
        await outlet.receive()


async def test_leaving_from_another_task_wakes_the_reader() -> None:
    outlet: Outlet[int] = Outlet(1)

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await outlet.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        outlet.leave()
