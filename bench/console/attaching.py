"""From a new console's first byte to its first answer, while the device evaluates a long prompt on every core."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from tripower.actors.request_paths import RequestPath
from tripower.bench.children import module_command
from tripower.bench.console.watched import MILLI, Watched, watched_server
from tripower.bench.http_client import HttpConnection
from tripower.bench.paired import Progress, percentile
from tripower.bench.schema import Cell, Target, single_cell
from tripower.bench.serving.subject import Subject, words_for
from tripower.bench.serving.workload import generate, long_prompt
from tripower.runtime.kernel import Unavailable

FIRST_ANSWER_MS = Target("ours", "<=", 200.0)
PROMPT_TOKENS = 8000
PROMPT_ROOM = 64
POLL_SECONDS = 0.02
PAUSE_SECONDS = 0.1
TIMES_MAX = 200
VERB = "requests"


async def attaching_cells(model: str, *, prompt_tokens: int, answer_tokens: int = 1, progress: Progress) -> list[Cell]:
    """Attached again and again while one request lasts, and the command line once. Blocks for minutes. Raises `Unavailable`."""
    progress("attaching beside a long prompt")
    async with watched_server(model, "scheduler.prefix_cache=false") as watched:
        subject = await Subject.open(watched.server)
        words = await words_for(subject, prompt_tokens, PROMPT_ROOM)
        await watched.ask_once(VERB)  # the first one imports
        load = Load(watched, subject, words, answer_tokens)
        took = await _attach_beside(load)
        command = await _command_beside(load)
    note = f"95 of 100; {len(took)} times during a prompt of about {prompt_tokens} tokens; median {statistics.median(took):.3g}"
    whole = "the whole command, Python's start included, begun during such a prompt"
    return [
        single_cell("attach to first answer", percentile(took, 0.95), unit="ms", target=FIRST_ANSWER_MS, note=note),
        single_cell("tripower console -c", command, unit="ms", note=whole),
    ]


@attrs.frozen
class Load:
    """What keeps the device busy."""

    watched: Watched
    subject: Subject
    words: int
    answer_tokens: int

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Event]:
        """The device is at it when the block begins. Yields what is set at its end. Raises `Unavailable` when it is too short."""
        over = trio.Event()

        async def ask() -> None:
            prompt = long_prompt(self.subject.next_number(), self.words)
            async with HttpConnection(self.subject.server.port) as connection:
                await generate(connection, self.subject.model, prompt, self.answer_tokens)
            over.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while not _busy((await self.watched.ask_once(VERB))[1]):
                if over.is_set():
                    raise Unavailable("the prompt was evaluated before a console saw it: choose a longer one")
                await trio.sleep(POLL_SECONDS)
            yield over
            nursery.cancel_scope.cancel()


async def _attach_beside(load: Load) -> list[float]:
    """Milliseconds of each time."""
    took = list[float]()
    async with load.running() as over:
        while not over.is_set() and len(took) < TIMES_MAX:
            milliseconds, paths = await load.watched.ask_once(VERB)
            if _busy(paths) or not took:
                took.append(milliseconds)
            await trio.sleep(PAUSE_SECONDS)
    return took


async def _command_beside(load: Load) -> float:
    """Milliseconds of the command line from its start to its end."""
    command = module_command("tripower", "console", str(load.watched.socket), "-c", VERB, "--json")
    async with load.running():
        began = time.perf_counter()
        await trio.run_process(command, capture_stdout=True, stdin=subprocess.DEVNULL)
        return (time.perf_counter() - began) * MILLI


def _busy(paths: Sequence[RequestPath]) -> bool:
    return any(path.place in ("prompt", "answer") for path in paths)
