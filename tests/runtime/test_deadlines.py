"""A deadline is one number that caller and actor hold together."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tripower.runtime.kernel import (
    LATER,
    NEVER,
    Actor,
    ActorStatistics,
    ActorSystem,
    Ask,
    DeadlineExceeded,
    Envelope,
    Message,
    Ref,
    deadline_after,
    open_actor_system,
    remaining_seconds,
    within,
)


class Slept(Message, frozen=True):
    at: float


class Sleep(Ask[Slept], frozen=True):
    seconds: float
    group: bool = False


class Keep(Ask[Slept], frozen=True):
    pass


class Stubborn(Ask[Slept], frozen=True):
    """Never looks at its deadline."""

    seconds: float


class Sleeper(Actor[Sleep | Keep | Stubborn]):
    def __init__(self) -> None:
        self.stopped_at: list[float] = []
        self.began = 0
        self.kept: list[Envelope] = []
        self.abandoned_at: list[float] = []

    async def on_message(self, message: Sleep | Keep | Stubborn) -> Any:
        self.began += 1
        match message:
            case Sleep(seconds, group):
                return await self._sleep(seconds, group)
            case Keep():
                self.kept.append(self.envelope)
                self.envelope.on_abandon = lambda: self.abandoned_at.append(trio.current_time())
                return LATER
            case Stubborn(seconds):
                with trio.CancelScope(shield=True):
                    await trio.sleep(seconds)
                return Slept(trio.current_time())

    async def _sleep(self, seconds: float, group: bool) -> Slept:
        try:
            async with trio.open_nursery() as nursery:
                if group:
                    nursery.start_soon(trio.sleep, seconds)
                await trio.sleep(seconds)
        finally:
            self.stopped_at.append(trio.current_time())
        return Slept(trio.current_time())


def start(system: ActorSystem) -> tuple[Sleeper, Ref[Any]]:
    sleeper = Sleeper()
    return sleeper, system.spawn(lambda: sleeper, name="sleeper")


def figures(system: ActorSystem) -> ActorStatistics:
    return system.statistics()[0]


async def fails_at(ref: Ref[Any], message: Message, deadline: float) -> float:
    with pytest.raises(DeadlineExceeded):
        await ref.ask(message, deadline=deadline)
    return trio.current_time()


@pytest.mark.parametrize("group", [False, True])
async def test_work_stops_at_the_callers_deadline(autojump_clock: MockClock, group: bool) -> None:
    async with open_actor_system() as system:
        sleeper, ref = start(system)
        assert await fails_at(ref, Sleep(10, group), 2.0) == 2.0
        assert await ref.ask(Sleep(1)) == Slept(3.0)
        assert sleeper.stopped_at == [2.0, 3.0]
        assert (figures(system).expired, figures(system).handled, figures(system).received) == (1, 1, 2)


async def test_what_expires_while_queued_is_never_begun(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        sleeper, ref = start(system)
        nursery.start_soon(ref.ask, Sleep(5))
        await trio.sleep(1)
        assert await fails_at(ref, Sleep(1), 2.0) == 2.0
        assert figures(system).inbox == 0
        await trio.sleep(10)
        assert sleeper.began == 1
        assert (figures(system).expired, figures(system).handled) == (1, 1)


async def test_what_expires_while_it_waits_for_room_leaves_the_line(autojump_clock: MockClock) -> None:
    class Narrow(Sleeper):
        inbox_max = 1

    async with open_actor_system() as system, trio.open_nursery() as nursery:
        ref = system.spawn(Narrow, name="sleeper")
        nursery.start_soon(ref.ask, Sleep(5))
        await trio.sleep(1)
        nursery.start_soon(ref.ask, Sleep(1))
        await trio.sleep(1)
        assert await fails_at(ref, Sleep(1), 3.0) == 3.0
        assert (figures(system).waiting, figures(system).inbox, figures(system).expired) == (0, 1, 1)


async def test_a_deadline_that_has_passed_is_not_begun(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system:
        sleeper, ref = start(system)
        await trio.sleep(1)
        for deadline in (1.0, 0.5, -math.inf):
            assert await fails_at(ref, Sleep(1), deadline) == 1.0
        assert sleeper.began == 0 and figures(system).expired == 3


async def test_a_kept_ask_hears_of_its_deadline(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system:
        sleeper, ref = start(system)
        assert await fails_at(ref, Keep(), 3.0) == 3.0
        assert sleeper.abandoned_at == [3.0]
        assert not sleeper.kept[0].answer(Slept(0))
        assert (figures(system).pending, figures(system).expired) == (0, 1)


async def test_a_later_message_is_not_bound_by_an_earlier_deadline(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system:
        _, ref = start(system)
        assert await ref.ask(Sleep(1), deadline=2.0) == Slept(1.0)
        assert await ref.ask(Sleep(5)) == Slept(6.0)
        assert await ref.ask(Sleep(1), deadline=8.0) == Slept(7.0)
        await trio.sleep(5)  # the moved scope fires while nobody is served
        assert await ref.ask(Sleep(2), deadline=20.0) == Slept(14.0)


async def test_a_tighter_deadline_after_a_wider_one_holds(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system:
        _, ref = start(system)
        assert await ref.ask(Sleep(1), deadline=100.0) == Slept(1.0)
        assert await fails_at(ref, Sleep(5), 3.0) == 3.0
        assert await ref.ask(Sleep(5), deadline=100.0) == Slept(8.0)


async def test_the_callers_own_scope_passes_through_as_a_cancellation(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system:
        sleeper, ref = start(system)
        with trio.move_on_at(2.0) as scope:
            await ref.ask(Sleep(5), deadline=2.0)
        assert scope.cancelled_caught and trio.current_time() == 2.0
        with trio.move_on_at(3.0) as scope:
            await ref.ask(Sleep(5), deadline=50.0)
        await wait_all_tasks_blocked()
        assert scope.cancelled_caught and sleeper.stopped_at == [2.0, 3.0]
        assert (figures(system).expired, figures(system).abandoned) == (1, 1)


async def test_a_handler_that_cannot_stop_holds_up_only_its_actor(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system:
        _, ref = start(system)
        assert await fails_at(ref, Stubborn(5), 2.0) == 2.0
        assert await ref.ask(Sleep(1)) == Slept(6.0)
        assert figures(system).received == 2


async def test_equal_deadlines_end_everybody_in_one_instant(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system:
        _, ref = start(system)
        ends: list[float] = []

        async def ask(message: Message) -> None:
            ends.append(await fails_at(ref, message, 4.0))

        async with trio.open_nursery() as nursery:
            for message in (Sleep(9), Sleep(9), Keep(), Sleep(9, True), Keep()):
                nursery.start_soon(ask, message)
        assert ends == [4.0] * 5
        assert await ref.ask(Sleep(1)) == Slept(5.0)
        assert figures(system).expired == 5


async def test_a_deadline_that_is_no_number_is_the_callers_mistake() -> None:
    async with open_actor_system() as system:
        _, ref = start(system)
        with pytest.raises(ValueError, match="NaN"):
            await ref.ask(Sleep(1), deadline=math.nan)
        assert await ref.ask(Sleep(0))


async def test_deadlines_are_born_from_seconds(autojump_clock: MockClock) -> None:
    await trio.sleep(10)
    assert deadline_after(5) == 15.0
    assert deadline_after(None) == NEVER == math.inf
    assert remaining_seconds(15.0) == 5.0
    assert remaining_seconds(9.0) == 0.0
    assert remaining_seconds(NEVER) == math.inf


async def test_within_turns_its_own_expiry_into_an_error(autojump_clock: MockClock) -> None:
    with pytest.raises(DeadlineExceeded), within(3.0):
        await trio.sleep(5)
    assert trio.current_time() == 3.0
    with within(5.0) as scope:
        await trio.sleep(1)
    assert not scope.cancel_called


async def test_within_lets_an_outer_cancellation_pass(autojump_clock: MockClock) -> None:
    with trio.move_on_at(2.0) as outer, within(3.0):
        await trio.sleep(5)
    assert outer.cancelled_caught
    with trio.move_on_at(4.0) as outer, within(4.0):  # both at once: the outer one wins
        await trio.sleep(5)
    assert outer.cancelled_caught
