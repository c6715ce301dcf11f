"""What happens when actors crash, stop and are cancelled: to themselves, their callers, their children and their parents."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tripower.runtime.kernel import (
    LATER,
    Actor,
    ActorFailed,
    ActorGone,
    ActorStatistics,
    ActorSystem,
    Ask,
    Envelope,
    Message,
    Ref,
    Strategy,
    Supervision,
    open_actor_system,
)


class Fine(Message, frozen=True):
    instance: int


class Check(Ask[Fine], frozen=True):
    seconds: float = 0.0


class Crash(Ask[Fine], frozen=True):
    pass


class Keep(Ask[Fine], frozen=True):
    pass


class CrashInTask(Message, frozen=True):
    pass


class SpawnChild(Message, frozen=True):
    """The envelope carries the child's supervision."""


class Remark(Message, frozen=True):
    pass


@attrs.define
class Diary:
    """What the instances of one actor went through."""

    instances: int = 0
    started_at: list[float] = attrs.Factory(list)
    ended_at: list[float] = attrs.Factory(list)
    start_crashes: int = 0
    factory_crashes: int = 0
    end_sleeps: float = 0.0
    end_crashes: bool = False


class Fragile(Actor[Check | Crash | Keep | CrashInTask | SpawnChild | Remark]):
    end_seconds = 3.0

    def __init__(self, diary: Diary) -> None:
        if diary.factory_crashes and diary.instances:
            diary.factory_crashes -= 1
            raise OSError("the factory failed")
        diary.instances += 1
        self._diary = diary
        self._number = diary.instances
        self._kept: list[Envelope] = []

    async def on_start(self) -> None:
        self._diary.started_at.append(trio.current_time())
        if self._diary.start_crashes:
            self._diary.start_crashes -= 1
            raise RuntimeError("failed at the start")

    async def on_message(self, message: Check | Crash | Keep | CrashInTask | SpawnChild | Remark) -> Any:
        match message:
            case Check(seconds):
                await trio.sleep(seconds)
                return Fine(self._number)
            case Crash():
                raise RuntimeError("crashed")
            case Keep():
                self._kept.append(self.envelope)
                return LATER
            case CrashInTask():
                self.start_soon(self._crash, name="task")
            case SpawnChild():
                diary, supervision = self.envelope.live
                self.spawn(lambda: Fragile(diary), name="child", supervision=supervision)

    async def _crash(self) -> None:
        raise RuntimeError("crashed in a task")

    async def on_end(self) -> None:
        if self._diary.end_crashes:
            raise RuntimeError("failed at the end")
        try:
            await trio.sleep(self._diary.end_sleeps)
        finally:
            self._diary.ended_at.append(trio.current_time())


def start(system: ActorSystem, supervision: Supervision | None = None, **diary: Any) -> tuple[Diary, Ref[Any]]:
    book = Diary(**diary)
    return book, system.spawn(lambda: Fragile(book), name="fragile", supervision=supervision)


def figures(system: ActorSystem, name: str = "fragile") -> ActorStatistics:
    return next(actor for actor in system.statistics() if actor.name == name)


async def crash(ref: Ref[Any]) -> None:
    with pytest.raises(ActorGone):
        await ref.ask(Crash())
    await wait_all_tasks_blocked()


async def test_a_crash_answers_everybody_at_once(autojump_clock: MockClock) -> None:
    class Narrow(Fragile):
        inbox_max = 2

    async with open_actor_system() as system, trio.open_nursery() as nursery:
        ref = system.spawn(lambda: Narrow(Diary(end_sleeps=2.0)), name="fragile")
        ends: list[float] = []

        async def ask(message: Message) -> None:
            with pytest.raises(ActorGone, match="fragile ended before it answered"):
                await ref.ask(message)
            ends.append(trio.current_time())

        async def keep_busy() -> None:
            assert await ref.ask(Check(1.0)) == Fine(1)

        nursery.start_soon(ask, Keep())
        nursery.start_soon(ask, Keep())
        await wait_all_tasks_blocked()
        nursery.start_soon(keep_busy)
        await wait_all_tasks_blocked()
        for message in (Crash(), Check(), Check(), Check()):
            nursery.start_soon(ask, message)
            await wait_all_tasks_blocked()
        assert (figures(system).pending, figures(system).inbox, figures(system).waiting) == (2, 2, 2)
        ref.control(Remark())
        await trio.sleep(2)
        assert ends == [1.0] * 6  # kept, in hand, queued, waiting for room
        actor = figures(system)
        assert (actor.pending, actor.inbox, actor.waiting, actor.control) == (0, 0, 0, 0)


