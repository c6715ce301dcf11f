"""One actor and those who ask it: every way in which a message can end."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tripower.runtime.kernel import (
    LATER,
    Actor,
    ActorGone,
    ActorStatistics,
    ActorSystem,
    Ask,
    Envelope,
    InvalidRequest,
    Message,
    Ref,
    Stop,
    Supervision,
    open_actor_system,
)


class Counted(Message, frozen=True):
    n: int


class Count(Ask[Counted], frozen=True):
    """Answered by the handler, after some time."""

    n: int
    seconds: float = 0.0


class CountInNursery(Ask[Counted], frozen=True):
    """The same with a child task, whose cancellation arrives as a group."""

    seconds: float


class Keep(Ask[Counted], frozen=True):
    """Answered by the test."""


class KeepAndLeave(Ask[Counted], frozen=True):
    """The envelope carries the caller's scope, which the handler cancels before it returns. `late`: it would have answered later."""

    late: bool


class AnswerAtOnce(Ask[Counted], frozen=True):
    """Answered inside the handler, which then returns `LATER`."""


class Refuse(Ask[Counted], frozen=True):
    pass


class Remark(Message, frozen=True):
    n: int


class Strange(Ask[Counted], frozen=True):
    """Not understood."""


Command = Count | CountInNursery | Keep | KeepAndLeave | AnswerAtOnce | Refuse | Remark


class Desk(Actor[Command]):
    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.kept: list[Envelope] = []
        self.undelivered: list[Any] = []
        self.abandoned = 0

    async def on_message(self, message: Command) -> Any:
        self.seen.append(message)
        match message:
            case Count(n, seconds):
                if seconds:
                    await trio.sleep(seconds)
                return Counted(n)
            case CountInNursery(seconds):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep, seconds)
                    await trio.sleep(seconds)
                return Counted(0)
            case Keep():
                return self._keep()
            case KeepAndLeave(late):
                self._keep()
                self.envelope.live.cancel()
                return LATER if late else Counted(0)
            case AnswerAtOnce():
                self.envelope.answer(Counted(7))
                return LATER
            case Refuse():
                raise InvalidRequest("no", param="n")
            case Remark():
                return None

    def _keep(self) -> Any:
        envelope = self.envelope
        self.kept.append(envelope)
        envelope.on_abandon = self._count_abandoned
        return LATER

    def _count_abandoned(self) -> None:
        self.abandoned += 1

    def on_undelivered(self, message: Any, answer: Any) -> None:
        self.undelivered.append(answer)

    def statistics(self) -> int:
        return len(self.seen)


def start(system: ActorSystem) -> tuple[Desk, Ref[Any]]:
    desk = Desk()
    return desk, system.spawn(lambda: desk, name="desk")


def figures(system: ActorSystem, name: str = "desk") -> ActorStatistics:
    return next(actor for actor in system.statistics() if actor.name == name)


def ends(system: ActorSystem) -> dict[str, int]:
    """What has become of the messages, without the zeros. Checks that the books balance."""
    actor = figures(system)
    counts = {name: getattr(actor, name) for name in ("handled", "refused", "expired", "abandoned", "gone")}
    queued = actor.inbox + actor.waiting + actor.control + actor.pending + (actor.message is not None)
    assert actor.received == sum(counts.values()) + queued
    return {name: count for name, count in counts.items() if count} | ({"queued": queued} if queued else {})


async def ask_into(answers: list[Any], ref: Ref[Any], message: Message, scope: trio.CancelScope | None = None) -> None:
    with scope or trio.CancelScope():
        answers.append(await ref.ask(message, live=scope))


async def test_an_ask_is_answered() -> None:
    async with open_actor_system() as system:
        _, ref = start(system)
        assert await ref.ask(Count(3)) == Counted(3)
        assert ends(system) == {"handled": 1}


async def test_a_refusal_is_an_answer_and_the_actor_lives_on() -> None:
    async with open_actor_system() as system:
        _, ref = start(system)
        with pytest.raises(InvalidRequest, match="no"):
            await ref.ask(Refuse())
        assert await ref.ask(Count(1)) == Counted(1)
        assert ends(system) == {"handled": 1, "refused": 1}


