"""Servers that a bench starts and ends."""

from __future__ import annotations

import sys

import pytest

from tripower.bench.children import module_command, running_server
from tripower.bench.http_client import HttpConnection, build_request
from tripower.runtime.kernel import Unavailable

BARE = module_command(
    "tripower.bench.overhead.bare_app", "--port", "{port}", "--answer", "300", "--event", "100", "--events", "8"
)


@pytest.mark.parametrize("listener", [(), ("--our-listener",)])
async def test_a_child_answers_until_the_block_ends(listener: tuple[str, ...]) -> None:
    async with running_server([*BARE, *listener], name="bare", ready_path="/") as server:
        before = server.cpu_seconds()
        async with HttpConnection(server.port) as connection:
            whole = await connection.fetch(build_request("POST", "/v1/completions", b"{}"))
            streamed = await connection.fetch(build_request("POST", "/stream", b"{}"))
        assert (whole.status, len(whole.body)) == (200, 300)
        assert streamed.body.count(b"data: x") == 8
        assert server.cpu_seconds() >= before > 0
        assert server.resident_bytes() >= server.anonymous_bytes() > 0
        assert server.log_bytes(1 << 20) == b""
    assert server.process.poll() is not None


async def test_a_child_that_fails_is_reported_with_its_own_words() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no model of this name')"]
    with pytest.raises(Unavailable, match=r"peer ended with status 1 .*\nno model of this name"):
        async with running_server(command, name="peer"):
            pass


async def test_a_stopped_child_goes_on_afterwards() -> None:
    async with running_server(BARE, name="bare", ready_path="/") as server:
        with server.paused():
            before = server.cpu_seconds()
            assert server.cpu_seconds() == before
        async with HttpConnection(server.port) as connection:
            assert (await connection.fetch(build_request("GET", "/"))).status == 200
