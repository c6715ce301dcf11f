"""The HTTP in front of peers that have none, seen through the client that measures them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import trio

from tripower.bench.children import free_port
from tripower.bench.http_client import HttpConnection, build_request
from tripower.bench.peers.front import Piece, peer_server
from tripower.bench.serving.workload import generate
from tripower.runtime.kernel import Unavailable


def count_down(prompt: str, tokens: int) -> Iterator[Piece]:
    """A peer that says how many tokens are left; a prompt of `fail` fails after the first."""
    for drawn in range(1, tokens + 1):
        yield Piece(str(tokens - drawn), len(prompt), drawn)
        if prompt == "fail":
            raise ValueError("out of luck")


@pytest.fixture
def port() -> Iterator[int]:
    server = peer_server(count_down, free_port())
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_stream_is_counted_and_comes_to_its_end(port: int) -> None:
    async with HttpConnection(port) as connection:
        assert (await connection.fetch(build_request("GET", "/health"))).status == 200
        result = await generate(connection, "default", "four", 5)
    assert (result.prompt_tokens, result.tokens, result.complete) == (4, 5, True)
    assert 0 < result.first_seconds <= result.seconds


async def test_several_streams_run_at_once(port: int) -> None:
    counted = []

    async def ask(number: int) -> None:
        async with HttpConnection(port) as connection:
            counted.append((await generate(connection, "default", "x" * number, number)).tokens)

    async with trio.open_nursery() as nursery:
        for number in range(1, 6):
            nursery.start_soon(ask, number)
    assert sorted(counted) == [1, 2, 3, 4, 5]


async def test_a_peer_that_fails_is_quoted(port: int) -> None:
    async with HttpConnection(port) as connection:
        with pytest.raises(Unavailable, match="out of luck"):
            await generate(connection, "default", "fail", 5)
