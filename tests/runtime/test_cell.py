"""The books of an actor balance after every single task step, whatever its callers do and however it fails."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tripower.runtime.kernel import (
    LATER,
    Actor,
    ActorGone,
    ActorSystem,
    Ask,
    DeadlineExceeded,
    Envelope,
    InboxFull,
    InvalidRequest,
    Message,
    Ref,
    Stop,
    Supervision,
    open_actor_system,
)
from tripower.runtime.kernel.determinism import deterministic_schedule


class Answer(Message, frozen=True):
    number: int


class Act(Ask[Answer], frozen=True):
    number: int
    kind: str


class Worker(Actor[Act]):
    inbox_max = 2
    end_seconds = 0.5

    async def on_message(self, message: Act) -> Any:
        match message.kind:
            case "sleep":
                await trio.sleep(1)
            case "nursery":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep, 1)
                    nursery.start_soon(trio.sleep, 2)
            case "later" | "never":
                return self._keep(self.envelope, message)
            case "refuse":
                raise InvalidRequest("no")
            case "crash":
                raise RuntimeError("crashed")
            case "crash late":
                await trio.sleep(1)
                raise RuntimeError("crashed")
            case "crash in task":
                self.start_soon(self._crash, name="task")
        return Answer(message.number)

    def _keep(self, envelope: Envelope, message: Act) -> Any:
        if message.kind == "later":
            self.start_soon(self._answer, envelope, message.number, name="answer")
        return LATER

    async def _answer(self, envelope: Envelope, number: int) -> None:
        await trio.sleep(1)
        envelope.answer(Answer(number))

    async def _crash(self) -> None:
        raise RuntimeError("crashed")

    async def on_end(self) -> None:
        await trio.sleep(1)  # beyond its budget


KINDS = ["quick", "sleep", "nursery", "later", "never", "refuse", "crash", "crash late", "crash in task"]


@attrs.frozen
class Caller:
    at: int
    kind: str
    way: str
    deadline: int | None
    gives_up: int | None


callers = st.builds(
    Caller,
    at=st.integers(0, 3),
    kind=st.sampled_from(KINDS[:6]) | st.sampled_from(KINDS),
    way=st.sampled_from(["ask", "ask", "ask", "tell", "nowait", "control"]),
    deadline=st.none() | st.integers(0, 5),
    gives_up=st.none() | st.integers(0, 5),
)


class Auditor(trio.abc.Instrument):
    """Checks the books after each step of any task."""

    def __init__(self) -> None:
        self.system: ActorSystem | None = None
        self.wrong: list[str] = []
        self.steps = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        for actor in self.system.statistics() if self.system else ():
            ends = actor.handled + actor.refused + actor.expired + actor.abandoned + actor.gone
            held = actor.inbox + actor.waiting + actor.pending + actor.control + (actor.message is not None)
            stop = actor.control and actor.state in ("starting", "ending", "restarting", "idle", "handling")
            if actor.received != ends + held and not (stop and actor.received == ends + held - 1):  # `Stop` is no message
                self.wrong.append(f"step {self.steps}: {actor}")


class Run:
    def __init__(self, plan: list[Caller], stop_at: int | None) -> None:
        self.plan, self.stop_at = plan, stop_at
        self.ends: Counter[str] = Counter()
        self.auditor = Auditor()
        self.dropped = 0

    async def main(self) -> None:
        async with trio.open_nursery() as nursery, open_actor_system() as system:
            self.auditor.system = system
            ref = system.spawn(
                Worker, name="worker", supervision=Supervision(restarts_max=100, backoff_first=1.0, backoff_max=1.0)
            )
            for number, caller in enumerate(self.plan):
                nursery.start_soon(self._call, ref, number, caller)
            await trio.sleep(20 if self.stop_at is None else self.stop_at)
            if self.stop_at is not None:
                ref.control(Stop())
                await ref.stop()
        self.auditor.system = None

    async def _call(self, ref: Ref[Any], number: int, caller: Caller) -> None:
        await trio.sleep(caller.at)
        with trio.CancelScope() as scope:
            if caller.gives_up is not None:
                scope.deadline = caller.at + caller.gives_up
            self.ends[await self._send(ref, Act(number, caller.kind), caller)] += 1
            return
        self.ends["cancelled"] += 1

    async def _send(self, ref: Ref[Any], message: Act, caller: Caller) -> str:
        try:
            match caller.way:
                case "ask":
                    deadline = float("inf") if caller.deadline is None else float(caller.deadline)
                    assert await ref.ask(message, deadline=deadline) == Answer(message.number)
                case "tell":
                    await ref.tell(message)
                case "nowait":
                    ref.tell_nowait(message)
                case "control":
                    return "told" if ref.control(message, on_dropped=self._drop) else "gone"
        except (ActorGone, DeadlineExceeded, InvalidRequest, InboxFull) as error:
            return error.code
        return "answered"

    def _drop(self) -> None:
        self.dropped += 1


@contextmanager
def quiet_logs() -> Iterator[None]:
    logger = logging.getLogger("tripower")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@settings(deadline=None, max_examples=250)
@given(st.lists(callers, min_size=1, max_size=9), st.none() | st.integers(0, 4), st.integers(0, 2**16))
@example([Caller(0, "nursery", "ask", 1, None)], None, 0)
@example([Caller(0, "sleep", "ask", 1, 1), Caller(0, "never", "ask", 1, None), Caller(0, "crash", "control", None, None)], 1, 0)
def test_every_message_ends_once_and_the_books_balance_at_every_step(
    plan: list[Caller], stop_at: int | None, seed: int
) -> None:
    run = Run(plan, stop_at)
    with deterministic_schedule(seed), quiet_logs():
        trio.run(run.main, clock=MockClock(autojump_threshold=0), instruments=[run.auditor])
    assert not run.auditor.wrong
    assert run.auditor.steps > 5
    assert sum(run.ends.values()) == len(plan)


async def test_the_auditor_notices_a_message_that_is_lost(autojump_clock: MockClock) -> None:
    auditor = Auditor()
    trio.lowlevel.add_instrument(auditor)
    async with open_actor_system() as system:
        auditor.system = system
        ref = system.spawn(Worker, name="worker")
        ref.tell_nowait(Act(0, "quick"))
        ref._cell._inbox.clear()
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        auditor.system = None
    trio.lowlevel.remove_instrument(auditor)
    assert auditor.wrong
