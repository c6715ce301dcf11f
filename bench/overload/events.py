"""Server-sent events a second, of the whole process: written together as they have queued, against a write for each.

Ours is `tripower serve` with the toy, whose tokens cost next to nothing, and a stream for each of many clients. The peer is a bare
application on Hypercorn that writes as many events of the same length to as many clients, each in a write of its own: the least that a
server can do that writes token by token. The clients count and do nothing else.
"""

from __future__ import annotations

import functools
import time
from contextlib import AsyncExitStack

import msgspec
import trio

from tripower.bench.children import Server, module_command, running_server
from tripower.bench.http_client import HttpConnection, build_request
from tripower.bench.overload import targets
from tripower.bench.overload.service import serve_command
from tripower.bench.paired import Progress, Rounds, alternate_async, summarise
from tripower.bench.schema import Cell, paired_cell
from tripower.runtime.kernel import Unavailable

STREAMS = 32
EVENTS = 512
MARK = b"data:"


class Speed(msgspec.Struct, frozen=True):
    """Events a second of the clock, and of the server's processor time."""

    wall: float
    processor: float


async def event_cells(*, rounds: int, events: int, progress: Progress) -> list[Cell]:
    """Start both servers and compare. Blocks."""
    request = build_request("POST", "/v1/completions", stream_body(events))
    bare_request = build_request("POST", "/stream", b"{}")
    progress("events: starting")
    async with AsyncExitStack() as running:
        start = running.enter_async_context
        command = serve_command("toy", f"scheduler.batch_members={STREAMS}")
        ours = await start(running_server(command, name="tripower serve", ready_path="/ready"))
        size = await event_bytes(ours, request)
        bare = module_command(
            "tripower.bench.overhead.bare_app",
            *("--port", "{port}", "--answer", "300", "--event", str(size), "--events", str(events)),
        )
        peer = await start(running_server(bare, name="the bare application", ready_path="/"))
        for server, each in ((ours, request), (peer, bare_request)):
            await speed(server, each)
        measured = await alternate_async(
            functools.partial(speed, ours, request),
            functools.partial(speed, peer, bare_request),
            rounds=rounds,
            label="events",
            progress=progress,
        )
    note = (
        f"{STREAMS} streams of {events} events of {size} bytes; peer: a bare application on Hypercorn, a write for each event"
    )
    return [
        paired_cell("events", summarise(_picked(measured, "wall")), unit="1/s", target=targets.EVENTS, note=note),
        paired_cell(
            "events, by processor time of the server", summarise(_picked(measured, "processor")), unit="1/s", note=note
        ),
    ]


def stream_body(events: int) -> bytes:
    return msgspec.json.encode({"model": "toy", "prompt": "go", "max_tokens": events, "ignore_eos": True, "stream": True})


async def event_bytes(server: Server, request: bytes) -> int:
    """The length of one of our events, on average, so that the peer writes as much. Raises `Unavailable`."""
    async with HttpConnection(server.port) as connection:
        answer = await connection.fetch(request)
    if answer.status != 200:
        raise Unavailable(f"tripower serve answered {answer.status}: {answer.body[:500].decode(errors='replace')}")
    return len(answer.body) // answer.body.count(MARK)


async def speed(server: Server, request: bytes) -> Speed:
    """Every client reads one stream to its end."""
    counts: list[int] = []
    async with AsyncExitStack() as opened:
        connections = [await opened.enter_async_context(HttpConnection(server.port)) for _ in range(STREAMS)]
        began, before = time.perf_counter(), server.cpu_seconds()
        async with trio.open_nursery() as nursery:
            for connection in connections:
                nursery.start_soon(_count, connection, request, counts)
        seconds, processor = time.perf_counter() - began, server.cpu_seconds() - before
    return Speed(sum(counts) / seconds, sum(counts) / max(processor, 1e-9))


async def _count(connection: HttpConnection, request: bytes, counts: list[int]) -> None:
    """Events of one answer. Pieces may cut an event's mark, so a few bytes of the one before are looked at again."""
    status = await connection.begin(request)
    if status != 200:
        raise Unavailable(f"a stream was answered with {status}")
    count, rest = 0, b""
    while piece := await connection.read_piece():
        count += (rest + piece).count(MARK)
        rest = piece[-len(MARK) + 1 :]
    counts.append(count)


def _picked(rounds: Rounds[Speed], field: str) -> Rounds[float]:

    return [(order, [float(getattr(each, field)) for each in values]) for order, values in rounds]