async def test_the_address_survives_a_restart(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system:
        diary, ref = start(system)
        assert await ref.ask(Check()) == Fine(1)
        await crash(ref)
        assert figures(system).state == "restarting" and figures(system).details is None
        with pytest.raises(ActorGone, match="fragile is restarting"):
            await ref.ask(Check())
        assert not ref.control(Remark())
        await trio.sleep(1)
        assert await ref.ask(Check()) == Fine(2)
        assert (figures(system).crashes, figures(system).restarts) == (1, 1)
        assert len(diary.ended_at) == 1


async def test_the_pause_doubles_with_every_crash_up_to_its_bound(autojump_clock: MockClock) -> None:
    supervision = Supervision(restarts_max=6, within_seconds=1000, backoff_first=1.0, backoff_max=5.0)
    async with open_actor_system() as system:
        diary, ref = start(system, supervision)
        for _ in range(5):
            await crash(ref)
            await trio.sleep(100)
        pauses = [started - ended for ended, started in zip(diary.ended_at, diary.started_at[1:], strict=True)]
        assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0]
        assert await ref.ask(Check()) == Fine(6)


async def test_more_crashes_than_allowed_in_a_while_escalate(autojump_clock: MockClock) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(ActorFailed, match="fragile crashed"), flatten_subgroups=True):
        async with open_actor_system() as system:
            _, ref = start(system, Supervision(restarts_max=2, within_seconds=60, backoff_first=1.0))
            for _ in range(3):
                await crash(ref)
                await trio.sleep(10)
            raise AssertionError("the block was cancelled before this")
    assert trio.current_time() == 20.0


