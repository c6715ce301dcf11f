"""The cells of `tripower bench serving`, measured on servers that run."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio

from tripower.bench.children import Server
from tripower.bench.http_client import HttpConnection, build_request
from tripower.bench.paired import Progress, Rounds, alternate_async, collected, quartiles, summarise
from tripower.bench.schema import Cell, paired_cell, single_cell
from tripower.bench.workload import Generated, generate, long_prompt, short_prompt
from tripower.runtime.kernel import Unavailable

CALIBRATION_WORDS = 200
SAFE_SHARE = 0.97
"""How much of the wanted length a long prompt aims for, since words differ in their tokens."""
MILLI = 1e3

Figures = dict[str, float]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured."""

    model: str
    peer: str | None
    concurrency: tuple[int, ...]
    tokens: int
    rounds: int
    prefill_tokens: int
    threads: int


Block = Callable[["Subject"], Awaitable[Figures]]


class Subject:
    """A running server under measurement. Its prompts are numbered, and both subjects count alike."""

    def __init__(self, server: Server, *, model: str) -> None:
        self.server = server
        self.model = model
        self._number = 0

    @classmethod
    async def open(cls, server: Server) -> Subject:
        """Ours, with the name under which it serves its model."""
        answer = await get_json(server, "/v1/models")
        return cls(server, model=answer["data"][0]["id"])

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def start_again(self) -> None:
        """Count from 1 again: what came before was not measured."""
        self._number = 0

    async def run_streams(self, concurrency: int, tokens: int) -> Figures:
        """One answer of `tokens` tokens for each of so many clients at once: tokens a second of all, milliseconds to the first."""
        results: list[Generated] = []

        async def client(number: int) -> None:
            async with HttpConnection(self.server.port) as connection:
                results.append(await generate(connection, self.model, short_prompt(number), tokens))

        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(concurrency):
                nursery.start_soon(client, self.next_number())
        seconds = time.perf_counter() - began
        for result in results:
            if result.tokens != tokens or not result.complete:
                raise Unavailable(f"an answer of {tokens} tokens had {result.tokens}: the figures would not be comparable")
        first = statistics.median(result.first_seconds for result in results)
        return {"rate": concurrency * tokens / seconds, "first": first * MILLI}

    async def evaluate_prompt(self, words: int) -> Figures:
        """A long prompt and one token: prompt tokens a second."""
        async with HttpConnection(self.server.port) as connection:
            result = await generate(connection, self.model, long_prompt(self.next_number(), words), 1)
        return {"rate": result.prompt_tokens / result.first_seconds, "tokens": result.prompt_tokens}


async def get_json(server: Server, path: str) -> Any:
    async with HttpConnection(server.port) as connection:
        answer = await connection.fetch(build_request("GET", path))
    if answer.status != 200:
        raise Unavailable(f"GET {path} was answered with {answer.status}")
    return msgspec.json.decode(answer.body)


async def words_for(subject: Subject, tokens: int, room: int) -> int:
    """How many words make a prompt of about so many tokens, or of as many as the model's context holds beside `room`."""
    words = min(CALIBRATION_WORDS, tokens // 2)
    figures = await subject.evaluate_prompt(words)
    subject.start_again()
    context = (await get_json(subject.server, "/v1/models"))["data"][0].get("max_model_len", tokens + room)
    return max(1, int(min(tokens, context - room) * SAFE_SHARE / (figures["tokens"] / words)))


async def all_cells(plan: Plan, ours: Subject, peer: Subject | None, words: int, progress: Progress) -> list[Cell]:
    """Generation and first token at every concurrency, then the long prompt. Blocks, for minutes."""
    cells = []
    for concurrency in plan.concurrency:
        label = f"{concurrency} at once"
        rounds = await _rounds(plan, ours, peer, _streams(concurrency, plan.tokens), label, progress)
        cells.append(
            _cell(f"generation, {label}", rounds, "rate", "tokens/s", f"{plan.tokens} tokens each, all clients together")
        )
        cells.append(_cell(f"first token, {label}", rounds, "first", "ms", "median of the clients; less is better"))
    rounds = await _rounds(plan, ours, peer, lambda subject: subject.evaluate_prompt(words), "prefill", progress)
    tokens = int(rounds[0][1][0]["tokens"])
    cells.append(_cell("prefill", rounds, "rate", "tokens/s", f"prompts of about {tokens} tokens, one at a time"))
    return cells


def _streams(concurrency: int, tokens: int) -> Block:
    return lambda subject: subject.run_streams(concurrency, tokens)


async def _rounds(
    plan: Plan, ours: Subject, peer: Subject | None, block: Block, label: str, progress: Progress
) -> Rounds[Figures]:
    """Alternating blocks, or blocks of ours alone where there is no peer; after one of each that does not count."""
    progress(f"{label}: warming up")
    if peer is None:
        await block(ours)
        alone: list[Figures] = []
        for number in range(1, plan.rounds + 1):
            progress(f"{label}: block {number} of {plan.rounds}")
            with collected():
                alone.append(await block(ours))
        return [(("ours",), alone)]

    async def measured(subject: Subject, other: Subject) -> Figures:
        with other.server.paused():
            return await block(subject)

    run_ours, run_peer = functools.partial(measured, ours, peer), functools.partial(measured, peer, ours)
    await run_ours()
    await run_peer()
    return await alternate_async(run_ours, run_peer, rounds=plan.rounds, label=label, progress=progress)


def _cell(name: str, rounds: Rounds[Figures], key: str, unit: str, note: str) -> Cell:
    picked: Rounds[float] = [(order, [figures[key] for figures in values]) for order, values in rounds]
    if len(picked[0][0]) > 1:
        return paired_cell(name, summarise(picked), unit=unit, note=note)
    lower, median, upper = quartiles(picked[0][1])
    return msgspec.structs.replace(single_cell(name, median, unit=unit, note=note), iqr=(lower, upper))
