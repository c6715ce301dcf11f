"""`tripower bench fuzz-http`: requests of every kind of wrongness against `tripower serve toy` in a child process.

Every route that the server's own description names is asked with valid and with spoilt bodies, odd verbs, paths and headers, requests that
are cut, and bytes that are none. Expected of all of it: no 500, no traceback in the log, every answer with a request id and, from 400 on,
with a body that names the error; a valid request is answered at the end as at the beginning; and memory does not grow once the
first fifth of the requests has filled what is kept.

A case depends on the seed and on its number: `--seed 7 --case 1234` sends one again and shows what came back.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence

import attrs
import msgspec
import trio

from tripower.bench.children import Server, running_server
from tripower.bench.fuzz_http.cases import Case, Ending, make_case
from tripower.bench.fuzz_http.judge import NOTHING, Reply, fault_of, read_reply, tracebacks
from tripower.bench.host import describe_host
from tripower.bench.http_client import HttpConnection, build_request
from tripower.bench.overload.service import serve_command
from tripower.bench.paired import Progress
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, Target, add_report_options, finish, make_report, single_cell
from tripower.runtime.kernel import Unavailable

CLIENTS = 4
ANSWER_SECONDS_MAX = 30.0
STOPPED_SECONDS_MAX = 5.0
"""For whoever has closed its side: the server may wait for more that never comes."""
CONTEXT = 512
"""Of the toy, so that an answer without a limit is short."""
GROWTH_MEGABYTES_MAX = 16.0
WARM_SHARE = 0.2
SAMPLES = 50
FAULTS_SHOWN = 5
QUICK_REQUESTS = 300
MEGA = 1e6
NONE = Target("ours", "<=", 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status. Raises `Unavailable` when the server does not start or ends."""
    parser = argparse.ArgumentParser(
        prog="tripower bench fuzz-http", description="Requests of every kind of wrongness against the service."
    )
    parser.add_argument("--requests", type=int, default=50_000, metavar="N", help="how many (50000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="what they are drawn from (1)")
    parser.add_argument("--case", type=int, metavar="N", help="send only this one of them, and show it and its answer")
    add_report_options(parser)
    options = parser.parse_args(argv)
    if options.case is not None:
        trio.run(show_case, options.seed, options.case)
        return 0
    requests = min(options.requests, QUICK_REQUESTS) if options.quick else options.requests
    host = describe_host() | {"model": "toy", "seed": options.seed}
    with progress_line() as progress:
        cells = trio.run(measure, requests, options.seed, progress)
    return finish(make_report("fuzz-http", host, cells), options)


@attrs.define
class Tally:
    """What came back so far."""

    statuses: Counter[int] = attrs.Factory(Counter)
    faults: list[str] = attrs.Factory(list)
    memory: list[float] = attrs.Factory(list)
    """Megabytes of the server's own memory, at even distances."""

    def add(self, case: Case, reply: Reply) -> None:
        self.statuses[reply.status] += 1
        if fault := fault_of(case, reply):
            self.faults.append(f"--case {case.number}: {fault}")


def command() -> list[str]:
    """The server that is asked: a toy with short answers, and clients that stop sending are soon given up."""
    settings = (f"engine.context={CONTEXT}", "server.body_timeout_s=2", "scheduler.waiting=1024")
    return [*serve_command("toy", *settings), "--debug"]  # with tracebacks in the log


async def measure(requests: int, seed: int, progress: Progress) -> list[Cell]:
    """Send so many and look at what is left. Blocks."""
    async with running_server(command(), name="tripower serve", ready_path="/ready") as server:
        routes = await routes_of(server)
        tally, numbers = Tally(), iter(range(requests))
        await _valid_request(server, tally, "first")
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(_client, server, seed, numbers, requests, routes, tally, progress)
        await _valid_request(server, tally, "last")
        return cells_of(requests, tally, server.log_bytes())


async def routes_of(server: Server) -> list[tuple[str, str]]:
    """(method, path) of everything that the server says it offers."""
    async with HttpConnection(server.port) as connection:
        answer = await connection.fetch(build_request("GET", "/openapi.json"))
    paths = msgspec.json.decode(answer.body)["paths"]
    return sorted((method.upper(), path) for path, operations in paths.items() for method in operations)


async def _valid_request(server: Server, tally: Tally, which: str) -> None:
    """The server works. Patient with a model that some case has unloaded."""
    body = msgspec.json.encode({"model": "toy", "prompt": "a", "max_tokens": 3, "ignore_eos": True})
    async with HttpConnection(server.port) as connection:
        answer = await connection.fetch(build_request("POST", "/v1/completions", body))
    if answer.status != 200:
        tally.faults.append(f"the {which} valid request was answered {answer.status} {answer.body[:200]!r}")


async def _client(
    server: Server,
    seed: int,
    numbers: Iterator[int],
    requests: int,
    routes: Sequence[tuple[str, str]],
    tally: Tally,
    progress: Progress,
) -> None:
    """Send one case after the other, on one connection for as long as it lasts."""
    kept: HttpConnection | None = None
    for number in numbers:
        if number % max(1, requests // SAMPLES) == 0:
            tally.memory.append(server.anonymous_bytes() / MEGA)
            progress(f"{number} of {requests} requests, {len(tally.faults)} faults, {tally.memory[-1]:.0f} MB")
        case = make_case(seed, number, routes)
        if case.ending is Ending.STOPS:
            tally.add(case, await send_and_stop(server.port, case))
        else:
            reply, kept = await send_and_wait(server.port, case, kept)
            tally.add(case, reply)
    if kept is not None:
        kept.close()


async def send_and_wait(port: int, case: Case, kept: HttpConnection | None) -> tuple[Reply, HttpConnection | None]:
    """The answer, and the connection if it can be used again. One that the server had closed meanwhile is replaced once."""
    connection = kept or HttpConnection(port)
    with trio.move_on_after(ANSWER_SECONDS_MAX):
        try:
            if not connection.is_open:
                await connection.open()
            status = await connection.begin(case.data)
            body = b"" if case.method == "HEAD" else await _body(connection)
        except (Unavailable, ValueError):
            connection.close()
            return (NOTHING, None) if kept is None else await send_and_wait(port, case, None)
        if connection.headers.get(b"connection", b"").lower() == b"close":
            connection.close()
            return Reply(status, connection.headers, body), None
        return Reply(status, connection.headers, body), connection
    connection.close()
    return NOTHING, None


async def _body(connection: HttpConnection) -> bytes:
    pieces = []
    while piece := await connection.read_piece():
        pieces.append(piece)
    return b"".join(pieces)


async def send_and_stop(port: int, case: Case) -> Reply:
    """Send, close our side, and take whatever comes until the server closes too."""
    received = bytearray()
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        with trio.move_on_after(STOPPED_SECONDS_MAX):
            try:
                await stream.send_all(case.data)
                await stream.send_eof()
            except trio.BrokenResourceError:
                pass  # the server has heard enough; its answer may be here all the same
            try:
                async for piece in stream:
                    received += piece
            except trio.BrokenResourceError:
                pass
    return read_reply(bytes(received))


def cells_of(requests: int, tally: Tally, log: bytes) -> list[Cell]:
    """The cells."""
    statuses = ", ".join(f"{count} of {status or 'none'}" for status, count in sorted(tally.statuses.items()))
    settled = tally.memory[int(len(tally.memory) * WARM_SHARE) :]
    tail = max(1, len(settled) // 10)
    growth = min(settled[-tail:]) - min(settled[:tail])
    return [
        single_cell("requests", requests, unit="requests", note=f"answers by status: {statuses}"),
        single_cell("answers of 500", tally.statuses[500], unit="answers", target=NONE),
        single_cell(
            "answers that are not as they should be",
            len(tally.faults),
            unit="answers",
            target=NONE,
            note="; ".join(tally.faults[:FAULTS_SHOWN]) or None,
        ),
        single_cell("tracebacks in the log", tracebacks(log), unit="tracebacks", target=NONE),
        single_cell(
            "growth of own memory",
            growth,
            unit="MB",
            target=Target("ours", "<=", GROWTH_MEGABYTES_MAX),
            note=f"from {settled[0]:.0f} MB after the first fifth to {settled[-1]:.0f} MB",
        ),
    ]


async def show_case(seed: int, number: int) -> None:
    """Send one case to a server of its own; print it, its answer and what is wrong with it."""
    async with running_server(command(), name="tripower serve", ready_path="/ready") as server:
        case = make_case(seed, number, await routes_of(server))
        if case.ending is Ending.STOPS:
            reply = await send_and_stop(server.port, case)
        else:
            reply, kept = await send_and_wait(server.port, case, None)
            if kept is not None:
                kept.close()
        print(f"{case.data[:4000]!r}\n\n{reply.status} {reply.headers}\n{reply.body[:2000]!r}\n\n{fault_of(case, reply)}")
        print(server.log_bytes()[-4000:].decode(errors="replace"))
