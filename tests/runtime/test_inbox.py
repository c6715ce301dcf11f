"""Room in the inbox, the order in which messages are read, and fairness towards everybody else in the loop."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tripower.runtime.kernel import (
    Actor,
    ActorGone,
    ActorStatistics,
    ActorSystem,
    Ask,
    InboxFull,
    Message,
    Ref,
    open_actor_system,
)
from tripower.runtime.kernel.cell import BURST, BURST_SECONDS


class Done(Message, frozen=True):
    n: int


class Do(Ask[Done], frozen=True):
    n: int


class Block(Ask[Done], frozen=True):
    """In hand until the test opens the gate that rides in the envelope."""


class Remark(Message, frozen=True):
    n: int


class Compute(Message, frozen=True):
    seconds: float


class Clerk(Actor[Do | Block | Remark | Compute]):
    inbox_max = 2

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def on_message(self, message: Do | Block | Remark | Compute) -> Any:
        match message:
            case Do(n):
                self.seen.append(n)
                return Done(n)
            case Block():
                await self.envelope.live.wait()
                return Done(-1)
            case Remark(n):
                self.seen.append(n)
            case Compute(seconds):
                self.seen.append(-1)
                end = time.perf_counter() + seconds
                while time.perf_counter() < end:
                    pass


class Fixture:
    """A clerk that is busy, and callers in a fixed order behind it."""

    def __init__(self, system: ActorSystem, nursery: trio.Nursery) -> None:
        self.clerk = Clerk()
        self.ref: Ref[Any] = system.spawn(lambda: self.clerk, name="clerk")
        self.gate = trio.Event()
        self.ends: list[Any] = []
        self._system, self._nursery = system, nursery

    async def block(self) -> None:
        self._nursery.start_soon(self._run, "block", lambda: self.ref.ask(Block(), live=self.gate), trio.CancelScope())
        await wait_all_tasks_blocked()

    async def ask(self, n: int) -> trio.CancelScope:
        return await self._start(n, lambda: self.ref.ask(Do(n)))

    async def tell(self, n: int) -> trio.CancelScope:
        return await self._start(n, lambda: self.ref.tell(Remark(n)))

    async def _start(self, n: int, work: Any) -> trio.CancelScope:
        scope = trio.CancelScope()
        self._nursery.start_soon(self._run, n, work, scope)
        await wait_all_tasks_blocked()
        return scope

    async def _run(self, name: Any, work: Any, scope: trio.CancelScope) -> None:
        with scope:
            try:
                await work()
                self.ends.append(name)
            except ActorGone:
                self.ends.append((name, "gone"))

    @property
    def figures(self) -> ActorStatistics:
        return self._system.statistics()[0]


async def test_asks_beyond_the_inbox_wait_for_room_in_order() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        f = Fixture(system, nursery)
        await f.block()
        for n in range(6):
            await f.ask(n)
        assert (f.figures.inbox, f.figures.waiting, f.figures.inbox_peak) == (2, 4, 2)
        f.gate.set()
        await wait_all_tasks_blocked()
        assert f.clerk.seen == [0, 1, 2, 3, 4, 5]
        assert (f.figures.inbox, f.figures.waiting, f.figures.received, f.figures.handled) == (0, 0, 7, 7)


async def test_a_tell_waits_for_room_and_no_longer() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        f = Fixture(system, nursery)
        await f.block()
        first = await f.ask(0)
        await f.tell(1)
        assert f.ends == [1]
        await f.tell(2)
        await f.tell(3)
        assert f.ends == [1] and f.figures.waiting == 2
        first.cancel()  # its place goes to the longest waiting, at once
        assert (f.figures.inbox, f.figures.waiting) == (2, 1)
        await wait_all_tasks_blocked()
        assert f.ends == [1, 2]
        f.gate.set()
        await wait_all_tasks_blocked()
        assert f.clerk.seen == [1, 2, 3]


async def test_a_tell_that_is_cancelled_while_it_waits_for_room_is_not_sent() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        f = Fixture(system, nursery)
        await f.block()
        await f.tell(0)
        await f.tell(1)
        waiting = await f.tell(2)
        waiting.cancel()
        assert f.figures.waiting == 0
        f.gate.set()
        await wait_all_tasks_blocked()
        assert f.clerk.seen == [0, 1]
        assert (f.figures.received, f.figures.handled, f.figures.abandoned) == (4, 3, 1)


async def test_a_tell_that_is_cancelled_although_there_was_room_is_sent() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        f = Fixture(system, nursery)
        with trio.CancelScope() as scope:
            scope.cancel()
            await f.ref.tell(Remark(1))
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        assert f.clerk.seen == [1]


async def test_tell_nowait_takes_a_free_place_or_fails_at_once() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        f = Fixture(system, nursery)
        await f.block()
        f.ref.tell_nowait(Remark(0))
        f.ref.tell_nowait(Remark(1))
        with pytest.raises(InboxFull, match="clerk has 2 messages waiting") as caught:
            f.ref.tell_nowait(Remark(2))
        assert caught.value.retryable and caught.value.code == "inbox_full"
        assert (f.figures.received, f.figures.inbox) == (3, 2)
        f.gate.set()
        await wait_all_tasks_blocked()
        assert f.clerk.seen == [0, 1]


async def test_tell_nowait_does_not_jump_the_queue() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        f = Fixture(system, nursery)
        await f.block()
        scopes = [await f.ask(n) for n in range(3)]
        scopes[0].cancel()
        with pytest.raises(InboxFull):
            f.ref.tell_nowait(Remark(9))
        f.gate.set()


async def test_whoever_waits_for_room_hears_at_once_that_the_actor_has_gone() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        f = Fixture(system, nursery)
        await f.block()
        for n in range(3):
            await f.ask(n)
        await f.tell(3)
        nursery.start_soon(f.ref.stop)
        await wait_all_tasks_blocked()
        f.gate.set()
        await wait_all_tasks_blocked()
        assert set(f.ends) == {"block", (0, "gone"), (1, "gone"), (2, "gone"), (3, "gone")}
        assert f.clerk.seen == []


async def test_control_messages_are_read_first_and_always_fit() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        f = Fixture(system, nursery)
        await f.block()
        await f.ask(0)
        await f.ask(1)
        for n in range(10, 30):
            assert f.ref.control(Remark(n))
        assert (f.figures.control, f.figures.inbox) == (20, 2)
        f.gate.set()
        await wait_all_tasks_blocked()
        assert f.clerk.seen == [*range(10, 30), 0, 1]


async def test_a_control_message_wakes_an_idle_actor() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        f = Fixture(system, nursery)
        await wait_all_tasks_blocked()
        f.ref.control(Remark(1))
        await wait_all_tasks_blocked()
        assert f.clerk.seen == [1]


async def test_a_busy_actor_lets_others_run_after_a_burst() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        f = Fixture(system, nursery)
        for n in range(10 * BURST):
            f.ref.control(Remark(n))
        turns = []
        while len(f.clerk.seen) < 10 * BURST:
            turns.append(len(f.clerk.seen))
            await trio.lowlevel.checkpoint()
        # Between two of our turns the actor may have had two of its own.
        assert max(after - before for before, after in itertools.pairwise(turns)) <= 2 * BURST
        assert len(turns) >= 5


async def test_a_computing_actor_lets_others_run_after_a_while() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        f = Fixture(system, nursery)
        for _ in range(BURST):
            f.ref.control(Compute(BURST_SECONDS * 1.2))
        before = 0
        while len(f.clerk.seen) < BURST:
            await trio.lowlevel.checkpoint()
            assert len(f.clerk.seen) - before <= 4
            before = len(f.clerk.seen)


async def test_a_sender_without_pause_does_not_starve_a_timer(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        f = Fixture(system, nursery)

        async def chatter() -> None:
            while True:
                await f.ref.tell(Remark(0))

        nursery.start_soon(chatter)
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert 25 <= len(f.clerk.seen) <= 100
