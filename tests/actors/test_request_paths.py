"""Request paths: what a queue remembers is where a request is and since when; cancelling frees its place; a tap hears what it hears."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors import delegates
from tests.actors.delegates import ScriptedDelegate, open_scripted
from tests.actors.encoders import asking, open_telling
from tests.actors.encoders import queue_of as encoder_queue
from tests.actors.rigs import Listener, assert_quiet, complete, open_toy, queue_figures, request, warm_up
from tripower.actors.dialogue import Failed, GenerationFinished, GenerationStarted, TokenChunk
from tripower.actors.embedding_queue import Embedded
from tripower.actors.queueing import CancelTicket, FollowTicket, Leave, SettleQueue
from tripower.actors.request_paths import PATHS_AT_ONCE, Queued, own_id, queued_paths, queues
from tripower.actors.request_tap import EVENTS_MAX, Tap
from tripower.actors.runtime import Runtime
from tripower.runtime.admission import Caller
from tripower.runtime.introspection import turns
from tripower.runtime.kernel import NEVER, NotFound, TripowerError

LONG = "p" * 600
"""A prompt of three steps."""


async def paths(runtime: Runtime) -> list[Queued]:
    return await queued_paths(runtime.system, trio.current_time())


@asynccontextmanager
async def asked(runtime: Runtime, *requests: Any, deadline: float = NEVER) -> AsyncIterator[list[Listener]]:
    """Somebody listens to each of these. At the end of the block nobody does any more."""
    listeners = [Listener() for _ in requests]
    async with trio.open_nursery() as nursery:
        for listener, each in zip(listeners, requests, strict=True):
            nursery.start_soon(listener.run, runtime.generate(each, deadline=deadline))
            await wait_all_tasks_blocked()
        yield listeners
        nursery.cancel_scope.cancel()


async def test_a_queue_tells_in_which_place_each_request_is_and_for_how_long(autojump_clock: MockClock) -> None:
    caller = Caller(identity="key-1", name="ann")
    async with open_toy(members_max=1) as (runtime, _):
        began = await warm_up(runtime)
        first = request(LONG, 9, request_id="one", caller=caller, priority=3)
        async with asked(runtime, first, request("q", 5), deadline=began + 100):
            await trio.sleep(1.5)
            one, two = await paths(runtime)
            assert (one.path.place, one.path.waiting, one.path.prompt, one.path.answer) == ("prompt", 0.0, 1.5, None)
            assert (one.path.id, one.path.label, one.path.priority) == ("one", "key-1 (ann)", 3)
            assert (one.path.prompt_tokens, one.path.evaluated_tokens, one.path.generated_tokens) == (600, 256, 0)
            assert (two.path.place, two.path.waiting, two.path.prompt) == ("waiting", 1.5, None)
            assert (two.path.id, own_id(two), two.path.tokens_max) == ("", f"toy#{two.ticket}", 5)
            assert one.path.age == two.path.age == 1.5 and one.path.deadline_left == 98.5
            await trio.sleep(4)
            one, two = await paths(runtime)
            assert (one.path.place, one.path.waiting, one.path.prompt, one.path.answer) == ("answer", 0.0, 3.0, 2.5)
            assert (one.path.generated_tokens, one.path.tokens_per_second) == (3, 2 / 2.5)
            assert (two.path.place, two.path.waiting) == ("waiting", 5.5)
        await wait_all_tasks_blocked()
        assert await paths(runtime) == []


async def test_a_delegates_streams_have_places_too(autojump_clock: MockClock) -> None:
    async with open_scripted(ScriptedDelegate(delegates.text("a", "b", "c")), members_max=1) as (runtime, _):
        requests = [delegates.ask(request_id=each, max_tokens=7) for each in ("one", "two")]
        async with asked(runtime, *requests):
            await trio.sleep(0.5)
            assert [(each.path.id, each.path.place) for each in await paths(runtime)] == [("one", "prompt"), ("two", "waiting")]
            await trio.sleep(2)
            one, _ = await paths(runtime)
            assert (one.path.place, one.path.prompt, one.path.answer) == ("answer", 1.0, 1.5)
            assert (one.path.generated_tokens, one.path.tokens_max) == (2, 7)


async def test_texts_that_become_vectors_have_places_too(autojump_clock: MockClock) -> None:
    async with open_telling(members_max=1) as (runtime, _), trio.open_nursery() as nursery:
        for each in ("one", "two"):
            nursery.start_soon(runtime.embed, asking("abc", "d", request_id=each))
            await wait_all_tasks_blocked()
        await trio.sleep(0.5)
        one, two = await paths(runtime)
        assert (one.path.id, one.path.place, one.path.prompt, one.path.prompt_tokens) == ("one", "prompt", 0.5, 8)
        assert (two.path.id, two.path.place, two.path.waiting) == ("two", "waiting", 0.5)


class Steps(trio.abc.Instrument):
    """How much happened in each step of any task."""

    def __init__(self) -> None:
        self.counts = [0]

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.counts.append(0)


async def test_many_requests_are_read_a_few_at_a_time_and_those_that_end_meanwhile_are_left_out(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()
    monkeypatch.setattr(turns, "now", lambda: next(ticks) * turns.HOLD_SECONDS / 3.5)
    async with open_toy(members_max=1, waiting_max=250) as (runtime, _):
        await warm_up(runtime)
        async with asked(runtime, *[request("p", 2)] * 250):
            (queue,) = queues(runtime.system)
            actor: Any = queue.look(lambda actor: actor)
            tell, tickets, steps = actor.request_path, actor.live_tickets(), Steps()

            def counted(ticket: int, now: float) -> Any:
                steps.counts[-1] += 1
                if ticket == tickets[0]:
                    actor._cancel(CancelTicket(tickets[-1]))
                return tell(ticket, now)

            actor.request_path = counted
            trio.lowlevel.add_instrument(steps)
            found = await paths(runtime)
            trio.lowlevel.remove_instrument(steps)
            assert [each.ticket for each in found] == tickets[:-1]
            assert max(steps.counts) == 4 * PATHS_AT_ONCE and sum(steps.counts) == 250


# Cancelling.


@pytest.mark.parametrize(("seconds", "which"), [(0.5, 1), (1.5, 0), (4.5, 0)], ids=["waiting", "prompt", "answer"])
async def test_a_cancelled_request_fails_where_it_is_and_its_place_is_free(
    autojump_clock: MockClock, seconds: float, which: int
) -> None:
    async with open_toy(members_max=1) as (runtime, backend):
        await warm_up(runtime)
        async with asked(runtime, request(LONG, 9), request("q", 5)) as listeners:
            await trio.sleep(seconds)
            queued = (await paths(runtime))[which]
            await queued.queue.ask(CancelTicket(queued.ticket))
            await queued.queue.ask(SettleQueue())
            await wait_all_tasks_blocked()
            error = listeners[which].error
            assert isinstance(error, TripowerError) and (error.code, error.status) == ("request_cancelled", 499)
            figures = queue_figures(runtime)
            assert (figures.cancelled, figures.gate.active, figures.gate.waiting) == (1, 1, 0)
            with pytest.raises(NotFound, match="toy#"):
                await queued.queue.ask(CancelTicket(queued.ticket))
        await trio.sleep(10)
        await assert_quiet(runtime, backend)
        await complete(runtime)


async def test_a_delegates_seat_is_free_when_its_stream_has_closed_and_nothing_follows_the_end(
    autojump_clock: MockClock,
) -> None:
    delegate = ScriptedDelegate(delegates.text("a", "b", "c"), closing_seconds=2.0)
    async with (
        open_scripted(delegate, members_max=1) as (runtime, _),
        asked(runtime, delegates.ask(), delegates.ask("q")) as (first, second),
    ):
        await trio.sleep(1.5)
        one, two = await paths(runtime)
        await two.queue.ask(CancelTicket(two.ticket))
        await one.queue.ask(CancelTicket(one.ticket))
        began = trio.current_time()
        await one.queue.ask(SettleQueue())
        assert trio.current_time() == began + 2.0 and delegate.left_early == 1
        for listener in (first, second):
            assert isinstance(listener.error, TripowerError) and listener.error.code == "request_cancelled"
        assert (first.text, second.text) == ("a", "")


async def test_vectors_that_are_cancelled_are_refused_to_whoever_waits(autojump_clock: MockClock) -> None:
    async with open_telling(members_max=1) as (runtime, _), trio.open_nursery() as nursery:
        codes: list[str] = []

        async def embed() -> None:
            with pytest.raises(TripowerError) as caught:
                await runtime.embed(asking("abc", "d", "e"))
            codes.append(caught.value.code)

        nursery.start_soon(embed)
        nursery.start_soon(embed)
        await trio.sleep(0.5)
        for queued in await paths(runtime):
            await queued.queue.ask(CancelTicket(queued.ticket))
            await queued.queue.ask(SettleQueue())
        await wait_all_tasks_blocked()
        assert codes == ["request_cancelled"] * 2
        figures = encoder_queue(runtime)
        assert (figures.cancelled, figures.gate.active, figures.gate.waiting, figures.batch.members) == (2, 0, 0, 0)


# Following.


def kinds(tap: Tap) -> list[type[Any]]:
    return [type(heard.event) for heard in tap.take()]


async def test_a_tap_hears_what_the_request_hears_and_takes_nothing_away(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        began = await warm_up(runtime)
        async with asked(runtime, request("p", 3)) as (listener,):
            (queued,) = await paths(runtime)
            taps = [Tap(), Tap()]
            for tap in taps:
                followed = await queued.queue.ask(FollowTicket(queued.ticket), live=tap)
                assert followed.path.place == "prompt"
            await trio.sleep(2.5)
            taps[1].close()
            await trio.sleep(5)
            assert listener.finished is not None and len(listener.tokens) == 3
            heard = taps[0].take()
            assert [type(each.event) for each in heard] == [GenerationStarted, *[TokenChunk] * 3, GenerationFinished]
            assert [each.at - began for each in heard] == [1.0, 1.0, 2.0, 3.0, 3.0]
            assert taps[1].take() == [] and {each.ticket for each in heard} == {queued.ticket}
            with pytest.raises(NotFound):
                await queued.queue.ask(FollowTicket(queued.ticket), live=Tap())


async def test_a_tap_hears_that_a_request_was_left_or_cancelled(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        await warm_up(runtime)
        left, cancelled = Tap(), Tap()
        async with asked(runtime, request("p", 9), request("q", 9)):
            for queued, tap in zip(await paths(runtime), (left, cancelled), strict=True):
                await queued.queue.ask(FollowTicket(queued.ticket), live=tap)
            await queued.queue.ask(CancelTicket(queued.ticket))
        await wait_all_tasks_blocked()
        assert kinds(left) == [Leave] and kinds(cancelled) == [GenerationStarted, Failed]


async def test_a_tap_hears_vectors_come(autojump_clock: MockClock) -> None:
    async with open_telling() as (runtime, _), trio.open_nursery() as nursery:
        nursery.start_soon(runtime.embed, asking("abc"))
        await trio.sleep(0.5)
        (queued,) = await paths(runtime)
        tap = Tap()
        await queued.queue.ask(FollowTicket(queued.ticket), live=tap)
        await tap.wait()
        assert kinds(tap) == [Embedded]


def test_a_tap_that_nobody_reads_only_counts() -> None:
    async def main() -> None:
        tap = Tap()
        for number in range(EVENTS_MAX + 5):
            tap.hear(number, "event")
        assert tap.missed == 5 and len(tap.take()) == EVENTS_MAX

    trio.run(main)


def test_a_path_can_be_written_as_json() -> None:
    from tripower.actors.request_paths import RequestPath

    path = RequestPath(id="a", model="toy", place="waiting", age=1.0, waiting=1.0)
    assert msgspec.json.decode(msgspec.json.encode(path), type=RequestPath) == path


async def test_a_tap_hears_whether_it_was_the_deadline(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        began = await warm_up(runtime)
        tap = Tap()
        async with asked(runtime, request("p", 9), deadline=began + 2.5):
            (queued,) = await paths(runtime)
            await queued.queue.ask(FollowTicket(queued.ticket), live=tap)
            await trio.sleep(3)
        heard = tap.take()
        assert [type(each.event) for each in heard] == [GenerationStarted, *[TokenChunk] * 2, Leave]
        assert heard[-1].event.expired and heard[-1].at == began + 2.5
