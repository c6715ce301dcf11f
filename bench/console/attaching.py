"""From a new console's first byte to its first answer, while the device evaluates a long prompt on every core."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

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
VERB = "requests"


async def attaching_cells(model: str, *, prompt_tokens: int, prefill_rows: int = 0, progress: Progress) -> list[Cell]:
    """Attached again and again while one prompt lasts, and the command line once. Blocks while the model loads.

    `prefill_rows`: of the prompt in one step; 0 leaves it to the server. Raises `Unavailable`.
    """
    progress("attaching beside a long prompt")
    async with watched_server(model, "scheduler.prefix_cache=false", f"scheduler.prefill_rows={prefill_rows}") as watched:
        subject = await Subject.open(watched.server)
        words = await words_for(subject, prompt_tokens, PROMPT_ROOM)
        await watched.ask_once(VERB)  # the first one imports
        took = await _attach_beside(watched, subject, words)
        command = await _command_beside(watched, subject, words)
    note = f"95 of 100; {len(took)} times during a prompt of about {prompt_tokens} tokens; median {statistics.median(took):.3g}"
    whole = "the whole command, Python's start included, begun during such a prompt"
    return [
        single_cell("attach to first answer", percentile(took, 0.95), unit="ms", target=FIRST_ANSWER_MS, note=note),
        single_cell("tripower console -c", command, unit="ms", note=whole),
    ]


async def _attach_beside(watched: Watched, subject: Subject, words: int) -> list[float]:
    """Milliseconds of each time."""
    took = list[float]()
    async with _running_prompt(watched, subject, words) as over:
        while not over.is_set():
            milliseconds, paths = await watched.ask_once(VERB)
            if _in_prompt(paths) or not took:
                took.append(milliseconds)
            await trio.sleep(PAUSE_SECONDS)
    return took


async def _command_beside(watched: Watched, subject: Subject, words: int) -> float:
    """Milliseconds of the command line from its start to its end."""
    command = module_command("tripower", "console", str(watched.socket), "-c", VERB, "--json")
    async with _running_prompt(watched, subject, words):
        began = time.perf_counter()
        await trio.run_process(command, capture_stdout=True, stdin=subprocess.DEVNULL)
        return (time.perf_counter() - began) * MILLI


@asynccontextmanager
async def _running_prompt(watched: Watched, subject: Subject, words: int) -> AsyncIterator[trio.Event]:
    """A prompt that is being evaluated when the block begins. Yields what is set at its end. Raises `Unavailable` when it is too short."""
    over = trio.Event()

    async def evaluate() -> None:
        async with HttpConnection(subject.server.port) as connection:
            await generate(connection, subject.model, long_prompt(subject.next_number(), words), 1)
        over.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(evaluate)
        while not _in_prompt((await watched.ask_once(VERB))[1]):
            if over.is_set():
                raise Unavailable("the prompt was evaluated before a console saw it: choose a longer one")
            await trio.sleep(POLL_SECONDS)
        yield over
        nursery.cancel_scope.cancel()


def _in_prompt(paths: object) -> bool:
    return isinstance(paths, list | tuple) and any(path.place == "prompt" for path in paths)
