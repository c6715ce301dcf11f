"""The listener's own limits: how many connections, what an accept that fails does, what survives a restart."""

from __future__ import annotations

import errno
import math
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
import trio
from trio.testing import MockClock

from tests.api.fake_runtime import HELLO, Script
from tests.api.serving import ASK, CHAT, request_bytes, serving
from tripower.api.http import listener
from tripower.api.http.actor import ApiActor
from tripower.api.http.listener import Listener, connections_max
from tripower.api.http.transport import Transport
from tripower.runtime.configuration import ServerSettings

FLOOD = 32 << 20
"""Bytes; more than the buffers of a loopback connection."""


@pytest.fixture
def two_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "connections_max", lambda: 2)


async def test_a_connection_too_many_takes_the_place_of_the_oldest_idle_one(two_connections: None) -> None:
    async with serving(HELLO) as server, server.client() as first, server.client() as second:
        assert (await first.ask("/health")).status == 200
        assert (await second.ask("/health")).status == 200
        assert (await server.ask("/health")).status == 200
        assert await first.read_to_end() == b""
        assert (await second.ask("/health")).status == 200
        assert server.statistics().open_connections <= 2


async def test_a_connection_too_many_waits_while_all_are_busy(two_connections: None, autojump_clock: MockClock) -> None:
    async with serving(Script([math.inf])) as server, server.client() as first, server.client() as second:
        for client in (first, second):
            await client.send_request(CHAT, ASK)
        await server.runtime.wait_until(lambda: len(server.runtime.running) == 2)
        async with server.client() as third:
            await third.send_request("/health")
            await trio.testing.wait_all_tasks_blocked()
            assert server.statistics().accepted_connections == 2
            await first.stream.aclose()
            assert (await third.read_answer()).status == 200


def test_connections_leave_descriptors_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for descriptors, expected in ((1024, 512), (1 << 20, 4096), (8, 16), (-1, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, soft=descriptors: (soft, soft))
        assert connections_max() == expected


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[int]:
    """The listener alone with an application of the test's own; gives the port."""
    with socket.create_server(("127.0.0.1", 0)) as sock, trio.fail_after(20):
        sock.setblocking(False)
        async with trio.open_nursery() as nursery:
            await nursery.start(Listener(app, [sock], ServerSettings()).run)
            yield sock.getsockname()[1]
            nursery.cancel_scope.cancel(reason="the test is over")


class Flaky(socket.socket):
    """A listening socket whose first accepts fail."""

    failures: ClassVar[list[int]] = []

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            number = self.failures.pop()
            raise OSError(number, "failed")
        return super().accept()


async def test_an_accept_that_fails_is_tried_again(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [errno.EMFILE, errno.ECONNABORTED, errno.EPROTO, errno.ENOBUFS]
    monkeypatch.setattr(Flaky, "failures", failures)
    monkeypatch.setattr(socket, "socket", Flaky)
    async with serving(HELLO) as server:
        assert (await server.ask("/health")).status == 200
        assert failures == []


async def test_what_is_sent_ahead_is_bounded_and_not_lost() -> None:
    """More than the kernel's own buffers hold, so a client that could send it all was read without bound."""
    body = ASK | {"padding": "x" * FLOOD}
    sent, answer_now = trio.Event(), trio.Event()

    async def send() -> None:
        await client.send(request_bytes(CHAT, ASK) + request_bytes(CHAT, body))
        sent.set()

    async with (
        serving(Script([answer_now, *HELLO.steps]), HELLO, max_body_bytes=2 * FLOOD) as server,
        server.client() as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not sent.is_set()
        answer_now.set()
        for _ in range(2):
            assert (await client.read_answer()).status == 200


async def test_a_body_that_nobody_reads_is_not_taken_in() -> None:
    read_now, sent = trio.Event(), trio.Event()
    total = 0

    async def read_late(scope: Any, receive: Any, send: Any) -> None:
        nonlocal total
        await read_now.wait()
        while (message := await receive())["more_body"]:
            total += len(message["body"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with listening(read_late) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:

        async def send() -> None:
            await stream.send_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % FLOOD + b"x" * FLOOD)
            sent.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert not sent.is_set()
            read_now.set()
            assert b" 200 " in await stream.receive_some()
    assert total == FLOOD


async def test_a_whole_answer_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = []

    async def send_and_count(self: Transport, data: bytes) -> None:
        writes.append(data)
        await send(self, data)

    send = Transport.send
    monkeypatch.setattr(Transport, "send", send_and_count)
    async with serving(HELLO) as server:
        await server.ask(CHAT, ASK)
        assert len(writes) == 1


async def test_a_crash_of_the_actor_ends_no_socket_and_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    crashes = [1]

    async def crash_once(self: ApiActor) -> None:
        if crashes and crashes.pop():
            raise ZeroDivisionError
        await listen(self)

    listen = ApiActor._listen
    monkeypatch.setattr(ApiActor, "_listen", crash_once)
    async with serving(HELLO) as server:
        assert (await server.ask(CHAT, ASK)).status == 200
        restarts = {actor.name: actor.restarts for actor in server.actors.statistics()}
        assert restarts == {"api": 1}


async def test_an_application_that_fails_ends_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/late":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
        if scope["path"] != "/good":
            raise ZeroDivisionError
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with listening(fail) as port:
        for path, expected in ((b"/early", b" 500 "), (b"/late", b" 200 "), (b"/good", b" 200 ")):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b"GET " + path + b" HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
                received = b""
                while piece := await stream.receive_some():
                    received += piece
                assert expected in received.splitlines()[0]
                assert not received.endswith(b"0\r\n\r\n")  # nobody takes half an answer for a whole one
    assert caplog.text.count("the application failed") == 2
