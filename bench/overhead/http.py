"""What the HTTP path costs: processor time of the server for each request, with an engine that takes no time.

Ours is `tripower serve` with the toy, in a child process; the peer is a bare ASGI application on Hypercorn, in another. The same client
sends the same bodies to both over keep-alive connections. Processor time, user and system, is read from the clock of the child, so the
client costs neither of them anything.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import msgspec
import trio

from tripower.bench.children import Server, module_command, running_server
from tripower.bench.http_client import EventSplitter, HttpConnection, build_request
from tripower.bench.paired import Progress, alternate_async, summarise
from tripower.bench.schema import Cell, Target, paired_cell
from tripower.runtime.kernel import Unavailable

CONNECTIONS = 4
EVENTS = 64
MICRO = 1e6
PATH = "/v1/chat/completions"
MESSAGES = [
    {"role": "system", "content": "You are a careful assistant who answers in one sentence and names no sources."},
    {"role": "user", "content": "What is the difference between a mailbox and a channel in a program of many small tasks?"},
]


def serve_command(*models: str) -> list[str]:
    """`tripower serve` for a child process; the port is filled in by `running_server`."""
    return module_command("tripower", "serve", *models, "--host", "127.0.0.1", "--port", "{port}", "--quiet")


def chat_body(model: str, tokens: int, *, stream: bool) -> bytes:
    return msgspec.json.encode(
        {"model": model, "messages": MESSAGES, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": stream}
    )


async def http_cells(*, rounds: int, requests: int, progress: Progress) -> list[Cell]:
    """All HTTP cells; `requests` whole answers a block, an eighth of that as streams. Blocks."""
    streams = max(1, requests // 8)
    whole, burst = chat_body("toy", 1, stream=False), chat_body("toy", EVENTS, stream=True)
    paced = chat_body("paced", EVENTS, stream=True)
    async with AsyncExitStack() as running:

        async def start(command: list[str], name: str, ready_path: str = "/") -> Server:
            return await running.enter_async_context(running_server(command, name=name, ready_path=ready_path))

        ours = await start(serve_command("toy", "paced=toy:1000"), "tripower serve", "/ready")
        sizes = await _sizes(ours)
        bare = await start(bare_command(*sizes), "the bare application")
        same = await start([*bare_command(*sizes), "--our-listener"], "the bare application on our listener")
        measure = _Measure(ours, rounds, progress)
        on_hypercorn = "processor time a request; peer: a bare application on Hypercorn"
        return [
            await measure.cell("HTTP, whole answer", whole, bare, PATH, requests, Target("ratio", "<=", 1.3), on_hypercorn),
            await measure.cell(
                "the same, bare on our listener", whole, same, PATH, requests, None, "peer: on our own listener"
            ),
            await measure.cell(
                f"HTTP, stream of {EVENTS}", burst, bare, "/stream", streams, Target("ratio", "<=", 1.0), on_hypercorn
            ),
            await measure.cell(
                "the same, a step of 1 ms",
                paced,
                bare,
                "/stream",
                streams,
                None,
                "every token is written on its own on both sides",
            ),
        ]


def bare_command(answer_bytes: int, event_bytes: int) -> list[str]:
    arguments = {"port": "{port}", "answer": answer_bytes, "event": event_bytes, "events": EVENTS}
    return module_command(
        "tripower.bench.overhead.bare_app", *(text for name, value in arguments.items() for text in (f"--{name}", str(value)))
    )


async def _sizes(server: Server) -> tuple[int, int]:
    """Bytes of our whole answer and, on average, of one event, so that the bare application writes as much."""
    async with HttpConnection(server.port) as connection:
        answer = await connection.fetch(build_request("POST", PATH, chat_body("toy", 1, stream=False)))
        streamed = await connection.fetch(build_request("POST", PATH, chat_body("toy", EVENTS, stream=True)))
    for each in (answer, streamed):
        if each.status != 200:
            raise Unavailable(f"tripower serve answered {each.status}: {each.body[:500].decode(errors='replace')}")
    splitter = EventSplitter()
    events = list(splitter.feed(streamed.body))
    if not splitter.ended or len(events) < EVENTS // 2:
        raise Unavailable(f"a stream of {EVENTS} tokens gave {len(events)} events")
    return len(answer.body), len(streamed.body) // EVENTS


class _Measure:
    """Blocks of the same requests against ours and against a peer, both running."""

    def __init__(self, ours: Server, rounds: int, progress: Progress) -> None:
        self._ours = ours
        self._rounds = rounds
        self._progress = progress

    async def cell(
        self, name: str, body: bytes, bare: Server, bare_path: str, requests: int, target: Target | None, note: str
    ) -> Cell:
        async def ours() -> float:
            return await cpu_per_request(self._ours, build_request("POST", PATH, body), requests)

        async def peer() -> float:
            return await cpu_per_request(bare, build_request("POST", bare_path, body), requests)

        await ours()  # fills every cache on both sides
        await peer()
        rounds = await alternate_async(ours, peer, rounds=self._rounds, label=name, progress=self._progress)
        return paired_cell(name, summarise(rounds), unit="µs", target=target, note=note)


async def cpu_per_request(server: Server, request: bytes, requests: int) -> float:
    """Processor time that the server takes for one of these requests, in microseconds. Blocks."""
    each = max(1, requests // CONNECTIONS)
    async with AsyncExitStack() as opened:
        connections = [await opened.enter_async_context(HttpConnection(server.port)) for _ in range(CONNECTIONS)]
        for connection in connections:  # connecting is not what is measured
            await _repeat(connection, request, 1)
        before = server.cpu_seconds()
        async with trio.open_nursery() as nursery:
            for connection in connections:
                nursery.start_soon(_repeat, connection, request, each)
        return (server.cpu_seconds() - before) / (each * CONNECTIONS) * MICRO


async def _repeat(connection: HttpConnection, request: bytes, count: int) -> None:
    for _ in range(count):
        answer = await connection.fetch(request)
        if answer.status != 200:
            raise Unavailable(f"the server answered {answer.status}: {answer.body[:500].decode(errors='replace')}")
