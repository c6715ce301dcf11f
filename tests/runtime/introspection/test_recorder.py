"""What a flight recorder remembers of the messages between actors, and what it forgets."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

from tests.actors.rigs import Saboteur, complete, open_toy, request, warm_up
from tripower.runtime.introspection.recorder import NOTE_BYTES_MAX, Recorder, Shelf
from tripower.runtime.introspection.recording import Crashed, Noted, Passed
from tripower.runtime.kernel import (
    LATER,
    Actor,
    ActorGone,
    Ask,
    DeadlineExceeded,
    Envelope,
    InvalidRequest,
    Message,
    Ref,
    open_actor_system,
)


class Done(Message, frozen=True):
    word: str


class Do(Ask[Done], frozen=True):
    """What is to be done, and how long it takes."""

    word: str
    seconds: float = 0.0


class Note(Message, frozen=True):
    pass


class Clerk(Actor[Do | Note]):
    """Does it, refuses it, or keeps it."""

    def __init__(self) -> None:
        self.kept: list[Envelope] = []

    async def on_message(self, message: Do | Note) -> Any:
        if isinstance(message, Note):
            return None
        if message.word == "refuse":
            raise InvalidRequest("no", code="not_that")
        if message.word == "keep":
            self.kept.append(self.envelope)
            return LATER
        if message.word == "fail":
            raise RuntimeError("broken")
        await trio.sleep(message.seconds)
        return Done(message.word)


def passed(recorder: Recorder) -> list[Passed]:
    return [record for record in recorder.read() if isinstance(record, Passed)]


async def test_each_message_is_remembered_with_its_way_and_its_times(autojump_clock: trio.testing.MockClock) -> None:
    async with open_actor_system() as system:
        system.recording = recorder = Recorder()
        clerk: Ref[Any] = system.spawn(Clerk, name="clerk")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clerk.ask, Do("slow", 2.0), name="first caller")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(clerk.ask, Do("slow", 1.0), name="second caller")
            await trio.testing.wait_all_tasks_blocked()
            clerk.tell_nowait(Note())
            clerk.control(Note())
        first, control, second, tell = passed(recorder)
    assert (first.sender, first.receiver, first.kind, first.message) == ("first caller", "clerk", "ask", "Do")
    assert (first.sent, first.started, first.ended, first.outcome) == (0.0, 0.0, 2.0, "answered")
    assert (second.sender, second.sent, second.started, second.ended) == ("second caller", 0.0, 2.0, 3.0)
    assert (control.kind, control.outcome, control.started) == ("control", "taken", 2.0)
    assert (tell.kind, tell.outcome, tell.sent, tell.started) == ("tell", "taken", 0.0, 3.0)
    assert [each.number for each in (first, control, second, tell)] == [1, 2, 3, 4]
    assert first.size == pytest.approx(len(b'{"type":"Do","word":"slow","seconds":2.0}'), rel=0.5)
    assert first.payload is None


async def test_what_came_to_nothing_is_remembered_with_the_reason(autojump_clock: trio.testing.MockClock) -> None:
    async with open_actor_system() as system:
        system.recording = recorder = Recorder()
        clerk: Ref[Any] = system.spawn(Clerk, name="clerk")
        with pytest.raises(InvalidRequest):
            await clerk.ask(Do("refuse"))
        with pytest.raises(DeadlineExceeded):
            await clerk.ask(Do("slow", 9.0), deadline=trio.current_time() + 1)
        with trio.move_on_after(1):
            await clerk.ask(Do("slow", 9.0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clerk.ask, Do("slow", 3.0))
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(1):
                await clerk.ask(Do("queued"))
            with pytest.raises(DeadlineExceeded):
                await clerk.ask(Do("queued"), deadline=trio.current_time() + 1)
        outcomes = [(record.outcome, record.started is not None) for record in passed(recorder)]
    assert outcomes == [
        ("not_that", True),
        ("deadline_exceeded", True),
        ("abandoned", True),
        ("abandoned", False),
        ("deadline_exceeded", False),
        ("answered", True),
    ]


async def test_an_answer_that_comes_later_is_a_record_of_its_own(autojump_clock: trio.testing.MockClock) -> None:
    async with open_actor_system() as system:
        system.recording = recorder = Recorder()
        instance = Clerk()
        clerk: Ref[Any] = system.spawn(lambda: instance, name="clerk")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clerk.ask, Do("keep"))
            await trio.sleep(1)
            (held,) = recorder.held(system)
            assert (held.outcome, held.kind, held.sent, held.number) == ("later", "answer", 0.0, 0)
            instance.kept[0].answer(Done("kept"))
        kept, answer = passed(recorder)
    assert (kept.kind, kept.outcome, kept.ended) == ("ask", "later", 0.0)
    assert (answer.kind, answer.outcome, answer.sent, answer.ended) == ("answer", "answered", 0.0, 1.0)


async def test_a_crash_is_noted_and_whoever_waits_is_recorded_as_gone(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_actor_system() as system:
        system.recording = recorder = Recorder()
        clerk: Ref[Any] = system.spawn(Clerk, name="clerk")
        with pytest.raises(ActorGone):
            await clerk.ask(Do("fail"))
        await trio.testing.wait_all_tasks_blocked()
        records = list(recorder.read())
    assert [record.outcome for record in records if isinstance(record, Passed)] == ["actor_gone"]
    (note,) = (record for record in records if isinstance(record, Noted))
    assert note.data == Crashed("clerk", "RuntimeError")


async def test_off_it_remembers_nothing_and_costs_the_envelope_nothing() -> None:
    async with open_actor_system() as system:
        clerk: Ref[Any] = system.spawn(Clerk, name="clerk")
        recorder = Recorder()
        await clerk.ask(Do("before"))
        system.recording = recorder
        await clerk.ask(Do("during"))
        late: Ref[Any] = system.spawn(Clerk, name="late")
        await late.ask(Do("an actor that came later"))
        system.recording = None
        await clerk.ask(Do("after"))
        assert [record.receiver for record in passed(recorder)] == ["clerk", "late"]
        envelope = Envelope(Do("x"), 0.0, None, clerk._cell)
        assert envelope.sent is None


async def test_turned_on_in_the_middle_it_knows_of_a_message_since_it_was_taken(autojump_clock: trio.testing.MockClock) -> None:
    async with open_actor_system() as system:
        clerk: Ref[Any] = system.spawn(Clerk, name="clerk")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clerk.ask, Do("slow", 1.0))
            await trio.testing.wait_all_tasks_blocked()
            system.recording = recorder = Recorder()
        (record,) = passed(recorder)
    assert (record.sent, record.started, record.outcome) == (0.0, 0.0, "answered")


async def test_the_ring_is_bounded_and_says_where_it_begins() -> None:
    async with open_actor_system() as system:
        system.recording = recorder = Recorder(entries_max=10)
        clerk: Ref[Any] = system.spawn(Clerk, name="clerk")
        for number in range(100):
            await clerk.ask(Do(str(number)))
        numbers = [record.number for record in recorder.read()]
    assert numbers == list(range(91, 101))
    assert recorder.last == 100 and len(recorder) == 10
    assert [record.number for record in recorder.read(97)] == [98, 99, 100]
    with pytest.raises(ValueError, match="at least one"):
        Recorder(entries_max=0)


async def test_notes_are_bounded_in_bytes_too() -> None:
    recorder = Recorder(entries_max=1000)
    for number in range(100):
        recorder.note("queue", 0.0, number, NOTE_BYTES_MAX // 8)
    assert [record.data for record in recorder.read() if isinstance(record, Noted)] == list(range(92, 100))
    assert recorder.bytes_kept <= NOTE_BYTES_MAX


def test_a_thing_that_is_too_large_is_not_kept() -> None:
    shelf: Shelf[str] = Shelf(10, 100)
    shelf.put(1, 60, "small")
    shelf.put(2, 101, "large")
    assert len(shelf) == shelf.bytes == 0
    shelf.put(3, 60, "small")
    assert shelf.after(0) == [(3, 60, "small")] and shelf.last == 3


async def test_payloads_are_kept_while_somebody_asks_for_them_and_no_longer() -> None:
    async with open_actor_system() as system:
        system.recording = recorder = Recorder()
        clerk: Ref[Any] = system.spawn(Clerk, name="clerk")
        await clerk.ask(Do("before"))
        recorder.keep_payloads()
        recorder.keep_payloads()
        await clerk.ask(Do("during"))
        recorder.drop_payloads()
        payloads = [record.payload for record in recorder.read(payloads=True) if isinstance(record, Passed)]
        assert payloads == [None, {"type": "Do", "word": "during", "seconds": 0.0}]
        assert all(record.payload is None for record in passed(recorder))
        recorder.drop_payloads()
        assert all(record.payload is None for record in recorder.read(payloads=True) if isinstance(record, Passed))


async def test_the_size_of_a_long_message_grows_with_it() -> None:
    async with open_actor_system() as system:
        system.recording = recorder = Recorder()
        clerk: Ref[Any] = system.spawn(Clerk, name="clerk")
        await clerk.ask(Do("x"))
        await clerk.ask(Do("x" * 1000))
        short, long = passed(recorder)
    assert long.size - short.size == 4 * 999


async def test_every_message_of_a_busy_runtime_is_recorded_once(autojump_clock: trio.testing.MockClock) -> None:
    saboteur = Saboteur()
    async with open_toy(members_max=1, recorder_entries=10_000, on_instance=saboteur.on_instance) as (runtime, _):
        await warm_up(runtime)
        with trio.move_on_after(3):
            async with runtime.generate(request(max_tokens=50)) as generation:
                async for _ in generation:
                    pass
        await complete(runtime)
        await trio.sleep(60)
        recorder = runtime.system.recording
        assert isinstance(recorder, Recorder)
        assert recorder.last < 10_000, "nothing was overwritten"
        counts: Counter[tuple[str, str]] = Counter()
        for record in passed(recorder):
            outcome = "handled" if record.outcome in ("answered", "taken") else record.outcome
            counts[record.receiver, outcome] += 1
        for actor in runtime.statistics():
            told = {"handled": actor.handled, "actor_gone": actor.gone, "abandoned": actor.abandoned}
            assert {name: counts[actor.name, name] for name in told} == told, actor.name
            assert counts[actor.name, "deadline_exceeded"] == actor.expired
