"""`tripower bench disconnect`: from a client's close to its seat being free, while both cores are busy.

A batch of streams runs on an engine with steps of 8 ms, on native code that never looks at Python. Competitors keep every core busy. Then
one client after the other closes its connection in the middle of its answer. The queue says when the permit is back, so that whoever
waits has the seat, and the engine when the sequence has been closed, on the lane, at a boundary. All moments are read from the
monotonic clock, which the processes of one machine share.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec
import trio

from tripower.bench.children import end_process, module_command, running_server
from tripower.bench.host import describe_host
from tripower.bench.http_client import HttpConnection, build_request
from tripower.bench.paired import Progress, percentile
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, Target, add_report_options, finish, make_report, single_cell
from tripower.runtime.host import read_host_limits
from tripower.runtime.kernel import Unavailable

STEP_MICROSECONDS = 8000
SLACK_MILLISECONDS = 5.0
MEMBERS = 8
TOKENS = 500_000
"""More than anybody waits for: a seat ends by a disconnect and by nothing else."""
EVENT_SECONDS_MAX = 10.0
PAUSE_SECONDS_MAX = 0.05
SEED = 7
MILLI = 1e-6


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status. Raises `Unavailable` when the server does not start or a seat is never freed."""
    parser = argparse.ArgumentParser(
        prog="tripower bench disconnect",
        description="From a client's close to its seat being free, streaming and not, with every core busy.",
    )
    add_report_options(parser)
    options = parser.parse_args(argv)
    host = describe_host()
    with progress_line() as progress:
        cells = trio.run(measure, 12 if options.quick else 300, progress)
    return finish(make_report("disconnect", host, cells), options)


async def measure(closes: int, progress: Progress) -> list[Cell]:
    """Both kinds of request; so many closes of each. Blocks."""
    cells = []
    for streaming, name in ((True, "streamed"), (False, "not streamed")):
        async with _open_server() as server:
            with busy_cores():
                seats, states = await _time_closes(server, closes, streaming, progress)
        cells += _cells(f"{name}, seat", seats, Target("ours", "<=", STEP_MICROSECONDS / 1000 + SLACK_MILLISECONDS))
        cells += _cells(f"{name}, state", states, None)
    return cells


def _cells(name: str, waits: Sequence[float], target: Target | None) -> list[Cell]:
    note = f"{len(waits)} closes, {MEMBERS} members, steps of {STEP_MICROSECONDS / 1000:g} ms"
    return [
        single_cell(f"{name}, median", percentile(waits, 0.5), unit="ms", note=note),
        single_cell(f"{name}, p99", percentile(waits, 0.99), unit="ms", target=target),
    ]


class _TellingServer:
    """The child, and what its engine says of sequences: see `toy_server`."""

    def __init__(self, port: int, lines: trio.lowlevel.FdStream) -> None:
        self.port = port
        self._stream = lines
        self._rest = b""

    async def next_moment(self, what: str) -> int:
        """Nanoseconds of the next `opened`, `freed` or `closed`, whatever else happens before. Blocks."""
        with trio.move_on_after(EVENT_SECONDS_MAX):
            while True:
                line, newline, rest = self._rest.partition(b"\n")
                if newline:
                    self._rest = rest
                    word, _, moment = line.decode().split()
                    if word == what:
                        return int(moment)
                elif data := await self._stream.receive_some():
                    self._rest += data
                else:
                    raise Unavailable("the toy server ended")
        raise Unavailable(f"no sequence was {what} within {EVENT_SECONDS_MAX:.0f} seconds")


@contextlib.asynccontextmanager
async def _open_server() -> AsyncIterator[_TellingServer]:
    command = module_command(
        "tripower.bench.serving.toy_server",
        *("--port", "{port}", "--microseconds", str(STEP_MICROSECONDS), "--members", str(MEMBERS)),
    )
    reading, writing = os.pipe()
    async with trio.lowlevel.FdStream(reading) as lines:
        try:
            async with running_server(command, name="the toy server", output=writing) as server:
                yield _TellingServer(server.port, lines)
        finally:
            os.close(writing)


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """A process for each core that this one may use, busy for the length of the block."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(read_host_limits().cores)]
    try:
        yield
    finally:
        for process in busy:
            end_process(process)


async def _time_closes(
    server: _TellingServer, closes: int, streaming: bool, progress: Progress
) -> tuple[list[float], list[float]]:
    """Milliseconds from each close to its permit being back, and to its state being closed."""
    choose = random.Random(SEED)
    body = msgspec.json.encode(
        {"model": "toy", "prompt": "close me", "max_tokens": TOKENS, "ignore_eos": True, "stream": streaming}
    )
    request = build_request("POST", "/v1/completions", body)
    seats: list[float] = []
    states: list[float] = []
    async with trio.open_nursery() as nursery:
        clients = [await _join(server, nursery, request) for _ in range(MEMBERS)]
        for done in range(closes):
            progress(f"{'streamed' if streaming else 'not streamed'}: {done} of {closes} closes")
            await trio.sleep(choose.uniform(0, PAUSE_SECONDS_MAX))  # anywhere within a step and within a job
            leaving = choose.randrange(MEMBERS)
            began = time.monotonic_ns()
            clients[leaving].close()
            seats.append((await server.next_moment("freed") - began) * MILLI)
            states.append((await server.next_moment("closed") - began) * MILLI)
            clients[leaving] = await _join(server, nursery, request)
        for client in clients:
            client.close()
    return seats, states


async def _join(server: _TellingServer, nursery: trio.Nursery, request: bytes) -> HttpConnection:
    """Send one more request and wait until the engine has opened its sequence."""
    connection = HttpConnection(server.port)
    await connection.open()
    nursery.start_soon(_read_on, connection, request)
    await server.next_moment("opened")
    return connection


async def _read_on(connection: HttpConnection, request: bytes) -> None:
    """Read whatever comes, until the connection is closed under it."""
    with contextlib.suppress(trio.ClosedResourceError):
        await connection.begin(request)
        while await connection.read_piece():
            continue
