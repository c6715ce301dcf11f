"""A thousand idle connections and two hundred slow readers, beside eight normal streams.

The crowd costs the engine nothing while it is measured: the slow readers ask a toy in the same process for long answers, which are
generated before the clock starts and then taken in small pieces, and the idle connections have asked for something small. What is left is
what they cost the loop: memory, timers, wake-ups, writes.
"""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import attrs
import msgspec
import trio

from tripower.bench.children import Server, running_server
from tripower.bench.http_client import HttpConnection, build_request
from tripower.bench.overload import targets
from tripower.bench.overload.figures import Reading, read_figures
from tripower.bench.overload.service import serve_command
from tripower.bench.paired import Progress, alternate_async, summarise
from tripower.bench.schema import Cell, paired_cell
from tripower.bench.serving.subject import Subject, get_json
from tripower.runtime.kernel import Unavailable

STREAMS = 8
SLOW_MODEL = "crowd"
SLOW_TOKENS = 8000
"""Of an answer, with the usage in every event: about 3 MB, more than a socket takes from a server whose client does not read."""
SLOW_PIECE = 1024
SLOW_PAUSE = 1.0
BUFFER_BYTES = 4096
DESCRIPTORS_SPARE = 200
READY_SECONDS_MAX = 120.0
CONNECTED_AT_ONCE = 50
LOOK_SECONDS = 0.2


@attrs.frozen(kw_only=True)
class CrowdPlan:
    """How many, and how long."""

    idle: int
    slow: int
    tokens: int
    """Of each normal stream in a block."""
    rounds: int


async def crowd_cells(source: str, plan: CrowdPlan, threads: int, progress: Progress) -> list[Cell]:
    """Start a server of its own and compare. Blocks. Raises `Unavailable` when the crowd cannot be brought together."""
    allow_descriptors(plan.idle + plan.slow + DESCRIPTORS_SPARE)
    command = serve_command(
        source,
        f"{SLOW_MODEL}=toy",
        f"engine.threads={threads}",
        f"scheduler.batch_members={STREAMS}",
        f"scheduler.waiting={plan.slow}",
    )
    progress("crowd: loading the model")
    async with running_server(command, name="tripower serve", ready_path="/ready") as server:
        subject = Subject(server, model=await _normal_model(server))
        unread: list[float] = []

        async def with_crowd() -> float:
            async with crowd(server, plan):
                unread.append((await figures_of(server)).total("tripower_http_requests_in_progress") - 1)
                return (await subject.run_streams(STREAMS, plan.tokens))["rate"]

        async def without() -> float:
            return (await subject.run_streams(STREAMS, plan.tokens))["rate"]

        await without()  # compiled and warm
        rounds = await alternate_async(with_crowd, without, rounds=plan.rounds, label="crowd", progress=progress)
    note = (
        f"{STREAMS} streams of {plan.tokens} tokens; {plan.idle} idle connections and {plan.slow} slow readers, of which "
        f"{min(unread):.0f} or more had not been sent all of their answer; peer: without them"
    )
    return [paired_cell("streams beside a crowd", summarise(rounds), unit="tokens/s", target=targets.CROWD, note=note)]


async def _normal_model(server: Server) -> str:
    """The name of the model that is not the crowd's."""
    names: list[str] = [card["id"] for card in (await get_json(server, "/v1/models"))["data"]]
    return next(name for name in names if name != SLOW_MODEL)


@asynccontextmanager
async def crowd(server: Server, plan: CrowdPlan) -> AsyncIterator[None]:
    """Everybody is there inside the block and gone after it. Blocks until the answers to the slow ones are generated."""
    async with AsyncExitStack() as opened, trio.open_nursery() as nursery:
        limit = trio.CapacityLimiter(CONNECTED_AT_ONCE)

        async def idle() -> None:
            async with limit:
                connection = HttpConnection(server.port)
                opened.callback(connection.close)
                await connection.open()
                await connection.fetch(build_request("GET", "/health"))

        async with trio.open_nursery() as arriving:
            for _ in range(plan.idle):
                arriving.start_soon(idle)
            for _ in range(plan.slow):
                await nursery.start(_read_slowly, server.port)
        await _wait_generated(server)
        yield
        nursery.cancel_scope.cancel()
    await _wait_gone(server)


async def _read_slowly(port: int, *, task_status: trio.TaskStatus[None]) -> None:
    """Ask for a long answer and take a piece of it each second."""
    body = msgspec.json.encode(
        {
            "model": SLOW_MODEL,
            "prompt": "slow",
            "max_tokens": SLOW_TOKENS,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
    )
    async with HttpConnection(port, receive_buffer=BUFFER_BYTES) as connection:
        status = await connection.begin(build_request("POST", "/v1/completions", body))
        if status != 200:
            raise Unavailable(f"a slow reader was answered with {status}")
        task_status.started()
        with suppress(trio.ClosedResourceError):
            piece = b"first"
            while piece:
                await trio.sleep(SLOW_PAUSE)
                piece = await connection.read_piece(SLOW_PIECE)


async def figures_of(server: Server) -> Reading:
    """What a server without keys counts."""
    async with HttpConnection(server.port) as connection:
        return read_figures((await connection.fetch(build_request("GET", "/metrics"))).body.decode())


async def _wait_generated(server: Server) -> None:
    """Until no request has a seat or waits for one, so that the engine is at rest."""
    await _wait(server, lambda figures: figures.total("tripower_active_requests") == 0, "generated the crowd's answers")


async def _wait_gone(server: Server) -> None:
    await _wait(server, lambda figures: figures.total("tripower_http_connections") <= 2, "noticed that the crowd has gone")


async def _wait(server: Server, holds: Callable[[Reading], bool], what: str) -> None:
    with trio.move_on_after(READY_SECONDS_MAX):
        while True:
            if holds(await figures_of(server)):
                return
            await trio.sleep(LOOK_SECONDS)
    raise Unavailable(f"the server has not {what} within {READY_SECONDS_MAX:.0f} seconds")


def allow_descriptors(count: int) -> None:
    """Let this process, and those it starts from now on, open so many files. Raises `Unavailable` where the system forbids it.

    The server keeps half of its descriptors for other things than connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * count
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise Unavailable(f"{wanted} open files are needed, and the system allows {hard}: raise it with `ulimit -Hn`")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
