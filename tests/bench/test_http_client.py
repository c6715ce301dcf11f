"""The client that all benches over HTTP share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.bench.http_client import EventSplitter, HttpConnection, build_request
from tripower.runtime.kernel import Unavailable

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n7;x=y\r\n, world\r\n0\r\n\r\n"
SIZED = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


@asynccontextmanager
async def answering(*answers: bytes, step: int = 65536) -> AsyncIterator[int]:
    """A server that sends these answers to the requests of one connection, `step` bytes at a time, then closes."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            for answer in answers:
                await stream.receive_some()
                for start in range(0, len(answer), step):
                    await stream.send_all(answer[start : start + step])
                    await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("step", [1, 3, 65536])
async def test_answers_follow_each_other_on_one_connection(step: int) -> None:
    async with answering(CHUNKED, SIZED, EMPTY, step=step) as port, HttpConnection(port) as connection:
        answers = [await connection.fetch(build_request("GET", "/")) for _ in range(3)]
    assert [(answer.status, answer.body) for answer in answers] == [(200, b"hello, world"), (404, b"none"), (204, b"")]


@pytest.mark.parametrize("answer", [b"", CHUNKED[:60], SIZED[:-2], b"HTTP/1.1 200 OK\r\nConte"])
async def test_an_answer_that_is_cut_off_is_an_error(answer: bytes) -> None:
    async with answering(answer) as port, HttpConnection(port) as connection:
        with pytest.raises(Unavailable):
            await connection.fetch(build_request("GET", "/"))


async def test_nobody_listening_is_an_error_with_the_port() -> None:
    async with answering() as port:
        pass
    with pytest.raises(Unavailable, match=str(port)):
        async with HttpConnection(port):
            pass


async def test_closing_wakes_whoever_reads() -> None:
    async with answering(CHUNKED[:60]) as port, trio.open_nursery() as nursery:
        connection = HttpConnection(port)
        await connection.open()

        async def read() -> None:
            with pytest.raises((trio.ClosedResourceError, Unavailable)):
                await connection.fetch(build_request("GET", "/"))

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        connection.close()
        connection.close()


def test_a_request_carries_its_length() -> None:
    request = build_request("POST", "/x", b"body")
    assert request.startswith(b"POST /x HTTP/1.1\r\n")
    assert b"content-length: 4\r\n" in request
    assert request.endswith(b"\r\n\r\nbody")


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 90), max_size=6))
def test_events_are_whole_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    stream = b'data: {"a": 1}\n\n: keep-alive\n\ndata: {"b": "\xc3\xa4"}\r\n\r\ndata: [DONE]\n\n'
    places = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    splitter = EventSplitter()
    events: list[bytes] = []
    for start, end in pairwise(places):
        events += splitter.feed(stream[start:end])
    assert events == [b'{"a": 1}', b'{"b": "\xc3\xa4"}']
    assert splitter.ended


async def test_headers_of_the_answer_are_kept_as_they_came_and_those_of_a_request_are_sent() -> None:
    request = build_request("GET", "/", headers={"x-request-id": "Mine"})
    assert request.endswith(b"\r\nx-request-id: Mine\r\n\r\n")
    answer = b"HTTP/1.1 200 OK\r\nX-Request-Id: Mine\r\ncontent-length: 0\r\n\r\n"
    async with answering(answer) as port, HttpConnection(port) as connection:
        await connection.fetch(request)
        assert connection.headers[b"x-request-id"] == b"Mine"
        assert connection.is_open
    assert not connection.is_open


async def test_a_slow_reader_takes_no_more_than_it_asks_for() -> None:
    async with answering(SIZED) as port, HttpConnection(port, receive_buffer=4096) as connection:
        await connection.begin(build_request("GET", "/"))
        assert [await connection.read_piece(2) for _ in range(3)] == [b"no", b"ne", b""]
