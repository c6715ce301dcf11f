"""Connections as bytes: what is kept alive, what is refused, who is dropped, and that one never harms another."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from tests.api.fake_runtime import BIG, HELLO, FakeRuntime, Script, finished, never_ending, tokens
from tests.api.serving import ASK, CHAT, fill_without_reading, request_bytes, serving, until
from tripower.api.http import connection
from tripower.api.http.connection import HEAD_SECONDS, IDLE_SECONDS

STREAM = ASK | {"stream": True}
FOR_EVER = Script([math.inf])
ONE_TOKEN_THEN_SILENCE = Script([tokens("a"), math.inf])


def gone(runtime: FakeRuntime) -> bool:
    """Whether every generation has been left."""
    return bool(runtime.ended) and not runtime.running


# Keeping connections.


async def test_many_requests_share_a_connection() -> None:
    async with serving(HELLO) as server, server.client() as client:
        for body in (ASK, STREAM, ASK):
            assert (await client.ask(CHAT, body)).status == 200
        assert server.statistics().accepted_connections == 1


async def test_a_connection_does_not_end_after_a_thousand_requests() -> None:  # ecosystem M4
    async with serving(HELLO) as server, server.client() as client:
        for _ in range(1010):
            answer = await client.ask("/health")
            assert "connection" not in answer.headers


async def test_nothing_tells_the_name_of_the_server() -> None:  # ecosystem M4
    async with serving(HELLO) as server:
        assert "server" not in (await server.ask("/health")).headers


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    async with serving(HELLO) as server, server.client() as client:
        ids = ("first", "second", "third")
        await client.send(b"".join(request_bytes(CHAT, ASK, headers={"x-request-id": name}) for name in ids))
        assert [(await client.read_answer()).headers["x-request-id"] for _ in ids] == list(ids)


async def test_requests_may_arrive_byte_by_byte() -> None:
    async with serving(HELLO) as server, server.client() as client:
        for byte in request_bytes(CHAT, ASK):
            await client.send(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked()
        assert (await client.read_answer()).status == 200


async def test_an_idle_connection_is_closed_and_its_time_starts_anew_with_each_request(
    autojump_clock: MockClock,
) -> None:  # BB-092
    async with serving(HELLO, patience=1000) as server, server.client() as client:
        for _ in range(3):
            await trio.sleep(IDLE_SECONDS - 1)
            assert (await client.ask(CHAT, ASK)).status == 200
        before = trio.current_time()
        assert await client.read_to_end() == b""
        assert trio.current_time() - before == IDLE_SECONDS


async def test_a_slow_answer_does_not_count_as_idle(autojump_clock: MockClock) -> None:  # BB-092
    script = Script([3 * IDLE_SECONDS, tokens("a"), 3 * IDLE_SECONDS, finished()])
    async with serving(script, patience=1000) as server, server.client() as client:
        assert (await client.ask(CHAT, ASK)).status == 200
        assert (await client.ask(CHAT, STREAM)).status == 200


async def test_http_1_0_and_connection_close_end_after_the_answer() -> None:
    async with serving(HELLO) as server:
        for head in (b"GET /health HTTP/1.0\r\n\r\n", b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"):
            async with server.client() as client:
                await client.send(head)
                assert b"200" in (await client.read_to_end()).splitlines()[0]


async def test_a_head_request_gets_the_head_alone() -> None:
    async with serving(HELLO) as server, server.client() as client:
        answer = await client.ask("/health", method="HEAD")
        assert (answer.status, answer.body) == (200, b"")
        assert (await client.ask("/health")).status == 200


# Clients that leave.


@pytest.mark.parametrize("ahead", [b"", b"\r\n", request_bytes("/health")], ids=["plain", "line end", "pipelined"])
@pytest.mark.parametrize("upgrade", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script", [FOR_EVER, ONE_TOKEN_THEN_SILENCE, Script(before=math.inf)], ids=["waiting", "running", "door"]
)
async def test_a_client_that_leaves_frees_its_seat_at_once(
    script: Script, stream: bool, upgrade: bool, ahead: bytes, caplog: pytest.LogCaptureFixture
) -> None:  # BB-001, BB-005
    headers = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABk"} if upgrade else {}
    caplog.set_level(logging.INFO, "tripower.http")
    async with serving(script) as server:
        async with server.client() as client:
            await client.send_request(CHAT, ASK | {"stream": stream}, headers=headers)
            await client.send(ahead)
            await until(lambda: bool(server.runtime.requests))
            if stream and script is ONE_TOKEN_THEN_SILENCE:
                await client.read_until(b'"content":"a"')
        await server.wait_closed()
        assert server.runtime.running == []
        statistics = server.statistics()
        assert (statistics.active_requests, statistics.left) == (0, 1)
    assert "disconnect" in caplog.text


async def test_a_client_that_resets_the_connection_has_left() -> None:
    async with serving(ONE_TOKEN_THEN_SILENCE) as server:
        async with server.client() as client:
            await client.send_request(CHAT, STREAM)
            await client.read_until(b'"content":"a"')
            client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await server.runtime.wait_until(lambda: gone(server.runtime))
        assert server.runtime.ended == [trio.Cancelled]


async def test_a_client_that_leaves_within_its_body_leaves_nothing() -> None:
    async with serving(HELLO) as server:
        async with server.client() as client:
            await client.send(request_bytes(CHAT, ASK)[:-5])
            await until(lambda: server.statistics().active_requests == 1)
        await server.wait_closed()
        assert server.runtime.requests == []
        assert server.statistics().active_requests == 0


# Clients that do not read, or send slowly.


async def test_a_client_that_does_not_read_is_dropped_and_its_seat_freed(autojump_clock: MockClock) -> None:  # ecosystem M1
    async with serving(never_ending(), send_timeout_s=7) as server, server.client() as client:
        await fill_without_reading(server, client)
        await server.runtime.wait_until(lambda: gone(server.runtime))
        assert 7 <= trio.current_time() < 9
        assert server.statistics().left == 1


async def test_a_client_that_does_not_read_does_not_outlive_its_deadline(autojump_clock: MockClock) -> None:
    async with serving(never_ending()) as server, server.client() as client:
        await fill_without_reading(server, client, **{"x-tripower-deadline-ms": "4000"})
        await server.runtime.wait_until(lambda: gone(server.runtime))
        assert trio.current_time() == 4
        await server.wait_closed()


async def test_a_client_that_does_not_read_does_not_hold_up_another(autojump_clock: MockClock) -> None:
    async with serving(never_ending(), HELLO) as server, server.client() as client:
        await fill_without_reading(server, client)
        assert (await server.ask(CHAT, STREAM)).text == "Hello there"
        assert len(server.runtime.running) == 1


async def test_a_client_that_reads_late_gets_everything() -> None:
    script = Script([*[tokens(BIG) for _ in range(200)], finished()])
    async with serving(script) as server, server.client() as client:
        await client.send_request(CHAT, STREAM)
        await trio.testing.wait_all_tasks_blocked()  # the server can write no further
        answer = await client.read_answer()
    assert answer.text == BIG * 200


async def test_headers_that_come_too_slowly_are_refused(autojump_clock: MockClock) -> None:  # BB-088
    async with serving(HELLO) as server, server.client() as client:
        for byte in request_bytes(CHAT, ASK):
            await trio.sleep(1)
            try:
                await client.send(bytes([byte]))
            except trio.BrokenResourceError:
                break
        assert trio.current_time() < HEAD_SECONDS + 3
        assert b" 408 " in await client.read_to_end()


async def test_a_body_that_comes_too_slowly_is_refused(autojump_clock: MockClock) -> None:
    async with serving(HELLO, body_timeout_s=5) as server, server.client() as client:
        await client.send(request_bytes(CHAT, ASK)[:-5])
        answer = await client.read_answer()
        assert trio.current_time() == 5
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert await client.read_to_end() == b""
        assert server.runtime.requests == []


# Sizes.


async def test_a_body_that_is_declared_too_long_is_refused_unread() -> None:
    async with serving(HELLO, max_body_bytes=1024) as server, server.client() as client:
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1025\r\n\r\n")
        answer = await client.read_answer()
    assert (answer.status, answer.error["code"], answer.error["type"]) == (413, "request_too_large", "invalid_request_error")
    assert answer.headers["connection"] == "close"


async def test_a_chunked_body_is_refused_at_the_first_byte_too_many() -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    async with serving(HELLO, max_body_bytes=1024) as server, server.client() as client:
        await client.send(head + b"400\r\n" + b" " * 1024 + b"\r\n")
        await trio.testing.wait_all_tasks_blocked()
        await client.send(b"1\r\n \r\n")
        assert (await client.read_answer()).status == 413


async def test_the_answer_reaches_a_client_that_sends_its_whole_body_first() -> None:
    body = b" " * 3_000_000
    async with serving(HELLO, max_body_bytes=1024) as server, server.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.send, request_bytes(CHAT, body))
        answer = await client.read_answer()
        assert answer.status == 413


async def test_a_chunked_body_is_read_like_any_other() -> None:
    data = request_bytes(CHAT, ASK).partition(b"\r\n\r\n")[2]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (data[:7], data[7:20], data[20:])) + b"0\r\n\r\n"
    async with serving(HELLO) as server, server.client() as client:
        await client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n" + chunks
        )
        assert (await client.read_answer()).status == 200


async def test_a_client_that_waits_for_it_is_told_to_send_its_body() -> None:
    head, _, body = request_bytes(CHAT, ASK, headers={"expect": "100-continue"}).partition(b"\r\n\r\n")
    async with serving(HELLO) as server, server.client() as client:
        await client.send(head + b"\r\n\r\n")
        assert (await client.read_head()).status == 100
        await client.send(body)
        assert (await client.read_answer()).status == 200


async def test_a_client_whose_body_is_too_long_is_not_told_to_send_it() -> None:
    async with serving(HELLO, max_body_bytes=1024) as server, server.client() as client:
        await client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 5000\r\n\r\n"
        )
        assert (await client.read_head()).status == 413


@pytest.mark.parametrize(
    "headers",
    [
        b"x: " + b"a" * 1_000_000 + b"\r\n",
        b"x: " + b"a" * 60_000 + b"\r\n",
        b"x:" + b" " * 60_000 + b"a\r\n",
        b"".join(b"x-%d: a\r\n" % number for number in range(10_000)),
        b"".join(b"x-%d: a\r\n" % number for number in range(300)),
    ],
    ids=["one long", "in one piece", "blanks", "many", "many that fit"],
)
async def test_headers_without_bound_are_refused(headers: bytes) -> None:  # BB-088
    async with serving(HELLO) as server, server.client() as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ignore_errors, client.send, b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + headers + b"\r\n")
            answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (431, "headers_too_large")
        await server.wait_closed()


async def ignore_errors(work: Any, *arguments: Any) -> None:
    with contextlib.suppress(trio.BrokenResourceError):
        await work(*arguments)


# Bad bytes.


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"hello\r\n\r\n", b"GET /health\r\n\r\n", b"GET /health HTTP/1.1\r\n\r\n",
     b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
     b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
     b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n", b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n"],
    ids=lambda data: repr(data[:40]),
)  # fmt: skip
async def test_what_is_no_http_is_refused_in_json_and_closed(data: bytes) -> None:
    async with serving(HELLO) as server:
        async with server.client() as client:
            await client.send(data)
            answer = await client.read_answer()
            assert answer.status in (400, 501)
            assert answer.error["type"] == "invalid_request_error"
            assert len(answer.headers["x-request-id"]) == 32
            assert await client.read_to_end() == b""
        assert (await server.ask("/health")).status == 200


async def test_a_broken_chunk_ends_its_request_and_no_other() -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    async with serving(HELLO) as server:
        async with server.client() as client:
            await client.send(head + b"zz\r\n")
            assert (await client.read_answer()).status == 400
            assert await client.read_to_end() == b""
        await server.wait_closed()
        assert (await server.ask(CHAT, ASK)).status == 200


@pytest.mark.parametrize("extra", [b"", b"x"])
async def test_a_websocket_is_refused_and_harms_nobody(extra: bytes, caplog: pytest.LogCaptureFixture) -> None:  # BB-091
    upgrade = (
        b"GET /v1/realtime HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    )
    async with serving(Script([tokens("a"), 0.05, tokens("b"), finished()])) as server, server.client() as streaming:
        await streaming.send_request(CHAT, STREAM)
        await streaming.read_head()
        async with server.client() as client:
            await client.send(upgrade + extra)
            assert (await client.read_answer()).status == 404
        pieces = b""
        while piece := await streaming.read_chunk():
            pieces += piece
        assert pieces.endswith(b"data: [DONE]\n\n")
    assert caplog.text == ""


@pytest.mark.parametrize("data", [b"PRI * HTTP/2.0\r\n\r\n", b"GET / HTTP/2.0\r\nhost: a\r\n\r\n"], ids=["preface", "version"])
async def test_another_version_in_the_middle_of_a_connection_is_refused(data: bytes) -> None:
    async with serving(HELLO) as server, server.client() as client:
        assert (await client.ask("/health")).status == 200
        await client.send(data)
        assert (await client.read_answer()).status == 400
        assert await client.read_to_end() == b""


async def test_a_connection_that_says_nothing_harms_nobody() -> None:
    async with serving(HELLO) as server:
        for _ in range(50):
            async with server.client():
                pass
        assert (await server.ask("/health")).status == 200
        await server.wait_closed()


# Deadlines and silence.


async def test_a_deadline_before_the_first_token_is_an_answer_of_its_own(autojump_clock: MockClock) -> None:
    async with serving(FOR_EVER) as server:
        for body in (ASK, STREAM):
            began = trio.current_time()
            answer = await server.ask(CHAT, body, headers={"x-tripower-deadline-ms": "1500"})
            assert trio.current_time() - began == 1.5
            assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
            assert answer.headers["x-should-retry"] == "false"
        assert gone(server.runtime)


async def test_a_deadline_bounds_the_wait_at_the_door(autojump_clock: MockClock) -> None:  # BB-101
    async with serving(Script(before=9)) as server:
        answer = await server.ask(CHAT, ASK, headers={"x-tripower-deadline-ms": "1000"})
        assert trio.current_time() == 1
        assert answer.status == 504


async def test_a_deadline_within_a_stream_is_an_error_in_it(autojump_clock: MockClock) -> None:
    async with serving(ONE_TOKEN_THEN_SILENCE) as server:
        answer = await server.ask(CHAT, STREAM, headers={"x-tripower-deadline-ms": "1500"})
        assert trio.current_time() == 1.5
        assert answer.text == "a"
        assert answer.events[-2]["error"]["code"] == "deadline_exceeded"
        assert answer.events[-1] == "data: [DONE]"
        assert gone(server.runtime)


async def test_a_deadline_is_passed_on_unchanged_and_at_most_what_is_allowed(autojump_clock: MockClock) -> None:
    async with serving(HELLO, deadline_max_s=100) as server:
        for header in ("1500", "999999999"):
            await server.ask(CHAT, ASK, headers={"x-tripower-deadline-ms": header})
        await server.ask(CHAT, ASK)
        assert server.runtime.deadlines == [1.5, 100, math.inf]


@pytest.mark.parametrize("header", ["x-tripower-deadline-ms", "x-slo-ttft-ms"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "", "1e3", "٣", "9" * 40])
async def test_a_deadline_that_is_none_is_refused(header: str, value: str) -> None:
    async with serving(HELLO) as server:
        answer = await server.ask(CHAT, ASK, headers={header: value.encode().decode("latin-1")})
    assert (answer.status, answer.error["param"]) == (400, header)


async def test_a_deadline_for_the_first_token_is_none_for_the_rest(autojump_clock: MockClock) -> None:
    headers = {"x-slo-ttft-ms": "2000"}
    slow = Script([1.5, tokens("a"), 9.0, finished()])
    async with serving(slow, slow, FOR_EVER, patience=100) as server:
        stream = await server.ask(CHAT, STREAM, headers=headers)
        assert (stream.text, stream.events[-2]["choices"][0]["finish_reason"]) == ("a", "stop")
        assert (await server.ask(CHAT, ASK, headers=headers)).status == 200
        began = trio.current_time()
        assert (await server.ask(CHAT, STREAM, headers=headers)).status == 504
        assert trio.current_time() - began == 2


async def test_silence_is_filled_with_comments_that_carry_the_headers_out(autojump_clock: MockClock) -> None:  # BB-094, BB-095
    script = Script([40.0, tokens("a"), 20.0, finished()])
    async with serving(script, keep_alive_comment_s=15, patience=100) as server, server.client() as client:
        await client.send_request(CHAT, STREAM)
        assert (await client.read_head()).status == 200
        assert trio.current_time() == 15
        pieces = []
        while piece := await client.read_chunk():
            pieces.append((trio.current_time(), piece))
    assert [time for time, _ in pieces] == [15, 30, 40, 55, 60]
    assert [piece for _, piece in pieces if piece.startswith(b":")] == [b": keep-alive\n\n"] * 3
    assert b'"role":"assistant"' in pieces[2][1]


async def test_a_failure_after_a_comment_is_an_error_in_the_stream(autojump_clock: MockClock) -> None:
    async with serving(FOR_EVER, keep_alive_comment_s=1) as server:
        answer = await server.ask(CHAT, STREAM, headers={"x-tripower-deadline-ms": "1500"})
    assert answer.status == 200
    assert [event if isinstance(event, str) else event["error"]["code"] for event in answer.events] == [
        "deadline_exceeded",
        "data: [DONE]",
    ]


async def test_an_absolute_target_is_answered_like_its_path() -> None:
    async with serving(HELLO) as server, server.client() as client:
        await client.send(b"GET http://localhost/health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await client.read_answer()).status == 200


async def test_two_lengths_that_contradict_each_other_are_refused() -> None:
    async with serving(HELLO) as server, server.client() as client:
        head = request_bytes(CHAT, ASK).partition(b"\r\n\r\n")[0]
        await client.send(head + b"\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n")
        assert (await client.read_answer()).status == 400


# Clients that end their side behind a request, and wait.


@pytest.mark.parametrize("stream", [False, True])
async def test_whoever_ends_its_side_behind_a_request_gets_the_answer(stream: bool) -> None:
    asked = trio.Event()
    async with serving(Script([asked, *HELLO.steps])) as server, server.client() as client:
        await client.send_request(CHAT, ASK | {"stream": stream})
        await client.stream.send_eof()
        assert (await client.read_answer()).status == 100  # it is asked whether it is still there
        asked.set()
        answer = await client.read_answer()
        assert (answer.text if stream else answer.json["choices"][0]["message"]["content"]) == "Hello there"
        assert await client.read_to_end() == b""
        assert server.runtime.ended == [None]


async def test_all_requests_that_were_sent_ahead_are_answered_before_the_end() -> None:
    async with serving(HELLO) as server, server.client() as client:
        await client.send(request_bytes("/health") + request_bytes(CHAT, ASK) + request_bytes("/v1/models"))
        await client.stream.send_eof()
        assert (await client.read_to_end()).count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize("script", [FOR_EVER, Script(before=math.inf)], ids=["waiting", "door"])
async def test_whoever_ended_its_side_and_then_leaves_is_noticed(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ASK_AGAIN_SECONDS", 0.05)
    async with serving(script) as server:
        async with server.client() as client:
            await client.send_request(CHAT, ASK)
            await client.stream.send_eof()
            assert (await client.read_answer()).status == 100
        await server.wait_closed()
        assert server.statistics().left == 1 and server.runtime.running == []


@pytest.mark.parametrize(
    "sent", [request_bytes(CHAT, ASK)[:-1], request_bytes(CHAT, ASK).replace(b"HTTP/1.1", b"HTTP/1.0")], ids=["cut", "1.0"]
)
async def test_the_end_within_a_request_or_behind_one_of_an_old_version_is_leaving(sent: bytes) -> None:
    async with serving(FOR_EVER) as server, server.client() as client:
        await client.send(sent)
        await client.stream.send_eof()
        assert b"200 OK" not in await client.read_to_end()
        await server.wait_closed()
        assert server.runtime.running == []
