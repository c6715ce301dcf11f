"""The console over its socket: calls, streams, and everything that a client may do wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.api.console.consoles import Console, call, raw_client, serving
from tripower.api.console import peers
from tripower.api.console.actor import CONNECTIONS_MAX
from tripower.api.console.client import ConsoleRefused, ServerGone, UnknownAnswer, open_console
from tripower.api.console.connection import CALLS_MAX, SEND_SECONDS
from tripower.api.console.finding import CannotAttach
from tripower.api.console.protocol import LINE_BYTES_MAX
from tripower.api.console.verb import Subject, Verb
from tripower.runtime.kernel import NotFound


def running(name: str, work: Callable[[], Any], **options: Any) -> Verb:
    async def run(subject: Subject, words: Sequence[str]) -> Any:
        await trio.lowlevel.checkpoint()
        return work()

    return Verb(name=name, summary="", run=run, **options)


class Waiting:
    """A verb that waits until it is let go, and tells how often it was given up."""

    def __init__(self) -> None:
        self.go = trio.Event()
        self.given_up = 0
        self.verb = Verb(name="wait", summary="", run=self._wait, seconds=10)

    async def _wait(self, subject: Subject, words: Sequence[str]) -> str:
        try:
            await self.go.wait()
        except trio.Cancelled:
            self.given_up += 1
            raise
        return "done"


class Counting:
    """A verb that counts, and tells when it has ended."""

    def __init__(self, *, size: int = 0, last: int | None = None) -> None:
        self.begun = 0
        self.ended = trio.Event()
        self._size, self._last = size, last
        self.verb = Verb(name="count", summary="", stream=self._count, answer=dict[str, Any])

    async def _count(self, subject: Subject, words: Sequence[str]) -> AsyncIterator[dict[str, Any]]:
        try:
            while self.begun != self._last:
                self.begun += 1
                yield {"number": self.begun, "padding": "x" * self._size}
                await trio.lowlevel.checkpoint()
        finally:
            self.ended.set()


async def quiet(console: Console) -> None:
    """Until no connection is left."""
    with trio.fail_after(10):
        while console.statistics().connections:
            await trio.lowlevel.checkpoint()


async def test_calls_of_one_console_are_answered_as_they_end(tmp_path: Path) -> None:
    waiting = Waiting()
    async with (
        serving(tmp_path, waiting.verb) as served,
        open_console(str(served.path)) as console,
        trio.open_nursery() as calls,
    ):
        answers: list[Any] = []

        async def ask(verb: str, *words: str) -> None:
            answers.append(await console.call(verb, words))

        calls.start_soon(ask, "wait")
        await wait_all_tasks_blocked()
        await ask("echo", "a", "b c")
        assert answers == [["a", "b c"]]
        assert served.statistics().open_calls == 1
        waiting.go.set()
        while len(answers) < 2:
            await trio.lowlevel.checkpoint()
        assert answers[1] == "done"


async def test_a_stream_goes_on_until_it_is_left(tmp_path: Path) -> None:
    counting = Counting()
    async with serving(tmp_path, counting.verb) as served, open_console(str(served.path)) as console:
        numbers = []
        async with console.stream("count", answer=dict[str, Any]) as items:
            async for item in items:
                numbers.append(item["number"])
                if len(numbers) == 5:
                    break
        assert numbers == [1, 2, 3, 4, 5]
        await counting.ended.wait()
        assert await console.call("echo", ["still", "here"]) == ["still", "here"]


async def test_what_was_stopped_can_be_waited_for(tmp_path: Path) -> None:
    counting = Counting()
    async with serving(tmp_path, counting.verb) as served, open_console(str(served.path)) as console:
        async with console.stream("count") as items:
            await anext(items)
        await console.settle()
        assert counting.ended.is_set()
        assert served.statistics().open_calls == 0


async def test_a_stream_may_end_by_itself(tmp_path: Path) -> None:
    async with serving(tmp_path, Counting(last=3).verb) as served, open_console(str(served.path)) as console:
        async with console.stream("count") as items:
            assert [item["number"] async for item in items] == [1, 2, 3]
        assert served.statistics().open_calls == 0


async def test_what_ends_a_stream_is_its_stop_and_a_result_follows(tmp_path: Path) -> None:
    counting = Counting()
    async with serving(tmp_path, counting.verb) as served, raw_client(served.path) as client:
        await client.send(call(7, "count"))
        assert (await client.frame())["value"]["number"] == 1
        await client.send(b'{"type":"stop","id":7}')
        while (frame := await client.frame())["type"] == "piece":
            pass
        assert frame == {"type": "result", "id": 7, "value": None}
        await client.send(call(7, "echo", "again"))  # the number is free
        assert (await client.frame())["value"] == ["again"]


async def test_a_client_that_leaves_takes_its_calls_with_it(tmp_path: Path) -> None:
    waiting, counting = Waiting(), Counting()
    async with serving(tmp_path, waiting.verb, counting.verb) as served:
        async with raw_client(served.path) as client:
            await client.send(call(1, "wait"), call(2, "count"))
            await client.frame()
        await quiet(served)
        assert waiting.given_up == 1
        assert counting.ended.is_set()


async def test_a_cancelled_call_is_stopped_in_the_server(tmp_path: Path, autojump_clock: MockClock) -> None:
    waiting = Waiting()
    async with serving(tmp_path, waiting.verb) as served, open_console(str(served.path)) as console:
        with trio.move_on_after(1):
            await console.call("wait")
        await wait_all_tasks_blocked()
        assert (waiting.given_up, served.statistics().open_calls) == (1, 0)


async def test_a_verb_that_takes_too_long_is_given_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    waiting = Waiting()
    async with serving(tmp_path, waiting.verb) as served, open_console(str(served.path)) as console:
        with pytest.raises(ConsoleRefused, match="wait took longer than 10 s") as caught:
            await console.call("wait")
        assert caught.value.code == "deadline_exceeded"
        assert (trio.current_time(), waiting.given_up) == (10, 1)


def fail(error: BaseException) -> Callable[[], Any]:
    def work() -> Any:
        raise error

    return work


@pytest.mark.parametrize(
    ("work", "code", "says"),
    [
        (fail(NotFound("no such actor", code="no_actor")), "no_actor", "no such actor"),
        (fail(ExceptionGroup("in a nursery", [NotFound("gone", code="gone")])), "gone", "gone"),
        (fail(ValueError("oops")), "internal_error", "x failed: ValueError: oops"),
        (fail(SystemExit(3)), "internal_error", "x failed: SystemExit: 3"),
        (object, "internal_error", "x failed: TypeError"),  # cannot be encoded
        (lambda: "x" * (17 << 20), "answer_too_large", "ask for less"),
    ],
)
async def test_what_goes_wrong_in_a_verb_is_an_answer(
    work: Callable[[], Any], code: str, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "tripower")
    async with serving(tmp_path, running("x", work)) as served, open_console(str(served.path)) as console:
        with pytest.raises(ConsoleRefused) as caught:
            await console.call("x")
        assert caught.value.code == code
        assert says in caught.value.message
        assert await console.call("echo") == []
    assert (code == "internal_error") == bool(caplog.records)


async def test_a_verb_that_does_not_exist_is_told_with_the_nearest(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, open_console(str(served.path)) as console:
        with pytest.raises(ConsoleRefused, match=r"'hepl' is no verb \(did you mean help\?\)") as caught:
            await console.call("hepl")
        assert caught.value.code == "unknown_verb"


async def test_an_answer_of_another_type_names_the_servers_version(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, open_console(str(served.path)) as console:
        with pytest.raises(UnknownAnswer, match=r"tripower 0\.1\.0"):
            await console.call("echo", answer=int)


async def test_help_lists_every_verb_or_one(tmp_path: Path) -> None:
    from tripower.api.console.verbs import all_verbs
    from tripower.api.console.verbs.help import VerbHelp

    every = all_verbs()
    async with serving(tmp_path, *every.values()) as served, open_console(str(served.path)) as console:
        assert [line.name for line in await console.call("help", answer=list[VerbHelp])] == list(every)
        (line,) = await console.call("help", ["help"], answer=list[VerbHelp])
        assert (line.name, line.usage) == ("help", "[VERB]")
        with pytest.raises(ConsoleRefused, match="is no verb"):
            await console.call("help", ["nothing"])


async def test_words_are_completed(tmp_path: Path) -> None:
    known = Verb(name="where", summary="", run=None, stream=None, complete=lambda subject: ("device:cpu", "api", "devil"))
    async with serving(tmp_path, known) as served, open_console(str(served.path)) as console:
        assert await console.complete([]) == ["echo", "where"]
        assert await console.complete(["w"]) == ["where"]
        assert await console.complete(["where", "dev"]) == ["device:cpu", "devil"]
        assert await console.complete(["nothing", ""]) == []


# What a client may do wrong.


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1",
        b"\x00\xff\xfe",
        b"[]",
        b'{"type":"call"}',
        b'{"type":"call","id":0,"verb":"echo"}',
        b'{"type":"call","id":1e300,"verb":"echo"}',
        b'{"type":"call","id":99999999999999999999,"verb":"echo"}',
        b'{"type":"dance","id":1}',
        b'{"type":"call","id":1,"verb":"echo","arguments":[1]}',
        b'{"type":"call","id":1,"verb":"' + b"\xff" + b'"}',
        b"[" * 100_000,
    ],
)
async def test_garbage_is_refused_and_the_third_line_of_it_is_the_last(garbage: bytes, tmp_path: Path) -> None:
    async with serving(tmp_path) as served, raw_client(served.path) as client:
        await client.send(garbage)
        refusal = await client.frame()
        assert (refusal["type"], refusal["id"], refusal["code"]) == ("refusal", 0, "not_a_call")
        await client.send(call(1, "echo", "x"))
        assert (await client.frame())["value"] == ["x"]
        await client.send(garbage, garbage, call(2, "echo", "never"))
        assert [frame["code"] for frame in await client.rest()] == ["not_a_call", "not_a_call", "thrown_out"]
        await quiet(served)
        async with open_console(str(served.path)) as another:
            assert await another.call("echo") == []


@pytest.mark.parametrize("ends", [b"", b"\n"])
async def test_a_line_that_is_too_long_is_the_last(ends: bytes, tmp_path: Path) -> None:
    async with serving(tmp_path) as served, raw_client(served.path) as client, trio.open_nursery() as sending:

        async def send() -> None:
            try:
                await client.stream.send_all(b"x" * (LINE_BYTES_MAX + 1) + ends)
            except trio.BrokenResourceError:
                return

        sending.start_soon(send)
        assert [frame["code"] for frame in await client.rest()] == ["thrown_out"]
        await quiet(served)


async def test_a_client_that_never_reads_is_cut_off_and_delays_nobody(tmp_path: Path, autojump_clock: MockClock) -> None:
    counting = Counting(size=1000)
    async with serving(tmp_path, counting.verb) as served, raw_client(served.path) as client:
        await client.send(*(call(number, "count") for number in range(1, 4)))
        await wait_all_tasks_blocked()  # every buffer is full
        stuck_at = counting.begun
        async with open_console(str(served.path)) as another:
            assert await another.call("echo", ["x"]) == ["x"]
        assert trio.current_time() < 1
        await trio.sleep(SEND_SECONDS + 1)
        assert counting.begun == stuck_at
        assert counting.ended.is_set()
        assert (served.statistics().connections, served.statistics().cut_off) == (0, 1)


async def test_no_more_calls_than_so_many_are_open_at_once(tmp_path: Path) -> None:
    waiting = Waiting()
    async with serving(tmp_path, waiting.verb) as served, raw_client(served.path) as client:
        await client.send(*(call(number, "wait") for number in range(1, CALLS_MAX + 1)))
        await client.send(call(CALLS_MAX + 1, "echo"), call(1, "echo"))
        refusals = [await client.frame(), await client.frame()]
        assert [(frame["id"], frame["code"]) for frame in refusals] == [(CALLS_MAX + 1, "too_many_calls"), (1, "call_open")]
        waiting.go.set()
        assert {(await client.frame())["value"] for _ in range(CALLS_MAX)} == {"done"}


async def test_no_more_consoles_than_so_many_are_attached_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, trio.open_nursery() as holding:

        async def hold(*, task_status: trio.TaskStatus[None]) -> None:
            async with raw_client(served.path):
                task_status.started()
                await trio.sleep_forever()

        for _ in range(CONNECTIONS_MAX):
            await holding.start(hold)
        with pytest.raises(CannotAttach, match="attached already"):
            async with open_console(str(served.path)):
                pass
        holding.cancel_scope.cancel()
        await quiet(served)
        async with open_console(str(served.path)) as console:
            assert await console.call("echo") == []


async def test_another_user_is_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as served:
        monkeypatch.setattr(peers, "peer_of", lambda connected: peers.Peer(pid=1, user=4242))
        async with await trio.open_unix_socket(served.path) as stream:
            said = json.loads((await stream.receive_some()).splitlines()[0])
            assert (said["type"], said["code"]) == ("refusal", "not_yours")
            assert await stream.receive_some() == b""
        assert served.statistics().rejected == 1


async def test_where_the_process_ends_whoever_waits_is_told(tmp_path: Path) -> None:
    waiting = Waiting()
    async with serving(tmp_path, waiting.verb) as served, open_console(str(served.path)) as console:
        served.system.close()
        for _ in range(2):
            with pytest.raises(ServerGone, match="has ended"):
                await console.call("wait")


async def test_streams_end_with_the_process(tmp_path: Path) -> None:
    counting = Counting()
    async with serving(tmp_path, counting.verb) as served, raw_client(served.path) as client:
        await client.send(call(1, "count"))
        assert (await client.frame())["type"] == "piece"
        served.system.close()
        frames = await client.rest()
    assert [(frame["type"], frame["id"]) for frame in frames[-2:]] == [("refusal", 0), ("result", 1)]
    assert frames[-2]["code"] == "server_ended"


async def test_whoever_sees_a_stream_end_knows_whether_the_process_does(tmp_path: Path) -> None:
    counting = Counting()
    async with serving(tmp_path, counting.verb) as served, open_console(str(served.path)) as console:
        async with console.open_call("count") as call:
            await anext(call)
            console.check()
            served.system.close()
            async for _ in call:
                pass
        with pytest.raises(ServerGone):
            console.check()
