"""`requests`, `trace` and `cancel`: every place is seen with its time, and left when it is cancelled."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.encoders import TellingBackend, encodings_only, telling_plan
from tests.actors.rigs import Listener, open_toy, request, steps_only, warm_up
from tests.api.console.rigs import LONG, ask, looking_at_toy, run, shown, stream, subject_of
from tests.api.fake_runtime import BIG, Script, finished, never_ending, tokens
from tests.api.http2_client import http2
from tests.api.serving import ASK, CHAT, COMPLETIONS, Server, request_bytes, serving, serving_toy, until
from tripower.actors.queueing import QueueStatistics
from tripower.actors.request_paths import RequestPath, queued_paths
from tripower.api.console.verb import Subject
from tripower.api.console.verbs import find_verb
from tripower.api.request_paths import TEXT_MAX, printable
from tripower.api.trace_events import TraceEvent
from tripower.runtime.kernel import InlineLane, InvalidRequest, LaneJob, NotFound, TripowerError

BURST = Script([[*tokens(*[BIG] * 300), *finished(generated=300)]])
"""A model that is done at once, with more than any buffer holds."""


async def only(subject: Subject, *words: str) -> RequestPath:
    (path,) = await run(subject, "requests", *words)
    assert isinstance(path, RequestPath)
    return path


def gate_of(subject: Subject) -> tuple[int, int]:
    (queue,) = [each.details for each in subject.runtime.statistics() if isinstance(each.details, QueueStatistics)]
    return queue.gate.active, queue.gate.waiting


async def blocked(server: Server) -> None:
    """Until the server can write no further."""
    await until(lambda: any(exchange.waiting_since is not None for exchange in subject_of(server).active))


# Places.


async def test_the_gate_the_prompt_and_the_answer_are_told_with_their_times(autojump_clock: MockClock) -> None:
    async with looking_at_toy() as (server, subject), trio.open_nursery() as nursery:
        await ask(nursery, server, "one", LONG, stream=True)
        await ask(nursery, server, "two", "q", 5)
        await trio.sleep(1.5)
        one, two = await run(subject, "requests")
        assert (one.id, one.model, one.route, one.place) == ("one", "toy", COMPLETIONS, "prompt")
        assert (one.age, one.arriving, one.waiting, one.prompt, one.answer, one.socket) == (1.5, 0.0, 0.0, 1.5, None, None)
        assert (two.id, two.place, two.arriving, two.waiting, two.prompt) == ("two", "waiting", 0.0, 1.5, None)
        await trio.sleep(4)
        one, two = await run(subject, "requests", "toy")
        assert (one.place, one.prompt, one.answer, one.generated_tokens) == ("answer", 3.0, 2.5, 3)
        assert (two.place, two.waiting) == ("waiting", 5.5)
        with pytest.raises(NotFound, match="there is no model 'another'; known: toy"):
            await run(subject, "requests", "another")
        assert find_verb("requests").complete(subject) == ["toy"]
        assert set(find_verb("cancel").complete(subject)) >= {"one", "two"} <= set(find_verb("where").complete(subject))
        nursery.cancel_scope.cancel()


async def test_a_body_that_does_not_come_is_told_and_can_be_cancelled(autojump_clock: MockClock) -> None:
    async with looking_at_toy() as (server, subject), server.client() as client:
        await client.send(request_bytes(COMPLETIONS, {"model": "toy"}, headers={"x-request-id": "slow"})[:-3])
        await until(lambda: bool(subject.active))
        await trio.sleep(2)
        path = await only(subject)
        assert (path.id, path.place, path.arriving, path.model, path.age) == ("slow", "arriving", 2.0, "", 2.0)
        began = trio.current_time()
        (ended,) = await run(subject, "cancel", "slow")
        assert (ended.place, ended.age) == ("arriving", 2.0) and trio.current_time() == began
        answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (499, "request_cancelled")
        assert await run(subject, "requests") == []


async def test_a_model_that_loads_is_waited_for_on_arrival(autojump_clock: MockClock) -> None:
    def pace(job: LaneJob) -> float:
        return 2.0 if job.name.startswith("load") and loading else steps_only(job)

    loading = False
    async with looking_at_toy(pace=pace) as (server, subject), trio.open_nursery() as nursery:
        await subject.runtime.unload("toy")
        loading = True
        first = await ask(nursery, server, "one")
        await trio.sleep(1)
        path = await only(subject)
        assert (path.id, path.model, path.place, path.arriving, path.waiting) == ("one", "toy", "arriving", 1.0, None)
        (ended,) = await run(subject, "cancel", "one")
        await wait_all_tasks_blocked()
        assert ended.place == "arriving" and first.code == "request_cancelled"
        await ask(nursery, server, "two")
        await trio.sleep(8.5)
        path = await only(subject)
        assert path.id == "two" and path.arriving is not None and path.arriving >= 4.0 and path.place in ("prompt", "answer")


async def test_a_client_that_does_not_read_is_told_with_what_its_model_took(autojump_clock: MockClock) -> None:
    async with serving(BURST) as server, server.client() as client:
        client.stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
        await client.send_request(CHAT, ASK | {"stream": True}, headers={"x-request-id": "deaf"})
        await blocked(server)
        subject = subject_of(server)
        await trio.sleep(3)
        path = await only(subject)
        assert (path.id, path.place, path.socket, path.age) == ("deaf", "socket", 3.0, 3.0)
        assert (path.waiting, path.prompt, path.answer, path.generated_tokens) == (0.5, 0.25, 2.0, 300)
        assert path.tokens_per_second == 299 / 2.0
        assert "deaf" in shown("requests", [path]) and "socket" in shown("requests", [path])
        began = trio.current_time()
        (ended,) = await run(subject, "cancel", "deaf")
        assert ended.place == "socket" and trio.current_time() == began and await run(subject, "requests") == []


async def test_a_whole_answer_that_is_not_read_is_cut_off_when_it_is_cancelled(autojump_clock: MockClock) -> None:
    async with serving(BURST) as server, server.client() as client:
        client.stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
        await client.send_request(CHAT, ASK, headers={"x-request-id": "deaf"})
        await blocked(server)
        subject = subject_of(server)
        assert (await only(subject)).place == "socket" and not server.runtime.running
        (exchange,) = subject.active
        await run(subject, "cancel", "deaf")
        assert exchange.end == "request_cancelled" and trio.current_time() == 0
        await server.wait_closed()


async def test_a_stream_of_http_2_that_is_not_read_is_told_and_cut_off_alone(autojump_clock: MockClock) -> None:
    async with (
        serving(never_ending(), Script([tokens("a"), math.inf])) as server,
        http2(server.port, acknowledges=False) as client,
    ):
        client.frames.increment_flow_control_window(1 << 20)  # of the connection: it is this stream that is not read
        await client.begin(CHAT, ASK | {"stream": True}, headers={"x-request-id": "deaf"})
        await client.read_until(lambda: 1 in client.answers and len(client.answers[1].body) > 60_000)
        await client.begin(CHAT, ASK | {"stream": True}, headers={"x-request-id": "other"})
        await client.read_until(lambda: 3 in client.answers)
        subject = subject_of(server)
        await trio.sleep(3)
        by_id = {path.id: path for path in await run(subject, "requests")}
        assert by_id["deaf"].place == "socket" and by_id["deaf"].socket >= 2.9 and by_id["other"].place == "answer"
        began = trio.current_time()
        await run(subject, "cancel", "deaf")
        assert trio.current_time() == began and (await only(subject)).id == "other"


async def test_several_answers_to_one_request_are_one_line(autojump_clock: MockClock) -> None:
    async with looking_at_toy(members_max=2) as (server, subject), trio.open_nursery() as nursery:
        asked = await ask(nursery, server, "one", max_tokens=8, n=2)
        await trio.sleep(4.5)
        path = await only(subject)
        generated = [each.path.generated_tokens for each in await queued_paths(subject.runtime.system, trio.current_time())]
        assert len(generated) == 2 and min(generated) >= 2 and path.generated_tokens == sum(generated)
        assert (path.id, path.place, path.tokens_max) == ("one", "answer", 16)
        await run(subject, "cancel", "one")
        await wait_all_tasks_blocked()
        assert asked.code == "request_cancelled" and gate_of(subject) == (0, 0)


async def test_a_request_for_vectors_is_found_by_its_id(autojump_clock: MockClock) -> None:
    plan = telling_plan(TellingBackend(), open_port=lambda: InlineLane(encodings_only))
    async with serving_toy(plan) as server, trio.open_nursery() as nursery:
        await wait_all_tasks_blocked()
        subject = subject_of(server)
        body = {"model": "vectors", "input": ["abc", "d", "e"]}
        nursery.start_soon(lambda: server.ask("/v1/embeddings", body, headers={"x-request-id": "one"}))
        await until(lambda: bool(subject.active))
        await wait_all_tasks_blocked()
        await trio.sleep(0.5)
        path = await only(subject, "vectors")
        assert (path.id, path.place, path.prompt, path.prompt_tokens) == ("one", "prompt", 0.5, 11)
        (ended,) = await run(subject, "cancel", "one")
        assert ended.place == "prompt"
        assert await run(subject, "requests") == []


async def test_many_requests_are_listed_in_many_turns(autojump_clock: MockClock) -> None:
    async with open_toy(members_max=1, waiting_max=300) as (runtime, _):
        await warm_up(runtime)
        async with trio.open_nursery() as nursery:
            for _ in range(300):
                nursery.start_soon(Listener().run, runtime.generate(request("p", 2)))
            await wait_all_tasks_blocked()
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    await trio.lowlevel.checkpoint()
                    turns += 1

            nursery.start_soon(count)
            paths = await find_verb("requests").run(Subject(runtime=runtime), ())  # type: ignore[misc]
            assert len(paths) == 300 and turns >= 5
            nursery.cancel_scope.cancel()


def test_what_a_client_wrote_does_nothing_to_a_terminal() -> None:
    assert printable("/v1/\x1b[2J\x07ü") == "/v1/\ufffd[2J\ufffdü"
    assert len(printable("x" * 5000)) == TEXT_MAX


# Cancelling.


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("seconds", "wanted"), [(0.5, "two"), (1.5, "one"), (4.5, "one")], ids=["waiting", "prompt", "answer"])
async def test_a_cancelled_request_is_told_so_and_its_place_is_free_when_the_verb_answers(
    autojump_clock: MockClock, seconds: float, wanted: str, streams: bool
) -> None:
    async with looking_at_toy() as (server, subject), trio.open_nursery() as nursery:
        asked = {each: await ask(nursery, server, each, LONG, stream=streams) for each in ("one", "two")}
        await trio.sleep(seconds)
        (ended,) = await run(subject, "cancel", wanted)
        assert gate_of(subject) == (1, 0) and ended.id == wanted
        await wait_all_tasks_blocked()
        assert asked[wanted].code == "request_cancelled"
        with pytest.raises(NotFound, match="it has ended"):
            await run(subject, "cancel", wanted)
        await run(subject, "cancel", "one" if wanted == "two" else "two")
        assert gate_of(subject) == (0, 0) and await run(subject, "requests") == []


async def test_a_request_of_the_program_itself_is_named_by_its_ticket(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _), trio.open_nursery() as nursery:
        await warm_up(runtime)
        subject, listener = Subject(runtime=runtime), Listener()
        nursery.start_soon(listener.run, runtime.generate(request("p", 50)))
        await trio.sleep(2.5)
        path = await only(subject)
        assert path.id.startswith("toy#")
        assert (path.route, path.place, path.arriving, path.age) == ("", "answer", None, 2.5)
        assert find_verb("cancel").complete(subject) == [path.id]
        (ended,) = await run(subject, "cancel", path.id)
        assert (ended.place, ended.generated_tokens) == ("answer", 2)
        await wait_all_tasks_blocked()
        assert isinstance(listener.error, TripowerError) and listener.error.code == "request_cancelled"


async def test_a_beginning_names_the_only_request_that_has_it(autojump_clock: MockClock) -> None:
    async with looking_at_toy(members_max=3) as (server, subject), trio.open_nursery() as nursery:
        for each in ("abc-1", "abc-2", "xyz"):
            await ask(nursery, server, each, max_tokens=15)
        with pytest.raises(InvalidRequest, match="2 requests begin"):
            await run(subject, "cancel", "abc")
        for wanted in ("", "b", "xyz1"):
            with pytest.raises(InvalidRequest):
                await run(subject, "cancel", wanted)
        (ended,) = await run(subject, "cancel", "x")
        assert ended.id == "xyz"
        place = next(word for word in find_verb("cancel").complete(subject) if word.startswith("toy#"))
        (ended,) = await run(subject, "cancel", place)
        assert ended.id == place and (await only(subject)).id == "abc-2", "a place in a queue can be named too"
        nursery.cancel_scope.cancel()


async def test_everybody_with_the_same_id_is_cancelled(autojump_clock: MockClock) -> None:
    async with looking_at_toy(members_max=3) as (server, subject), trio.open_nursery() as nursery:
        asked = [await ask(nursery, server, "same") for _ in range(3)]
        await trio.sleep(3.5)
        assert [path.place for path in await run(subject, "requests")] == ["answer"] * 3
        assert len(await run(subject, "cancel", "same")) == 3
        await wait_all_tasks_blocked()
        assert [each.code for each in asked] == ["request_cancelled"] * 3 and gate_of(subject) == (0, 0)


# Following.


async def all_of(events: Any) -> list[TraceEvent]:
    return [event async for event in events]


async def test_a_trace_tells_a_request_from_its_arrival_to_its_end(autojump_clock: MockClock) -> None:
    async with looking_at_toy() as (server, subject), trio.open_nursery() as nursery:
        await ask(nursery, server, "first", max_tokens=2)
        await ask(nursery, server, "one", LONG, max_tokens=4, stream=True)
        await trio.sleep(0.25)
        events = await all_of(stream(subject, "trace", "one"))
        late = pytest.approx  # what no message tells is seen at the next look
        assert [(event.event, event.at, event.tokens) for event in events] == [
            ("arrived", 0.0, 0),
            ("enqueued", 0.0, 0),
            ("seated", 2.0, 0),
            ("prompt", late(3.0, abs=0.1), 256),
            ("prompt", late(4.0, abs=0.1), 512),
            ("prompt", 5.0, 600),
            ("started", 5.0, 0),
            ("tokens", 5.0, 1),
            ("tokens", 6.0, 1),
            ("tokens", 7.0, 1),
            ("tokens", 8.0, 1),
            ("finished", 8.0, 4),
            ("over", late(8.0, abs=0.1), 4),
        ]
        assert events[0].about == f"POST {COMPLETIONS}" and events[-1].about == "answered 200, length"
        assert {event.message for event in events} >= {"Enqueued", "GenerationStarted", "TokenChunk", "GenerationFinished"}
        assert len({event.request for event in events}) == 2, "its place in the queue, and what concerns none"


async def test_a_trace_tells_what_was_before_and_why_it_ended(autojump_clock: MockClock) -> None:
    async with looking_at_toy() as (server, subject), trio.open_nursery() as nursery:
        await ask(nursery, server, "one", LONG, max_tokens=9)
        await trio.sleep(4.5)
        told: list[TraceEvent] = []

        async def follow() -> None:
            told.extend(await all_of(stream(subject, "trace", "one")))

        nursery.start_soon(follow)
        await trio.sleep(2)
        await run(subject, "cancel", "one")
        await trio.sleep(1)
        assert [event.event for event in told] == [
            "arrived", "enqueued", "seated", "prompt", "tokens", "tokens", "tokens", "left", "over"
        ]  # fmt: skip
        assert [event.tokens for event in told if event.event == "tokens"] == [2, 1, 1]
        assert told[3].at == 3.0 and told[-1].about == "answered 499, request_cancelled"


async def test_a_trace_begins_before_the_model_is_there(autojump_clock: MockClock) -> None:
    def pace(job: LaneJob) -> float:
        return 2.0 if job.name.startswith("load") else steps_only(job)

    async with looking_at_toy(pace=pace) as (server, subject), trio.open_nursery() as nursery:
        await subject.runtime.unload("toy")
        await ask(nursery, server, "one", max_tokens=1)
        events = await all_of(stream(subject, "trace", "one"))
        assert [event.event for event in events][:2] == ["arrived", "enqueued"] and events[1].at >= 2.0
        assert [event.event for event in events][-2:] == ["finished", "over"]


async def test_a_trace_tells_that_the_client_does_not_read() -> None:
    async with serving(BURST) as server, server.client() as client, trio.open_nursery() as nursery:

        async def read() -> None:
            while await client.stream.receive_some(1 << 20):
                pass

        await client.send_request(CHAT, ASK | {"stream": True}, headers={"x-request-id": "deaf"})
        await blocked(server)
        events = stream(subject_of(server), "trace", "deaf")
        told = [await anext(events) for _ in range(3)]
        assert {event.event for event in told} == {"arrived", "unread", "finished"}
        nursery.start_soon(read)
        told = [event async for event in events]
        assert (told[0].event, told[-1].event, told[-1].about) == ("read", "over", "answered 200, stop")
        nursery.cancel_scope.cancel()


async def test_a_trace_that_is_stopped_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _), trio.open_nursery() as nursery:
        await warm_up(runtime)
        listener = Listener()
        nursery.start_soon(listener.run, runtime.generate(request("p", 5)))
        await trio.sleep(0.5)
        verb, wanted = find_verb("trace"), (await only(Subject(runtime=runtime))).id
        assert verb.stream is not None
        events: Any = verb.stream(Subject(runtime=runtime), (wanted,))
        first = await anext(events)
        assert (first.event, first.about) == ("arrived", "from the program")
        await events.aclose()
        await trio.sleep(10)
        assert listener.finished is not None and len(listener.tokens) == 5
        with pytest.raises(NotFound):
            await anext(stream(Subject(runtime=runtime), "trace", wanted))
