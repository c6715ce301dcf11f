"""HTTP/2: requests side by side on one connection, each as bounded and as free to go as on a connection of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import trio
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from trio.testing import MockClock

from tests.api.fake_runtime import BIG, HELLO, Script, finished, never_ending, tokens
from tests.api.http2_client import Http2Client, http2
from tests.api.serving import ASK, CHAT, Server, serving, until
from tests.api.test_http_listener import listening
from tripower.api.http.actor import Drain
from tripower.api.http.connection import IDLE_SECONDS
from tripower.api.http.http2.connection import RESETS_MAX
from tripower.api.http.http2.framing import STREAMS_MAX
from tripower.api.http.transport import Transport

STREAM = ASK | {"stream": True}
ONE_TOKEN_THEN_SILENCE = Script([tokens("a"), math.inf])
GOODBYE = b"\0\0\x08\x07\0\0\0\0\0"
"""How a `GOAWAY` begins."""


# What works.


async def test_requests_of_one_connection_run_side_by_side() -> None:
    async with serving(ONE_TOKEN_THEN_SILENCE, HELLO) as server, http2(server.port) as client:
        waiting = await client.begin(CHAT, STREAM)
        await client.read_until(lambda: waiting in client.answers and b'"a"' in client.answers[waiting].body)
        assert (await client.ask(CHAT, STREAM)).text == "Hello there"
        assert (await client.ask("/health")).status == 200
        assert (await client.ask("/nowhere")).error["code"] == "route_not_found"
        assert waiting not in client.ended
        assert server.statistics().accepted_connections == 1


async def test_answers_are_the_same_as_without() -> None:
    async with serving(HELLO) as server, http2(server.port) as client:
        for path, body in (("/health", None), (CHAT, ASK), (CHAT, {"model": "fake"})):
            second, first = await client.ask(path, body), await server.ask(path, body)
            assert second.status == first.status
            assert second.headers.keys() - {"date"} == first.headers.keys() - {"date", "connection", "transfer-encoding"}


async def test_the_preface_may_come_in_pieces() -> None:
    async with serving(HELLO) as server, await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        client = Http2Client(stream)
        client.ask_nowait(1, "/health")
        for byte in client.frames.data_to_send():
            await stream.send_all(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked()
        assert (await client.finish(1)).status == 200


async def test_a_long_answer_passes_through_small_windows() -> None:
    script = Script([*[tokens(BIG) for _ in range(4)], finished()])
    async with serving(script) as server, http2(server.port) as client:
        client.frames.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1000})
        assert (await client.ask(CHAT, STREAM)).text == BIG * 4


async def test_a_long_body_passes_through_our_window() -> None:
    body = ASK | {"user": "x" * 300_000}
    async with serving(HELLO) as server, http2(server.port) as client:
        number = await client.begin(CHAT, headers={":method": "POST", "content-type": "application/json"}, end=False)
        data = json.dumps(body).encode()
        while data:
            await client.read_until(lambda: client.frames.local_flow_control_window(number) > 0)
            size = min(len(data), client.frames.local_flow_control_window(number), client.frames.max_outbound_frame_size)
            client.frames.send_data(number, data[:size], end_stream=size == len(data))
            await client.send()
            data = data[size:]
        assert (await client.finish(number)).status == 200


async def test_a_body_too_long_is_answered_and_not_wanted_any_more() -> None:
    async with serving(HELLO, max_body_bytes=1024) as server, http2(server.port) as client:
        number = await client.begin(CHAT, "x" * 2000, end=False)
        await client.read_until(lambda: number in client.resets)
        assert client.answers[number].status == 413
        assert client.resets[number] == ErrorCodes.NO_ERROR
        assert (await client.ask("/health")).status == 200


async def test_a_client_that_waits_for_it_is_told_to_send_its_body() -> None:
    async with serving(HELLO) as server, http2(server.port) as client:
        headers = {":method": "POST", "content-type": "application/json", "expect": "100-continue"}
        number = await client.begin(CHAT, headers=headers, end=False)
        await client.read_some()
        client.frames.send_data(number, b'{"model":"fake","messages":[{"role":"user","content":"Hi"}]}', end_stream=True)
        await client.send()
        assert (await client.finish(number)).status == 200


async def test_a_whole_answer_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []

    async def send_and_count(self: Transport, data: bytes) -> None:
        writes.append(data)
        await send(self, data)

    send = Transport.send
    monkeypatch.setattr(Transport, "send", send_and_count)
    async with serving(HELLO) as server, http2(server.port) as client:
        await client.ask("/health")
        writes.clear()
        await client.ask("/health")
        assert len(writes) == 1


async def test_a_foreign_host_is_refused_here_too() -> None:
    async with serving(HELLO) as server, http2(server.port) as client:
        assert (await client.ask("/health", headers={":authority": "evil.example"})).error["code"] == "host_not_allowed"


async def test_an_application_that_fails_ends_its_stream_only(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/late":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
        if scope["path"] != "/good":
            raise ZeroDivisionError
        await send({"type": "http.response.start", "status": 204, "headers": [(b"Connection", b"close")]})
        await send({"type": "http.response.body", "body": b""})

    async with listening(fail) as port, http2(port) as client:
        assert (await client.ask("/early")).status == 500
        late = await client.begin("/late")
        await client.read_until(lambda: late in client.resets)
        assert late not in client.ended  # nobody takes half an answer for a whole one
        assert (await client.ask("/good")).status == 204
    assert caplog.text.count("the application failed") == 2


async def test_streams_write_together(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []

    async def send_and_count(self: Transport, data: bytes) -> None:
        writes.append(data)
        await send(self, data)

    send = Transport.send
    monkeypatch.setattr(Transport, "send", send_and_count)
    go_on = trio.Event()
    async with serving(Script([tokens("a"), go_on, tokens("b"), math.inf])) as server, http2(server.port) as client:
        numbers = [await client.begin(CHAT, STREAM) for _ in range(8)]
        await client.read_until(lambda: all(n in client.answers and b'"a"' in client.answers[n].body for n in numbers))
        writes.clear()
        go_on.set()
        await client.read_until(lambda: all(b'"b"' in client.answers[n].body for n in numbers))
        assert len(writes) <= 2


# Clients that leave.


async def test_a_stream_that_is_reset_frees_its_seat_and_no_other() -> None:
    async with serving(ONE_TOKEN_THEN_SILENCE) as server, http2(server.port) as client:
        numbers = [await client.begin(CHAT, STREAM) for _ in range(2)]
        await until(lambda: len(server.runtime.running) == 2)
        client.frames.reset_stream(numbers[0], ErrorCodes.CANCEL)
        await client.send()
        await until(lambda: len(server.runtime.running) == 1)
        assert server.runtime.ended == [trio.Cancelled]
        assert server.statistics().left == 1
        assert (await client.ask("/health")).status == 200


async def test_a_client_that_leaves_frees_all_its_seats() -> None:
    async with serving(ONE_TOKEN_THEN_SILENCE) as server:
        async with http2(server.port) as client:
            for _ in range(3):
                await client.begin(CHAT, STREAM)
            await until(lambda: len(server.runtime.running) == 3)
        await server.wait_closed()
        assert server.runtime.running == []
        assert server.statistics().left == 3


async def test_a_stream_that_is_not_read_is_reset_and_others_go_on(autojump_clock: MockClock) -> None:
    async with serving(never_ending(), HELLO, send_timeout_s=7) as server, http2(server.port, acknowledges=False) as client:
        client.frames.increment_flow_control_window(1 << 20)  # of the connection, so that only the stream's own is short
        number = await client.begin(CHAT, STREAM)
        await until(lambda: bool(server.runtime.running))
        assert (await client.ask(CHAT, STREAM)).text == "Hello there"
        await client.read_until(lambda: number in client.resets)
        assert 7 <= trio.current_time() < 9
        assert server.runtime.running == []
        assert (await client.ask("/health")).status == 200


async def test_a_connection_that_is_not_read_is_dropped(autojump_clock: MockClock) -> None:
    async with (
        serving(never_ending(), send_timeout_s=7) as server,
        await trio.open_tcp_stream("127.0.0.1", server.port) as stream,
    ):
        stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
        client = Http2Client(stream)
        client.frames.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1})
        client.frames.increment_flow_control_window(2**30)
        await client.begin(CHAT, STREAM)
        await until(lambda: bool(server.runtime.running))
        await server.runtime.wait_until(lambda: not server.runtime.running)
        assert 7 <= trio.current_time() < 9


async def test_a_body_that_comes_too_slowly_is_refused(autojump_clock: MockClock) -> None:
    async with serving(HELLO, body_timeout_s=5) as server, http2(server.port) as client:
        number = await client.begin(CHAT, ASK, end=False)
        await client.read_until(lambda: number in client.resets)
        assert trio.current_time() == 5
        assert client.answers[number].error["code"] == "request_timeout"


async def test_a_connection_without_a_request_is_closed_whatever_it_says(autojump_clock: MockClock) -> None:
    async with serving(HELLO, patience=1000) as server, http2(server.port) as client:
        assert (await client.ask("/health")).status == 200
        for _ in range(3):
            await trio.sleep(IDLE_SECONDS / 4)
            client.frames.ping(b"12345678")
            await client.send()
        await client.read_to_end()
        assert trio.current_time() == IDLE_SECONDS


async def test_a_drain_lets_streams_finish_and_takes_no_new_ones() -> None:
    go_on = trio.Event()
    async with serving(Script([tokens("a"), go_on, finished()])) as server, http2(server.port) as client:
        number = await client.begin(CHAT, STREAM)
        await until(lambda: bool(server.runtime.running))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.api.ask, Drain())
            await until(lambda: server.statistics().draining)
            await trio.testing.wait_all_tasks_blocked()
            late = 3
            client.ask_nowait(late, "/health")
            await client.send()
            await trio.testing.wait_all_tasks_blocked()
            go_on.set()
            data = b""
            while piece := await client.stream.receive_some():
                data += piece
            await client.stream.aclose()
    assert number == 1
    assert GOODBYE + b"\0\0\0\x01\0\0\0\0" in data  # the last request that counts, and no fault
    assert b"\0\0\x04\x03\0\0\0\0\x03\0\0\0\x07" in data  # the one after it is refused, so that it may be asked elsewhere
    assert b"[DONE]" in data


# Clients that attack.


async def calm(client: Http2Client) -> None:
    """The server must say that it has enough, and close."""
    await client.read_to_end()
    assert client.goodbye == ErrorCodes.ENHANCE_YOUR_CALM


async def nobody_is_harmed(server: Server) -> None:
    await server.wait_closed()
    assert (await server.ask("/health")).status == 200
    assert server.statistics().active_requests == 0


async def test_rapid_resets_end_the_connection_and_leave_nothing() -> None:  # CVE-2023-44487
    async with serving(ONE_TOKEN_THEN_SILENCE) as server:
        async with http2(server.port) as client:
            for number in range(1, 2 * RESETS_MAX + 20, 2):
                client.ask_nowait(number, CHAT, STREAM)
                client.frames.reset_stream(number)
            for number in range(2 * RESETS_MAX + 21, 4 * RESETS_MAX, 2):
                client.ask_nowait(number, CHAT, STREAM)
                client.frames.reset_stream(number)
            await client.send()
            await calm(client)
        await nobody_is_harmed(server)
        assert server.runtime.running == []


async def test_resets_that_the_server_is_made_to_send_count_too() -> None:  # CVE-2025-8671
    async with serving(ONE_TOKEN_THEN_SILENCE) as server:
        async with http2(server.port) as client:
            for number in range(1, 4 * RESETS_MAX, 2):
                client.ask_nowait(number, CHAT, STREAM)
                client.frames.reset_stream(number)
                client.frames.data_to_send()  # the reset itself is not sent
                await client.send(_request(client, number) + WindowUpdateFrame(number, window_increment=2**31 - 1).serialize())
            await calm(client)
        await nobody_is_harmed(server)


def _request(client: Http2Client, number: int) -> bytes:
    """The bytes of a request, by an encoder that remembers nothing."""
    fields = [(":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", "/health")]
    block = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in fields
    )
    return HeadersFrame(number, data=block, flags=["END_HEADERS"]).serialize()


FLOODS: dict[str, Callable[[], bytes]] = {
    "settings": lambda: SettingsFrame(0, settings={4: 1000}).serialize(),
    "pings": lambda: PingFrame(0, b"12345678").serialize(),
    "priorities": lambda: PriorityFrame(1, depends_on=3, stream_weight=5).serialize(),
    "windows": lambda: WindowUpdateFrame(0, window_increment=1).serialize(),
    "unknown": lambda: b"\0\0\0\x42\0\0\0\0\0",
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_frames_that_only_cost_work_are_bounded(flood: str) -> None:
    async with serving(HELLO) as server:
        async with http2(server.port) as client, trio.open_nursery() as nursery:

            async def send() -> None:
                try:
                    for _ in range(60):
                        await client.stream.send_all(FLOODS[flood]() * 100)
                except trio.BrokenResourceError:
                    pass

            nursery.start_soon(send)
            data = b""
            try:
                while piece := await client.stream.receive_some():
                    data += piece
            except trio.BrokenResourceError:
                pass
            assert GOODBYE in data
            assert data[-4:] == b"\0\0\0\x0b"
        await nobody_is_harmed(server)


async def test_empty_pieces_of_a_body_are_bounded() -> None:
    async with serving(HELLO) as server:
        async with http2(server.port) as client:
            number = await client.begin(CHAT, ASK, end=False)
            await client.send(DataFrame(number, b"").serialize() * 3000)
            await calm(client)
        await nobody_is_harmed(server)


async def test_headers_without_end_are_bounded() -> None:  # CVE-2024-27983
    async with serving(HELLO) as server:
        async with http2(server.port) as client:
            frames = HeadersFrame(1, data=b"").serialize() + ContinuationFrame(1, data=b"\0\1a\1b").serialize() * 200
            await client.send(frames)
            await client.read_to_end()
            assert client.goodbye is not None
        await nobody_is_harmed(server)


@pytest.mark.parametrize("headers", [{"x": "a" * 40_000}, {f"x-{n}": "a" for n in range(2000)}], ids=["long", "many"])
async def test_headers_too_large_are_refused(headers: dict[str, str]) -> None:
    async with serving(HELLO) as server:
        async with http2(server.port) as client:
            await client.begin("/health", headers=headers)
            await client.read_to_end()
            assert client.goodbye == ErrorCodes.ENHANCE_YOUR_CALM
        await nobody_is_harmed(server)


async def test_more_streams_than_announced_are_a_fault() -> None:
    async with serving(ONE_TOKEN_THEN_SILENCE) as server:
        async with http2(server.port) as client:
            for number in range(1, 2 * STREAMS_MAX, 2):
                client.ask_nowait(number, CHAT, STREAM)
            await client.send()
            await until(lambda: len(server.runtime.running) == STREAMS_MAX)
            await client.send(_request(client, 2 * STREAMS_MAX + 1))
            await client.read_to_end()
            assert client.goodbye is not None
        await nobody_is_harmed(server)
        assert server.runtime.running == []


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "elsewhere"},
        {"X-Upper": "a"},
        {"x-line": "a\r\nb"},
        {"x-space": " a"},
        {"te": "gzip"},
        {"connection": "close"},
        {":strange": "a"},
        {":path": ""},
        {"content-length": "1"},
        {"content-length": "99"},
    ],
    ids=repr,
)
async def test_a_malformed_request_ends_its_stream_and_no_other(headers: dict[str, str]) -> None:
    go_on = trio.Event()
    async with serving(Script([go_on, *HELLO.steps])) as server:
        async with http2(server.port) as client:
            client.frames.config.validate_outbound_headers = client.frames.config.normalize_outbound_headers = False
            good = await client.begin(CHAT, ASK)
            for body in range(3):  # the windows of a connection are not used up by what nobody reads
                bad = await client.begin(CHAT, {"a": "x" * 20 * body}, headers=headers)
                await client.read_until(lambda bad=bad: bad in client.resets)  # type: ignore[misc]
            go_on.set()
            assert (await client.finish(good)).status == 200
            assert client.goodbye is None
        assert len(server.runtime.requests) == 1


async def test_malformed_requests_without_end_are_bounded() -> None:  # CVE-2025-8671
    async with serving(HELLO) as server:
        async with http2(server.port) as client:
            client.frames.config.validate_outbound_headers = False
            for number in range(1, 4 * RESETS_MAX, 2):
                client.ask_nowait(number, "/health", headers={"host": "elsewhere"})
            await client.send()
            await calm(client)
        await nobody_is_harmed(server)


@pytest.mark.parametrize(
    "headers",
    [{":method": "CONNECT"}, {":path": "*x"}, {":path": "/\x7f"}, {":path": "/é"}, {":method": "G T"}, {":method": "x" * 99}],
    ids=repr,
)
async def test_what_is_no_request_ends_its_stream_or_its_connection(headers: dict[str, str]) -> None:
    async with serving(HELLO) as server:
        async with http2(server.port) as client:
            client.frames.config.validate_outbound_headers = False
            number = await client.begin("/health", headers=headers)
            await client.read_until(lambda: number in client.resets or client.goodbye is not None)
            assert client.answers == {}
        await nobody_is_harmed(server)
