"""A thousand requests at once: a few run, the others wait, and all of them read what comes."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tripower.bench.console.watched import Watched
from tripower.bench.http_client import HttpConnection
from tripower.bench.serving.subject import get_json
from tripower.bench.serving.workload import completion_request
from tripower.runtime.kernel import Unavailable

TOKENS = 8000
ARRIVE_SECONDS = 120.0
POLL_SECONDS = 0.1
AT_ONCE = 32
"""Connections that are being opened at the same time."""
SPARE_DESCRIPTORS = 200


def raise_descriptor_limit(count: int) -> None:
    """Let this process, and its children, have so many connections. Raises `Unavailable` where that is not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_DESCRIPTORS
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise Unavailable(f"a crowd of {count} needs {wanted} open files, and the limit is {hard}: raise it with ulimit -n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@asynccontextmanager
async def standing_crowd(watched: Watched, count: int) -> AsyncIterator[None]:
    """So many requests are there for the length of the block, and none of them ends. Blocks until all have arrived."""
    gate = trio.CapacityLimiter(AT_ONCE)
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(_stand, watched, number, gate)
        with trio.move_on_after(ARRIVE_SECONDS) as patience:
            while len((await get_json(watched.server, "/v1/requests"))["data"]) < count:  # noqa: ASYNC110 - another process
                await trio.sleep(POLL_SECONDS)
        if patience.cancelled_caught:
            raise Unavailable(f"not all of {count} requests had arrived after {ARRIVE_SECONDS:.0f} seconds")
        yield
        nursery.cancel_scope.cancel()


async def _stand(watched: Watched, number: int, gate: trio.CapacityLimiter) -> None:
    connection = HttpConnection(watched.server.port)
    async with gate:
        await connection.open()
    try:
        status = await connection.begin(completion_request(watched.model, f"request {number}", TOKENS))
        if status != 200:
            raise Unavailable(f"request {number} of the crowd was answered with {status}")
        while await connection.read_piece():
            pass
    finally:
        connection.close()