async def test_crashes_that_are_long_past_are_forgotten(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system:
        diary, ref = start(system, Supervision(restarts_max=2, within_seconds=60, backoff_first=1.0))
        for _ in range(10):
            await crash(ref)
            await trio.sleep(60.0)
        assert diary.started_at == [0.0, *(60.0 * n + 1.0 for n in range(10))]  # the pause is the first one each time


def test_the_budget_counts_only_what_lies_within_it() -> None:
    supervision = Supervision(restarts_max=2, within_seconds=10, backoff_first=1.0, backoff_max=3.0)
    times = [0.0, 5.0]
    assert supervision.pause_seconds(times, 5.0) == 2.0
    times.append(9.99)
    assert supervision.pause_seconds(times, 9.99) is None
    assert supervision.pause_seconds(times, 10.0) == 2.0 and times == [5.0, 9.99]


async def test_an_actor_that_shall_stop_stays_down_and_visible(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system:
        _, ref = start(system, Supervision(strategy=Strategy.STOP))
        await crash(ref)
        assert figures(system).state == "failed"
        with pytest.raises(ActorGone, match="fragile is failed"):
            await ref.ask(Check())
        await ref.stop()
        assert figures(system).control == 0
        _, again = start(system)  # its name may be used again
        assert await again.ask(Check()) == Fine(1)


async def test_escalation_ends_the_block_at_once(autojump_clock: MockClock) -> None:
    with pytest.RaisesGroup(ActorFailed, flatten_subgroups=True):
        async with open_actor_system() as system:
            _, ref = start(system, Supervision(strategy=Strategy.ESCALATE))
            await crash(ref)
            await trio.sleep_forever()
    assert trio.current_time() == 0.0


async def test_a_crash_in_a_child_task_is_a_crash_of_the_actor(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        _, ref = start(system)

        async def ask() -> None:
            with pytest.raises(ActorGone):
                await ref.ask(Check(10.0))

        ref.control(CrashInTask())
        nursery.start_soon(ask)
        await trio.sleep(1)
        assert await ref.ask(Check()) == Fine(2)
        assert figures(system).crashes == 1


async def test_a_crash_at_the_start_counts_and_is_tried_again(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system:
        _, ref = start(system, start_crashes=2)
        with pytest.raises(ActorGone):
            await ref.ask(Check())
        await trio.sleep(1)
        assert await ref.ask(Check()) == Fine(3)
        assert figures(system).crashes == 2


async def test_a_factory_that_fails_at_a_restart_counts_as_a_crash(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system:
        _, ref = start(system, factory_crashes=2)
        await crash(ref)
        await trio.sleep(1)
        assert await ref.ask(Check()) == Fine(2)
        assert (figures(system).crashes, figures(system).restarts) == (3, 1)


async def test_a_factory_that_fails_for_good_escalates(autojump_clock: MockClock) -> None:
    with pytest.RaisesGroup(ActorFailed, flatten_subgroups=True):
        async with open_actor_system() as system:
            _, ref = start(system, factory_crashes=1000)
            await crash(ref)
            await trio.sleep_forever()


async def test_a_factory_that_fails_at_first_tells_whoever_spawns() -> None:
    def fail() -> Fragile:
        raise OSError("no")

    async with open_actor_system() as system:
        with pytest.raises(OSError, match="no"):
            system.spawn(fail, name="fragile")
        assert system.statistics() == []


async def test_children_end_with_their_parent_and_come_back_with_it(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system:
        _, ref = start(system)
        child = Diary()
        ref.control(SpawnChild(), live=(child, None))
        await wait_all_tasks_blocked()
        assert [(actor.name, actor.parent) for actor in system.statistics()] == [("fragile", ""), ("child", "fragile")]
        await crash(ref)
        assert child.ended_at == [0.0] and [actor.name for actor in system.statistics()] == ["fragile"]
        await trio.sleep(1)
        ref.control(SpawnChild(), live=(child, None))
        await wait_all_tasks_blocked()
        assert child.instances == 2
        await ref.stop()
        assert child.ended_at == [0.0, 1.0] and system.statistics() == []


async def test_a_child_that_escalates_crashes_its_parent(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system:
        diary, ref = start(system)
        ref.control(SpawnChild(), live=(Diary(), Supervision(strategy=Strategy.ESCALATE)))
        await wait_all_tasks_blocked()
        child = system.find("child")
        assert child is not None
        await crash(child)
        assert diary.ended_at == [0.0] and figures(system).crashes == 1
        await trio.sleep(1)
        assert await ref.ask(Check()) == Fine(2)
        assert system.find("child") is None


async def test_stop_answers_what_is_queued_and_waits_for_the_end(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        _, ref = start(system, end_sleeps=2.0)
        ends: list[tuple[str, float]] = []

        async def ask(seconds: float) -> None:
            try:
                await ref.ask(Check(seconds))
                ends.append(("fine", trio.current_time()))
            except ActorGone:
                ends.append(("gone", trio.current_time()))

        nursery.start_soon(ask, 5.0)
        await trio.sleep(1)
        nursery.start_soon(ask, 0.0)
        await wait_all_tasks_blocked()
        await ref.stop()
        assert trio.current_time() == 7.0
        assert sorted(ends) == [("fine", 5.0), ("gone", 5.0)]


async def test_stop_does_not_wait_for_a_pause(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system:
        diary, ref = start(system, Supervision(backoff_first=50.0, backoff_max=50.0))
        await crash(ref)
        await trio.sleep(1)
        await ref.stop()
        assert trio.current_time() == 1.0 and diary.instances == 1 and system.statistics() == []


@pytest.mark.parametrize("pause", [0.0, 1.0])
async def test_a_crash_at_the_end_of_a_stop_restarts_nothing(autojump_clock: MockClock, pause: float) -> None:
    async with open_actor_system() as system:
        diary, ref = start(system, Supervision(backoff_first=pause), end_crashes=True)
        await ref.stop()
        await trio.sleep(100)
        assert diary.instances == 1 and system.statistics() == []


@pytest.mark.parametrize(("sleeps", "ended"), [(2.0, 2.0), (100.0, 3.0)])
async def test_the_end_is_shielded_within_its_budget(autojump_clock: MockClock, sleeps: float, ended: float) -> None:
    async with open_actor_system() as system:
        diary, _ = start(system, end_sleeps=sleeps)
        await wait_all_tasks_blocked()
    assert diary.ended_at == [ended] and trio.current_time() == ended


async def test_a_cancellation_from_outside_leaves_the_order_of_the_end_to_the_block(autojump_clock: MockClock) -> None:
    with trio.move_on_after(1) as scope:
        async with open_actor_system() as system:
            _, ref = start(system)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    assert await ref.ask(Check(2.0)) == Fine(1)
                    await ref.stop()
    assert scope.cancelled_caught and trio.current_time() == 3.0


async def test_a_dropped_control_message_tells_its_sender(autojump_clock: MockClock) -> None:
    class Busy(Fragile):
        async def on_message(self, message: Any) -> Any:
            return await super().on_message(Crash() if isinstance(message, Remark) else message)

    async with open_actor_system() as system:
        ref = system.spawn(lambda: Busy(Diary()), name="fragile")
        dropped: list[int] = []
        for number in range(3):
            assert ref.control(Remark(), on_dropped=lambda n=number: dropped.append(n))  # type: ignore[misc]
        await wait_all_tasks_blocked()
        assert dropped == [0, 1, 2]
        assert not ref.control(Remark(), on_dropped=lambda: dropped.append(3))  # refused, not dropped
        await trio.sleep(1)
        assert ref.control(CrashInTask(), on_dropped=lambda: dropped.append(4))  # handled, though it crashes afterwards
        await trio.sleep(1)
        assert dropped == [0, 1, 2] and figures(system).gone == 3


async def test_a_crash_while_the_system_closes_is_logged_and_hides_nothing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(Fragile):
        async def on_start(self) -> None:
            self.start_soon(self._wait, name="wait")

        async def _wait(self) -> None:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with open_actor_system() as system:
            ref = system.spawn(lambda: Slow(Diary()), name="fragile")
            with pytest.raises(ActorGone):
                await ref.ask(Crash())
            _ = 1 / 0  # the system closes while the crashed actor still waits for its task
    assert "fragile crashed" in caplog.text


@pytest.mark.parametrize("deadline", [0.0, 1.0])
async def test_a_system_opens_and_closes_under_a_cancellation(autojump_clock: MockClock, deadline: float) -> None:
    with trio.move_on_at(deadline) as scope:
        async with open_actor_system() as system:
            diary, _ = start(system)
            await trio.sleep_forever()
    assert scope.cancelled_caught and trio.current_time() == deadline and diary.ended_at == [deadline]