async def test_a_refused_tell_is_logged_and_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with open_actor_system() as system:
        _, ref = start(system)
        await ref.tell(Refuse())
        assert await ref.ask(Count(1)) == Counted(1)
        assert ends(system) == {"handled": 1, "refused": 1}
    assert "desk refused Refuse" in caplog.text


async def test_what_is_cancelled_while_queued_is_never_handled(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        desk, ref = start(system)
        answers: list[Any] = []
        nursery.start_soon(ask_into, answers, ref, Count(1, 10.0))
        await wait_all_tasks_blocked()
        scope = trio.CancelScope()
        nursery.start_soon(ask_into, answers, ref, Count(2), scope)
        await wait_all_tasks_blocked()
        assert figures(system).inbox == 1
        scope.cancel()
        assert figures(system).inbox == 0  # its place is free before anybody ran
        await trio.sleep(20)
        assert answers == [Counted(1)] and desk.seen == [Count(1, 10.0)]
        assert ends(system) == {"handled": 1, "abandoned": 1}


@pytest.mark.parametrize("message", [Count(1, 10.0), CountInNursery(10.0)])
async def test_a_handler_stops_when_its_caller_gives_up(autojump_clock: MockClock, message: Message) -> None:
    async with open_actor_system() as system:
        _, ref = start(system)
        with trio.move_on_after(1):
            await ref.ask(message)
        assert await ref.ask(Count(2)) == Counted(2)
        assert trio.current_time() == 1
        assert ends(system) == {"handled": 1, "abandoned": 1}


async def test_an_answer_given_in_the_turn_of_the_cancellation_still_arrives() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        desk, ref = start(system)
        answers: list[Any] = []
        scope = trio.CancelScope()
        nursery.start_soon(ask_into, answers, ref, Keep(), scope)
        await wait_all_tasks_blocked()
        assert desk.kept[0].answer(Counted(1))
        scope.cancel()
        await wait_all_tasks_blocked()
        assert answers == [Counted(1)] and desk.abandoned == 0
        assert ends(system) == {"handled": 1}


async def test_an_answer_after_the_cancellation_stays_with_the_actor() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        desk, ref = start(system)
        answers: list[Any] = []
        scope = trio.CancelScope()
        nursery.start_soon(ask_into, answers, ref, Keep(), scope)
        await wait_all_tasks_blocked()
        scope.cancel()
        assert not desk.kept[0].answer(Counted(1))
        assert desk.abandoned == 1 and answers == []
        assert ends(system) == {"abandoned": 1}


async def test_an_answer_that_nobody_takes_is_given_back_to_the_actor() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        desk, ref = start(system)
        nursery.start_soon(ask_into, [], ref, KeepAndLeave(late=False), trio.CancelScope())
        await wait_all_tasks_blocked()
        assert desk.undelivered == [Counted(0)]
        assert await ref.ask(Count(1)) == Counted(1)
        assert ends(system) == {"handled": 2}


async def test_who_leaves_while_the_handler_decides_to_answer_later_is_heard() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        desk, ref = start(system)
        nursery.start_soon(ask_into, [], ref, KeepAndLeave(late=True), trio.CancelScope())
        await wait_all_tasks_blocked()
        assert desk.abandoned == 1
        assert await ref.ask(Count(1)) == Counted(1)
        assert ends(system) == {"handled": 1, "abandoned": 1}


@pytest.mark.parametrize(
    ("settle", "end"),
    [
        (lambda envelope: envelope.answer(Counted(5)), {"handled": 1}),
        (lambda envelope: envelope.refuse(InvalidRequest("later no")), {"refused": 1}),
    ],
)
async def test_a_kept_ask_is_answered_or_refused_later(settle: Callable[[Envelope], bool], end: dict[str, int]) -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        desk, ref = start(system)
        outcomes: list[Any] = []

        async def ask() -> None:
            try:
                outcomes.append(await ref.ask(Keep()))
            except InvalidRequest as error:
                outcomes.append(error.message)

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        assert figures(system).pending == 1 and ends(system) == {"queued": 1}
        assert settle(desk.kept[0]) and not settle(desk.kept[0])
        await wait_all_tasks_blocked()
        assert outcomes == ([Counted(5)] if "handled" in end else ["later no"])
        assert ends(system) == end


async def test_a_handler_may_answer_by_itself() -> None:
    async with open_actor_system() as system:
        desk, ref = start(system)
        assert await ref.ask(AnswerAtOnce()) == Counted(7)
        assert ends(system) == {"handled": 1} and desk.undelivered == []


async def test_after_its_end_an_actor_refuses_every_kind_of_message() -> None:
    async with open_actor_system() as system:
        _, ref = start(system)
        await ref.stop()
        with pytest.raises(ActorGone):
            await ref.ask(Count(1))
        with pytest.raises(ActorGone):
            await ref.tell(Remark(1))
        with pytest.raises(ActorGone):
            ref.tell_nowait(Remark(1))
        assert ref.control(Remark(1)) is False
        assert ref.control(Stop()) is False
        await ref.stop()
        assert system.statistics() == [] and system.find("desk") is None


async def test_stop_can_be_told_without_waiting() -> None:
    async with open_actor_system() as system:
        desk, ref = start(system)
        assert ref.control(Stop()) and not ref.control(Remark(1))
        assert ref.control(Stop()) is False
        await ref.stop()
        assert desk.seen == []


async def test_a_message_of_an_unknown_type_is_the_senders_mistake() -> None:
    async with open_actor_system() as system:
        _, ref = start(system)
        with pytest.raises(TypeError, match="desk does not understand Strange"):
            await ref.ask(Strange())
        with pytest.raises(TypeError):
            await ref.tell(Strange())
        with pytest.raises(TypeError):
            ref.tell_nowait(Strange())
        with pytest.raises(TypeError):
            ref.control(Strange())
        assert await ref.ask(Count(1)) == Counted(1)
        assert ends(system) == {"handled": 1}


@pytest.mark.parametrize("command", [int, Count | int, "Count", Ask[Counted], None])
def test_a_command_that_is_no_message_is_found_when_the_class_is_made(command: Any) -> None:
    with pytest.raises(TypeError, match="an actor understands Message classes"):
        types.new_class("Broken", (Actor[command],))


async def test_statistics_show_what_is_in_hand(autojump_clock: MockClock) -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        _, ref = start(system)
        assert figures(system).state == "starting" and figures(system).details is None
        nursery.start_soon(ask_into, [], ref, Count(1, 4.0))
        await trio.sleep(3)
        ref.tell_nowait(Remark(1))
        actor = figures(system)
        assert (actor.kind, actor.parent, actor.state, actor.message) == ("Desk", "", "handling", "Count")
        assert (actor.handling_seconds, actor.inbox, actor.inbox_peak, actor.details) == (3.0, 1, 1, 1)
        await trio.sleep(2)
        actor = figures(system)
        assert (actor.state, actor.message, actor.handling_seconds, actor.details) == ("idle", None, 0.0, 2)


async def test_a_name_is_taken_until_its_actor_has_ended() -> None:
    async with open_actor_system() as system:
        _, ref = start(system)
        with pytest.raises(ValueError, match="an actor named desk is already there"):
            start(system)
        found = system.find("desk")
        assert found is not None and found.name == "desk"
        await ref.stop()
        start(system)


async def test_an_answer_that_crashes_on_its_way_back_is_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    class Clumsy(Desk):
        def on_undelivered(self, message: Any, answer: Any) -> None:
            raise RuntimeError("clumsy")

    async with open_actor_system() as system, trio.open_nursery() as nursery:
        ref = system.spawn(Clumsy, name="desk", supervision=Supervision(backoff_first=0.0))
        nursery.start_soon(ask_into, [], ref, KeepAndLeave(late=False), trio.CancelScope())
        await wait_all_tasks_blocked()
        assert await ref.ask(Count(1)) == Counted(1)
        assert ends(system) == {"handled": 2} and figures(system).crashes == 1
