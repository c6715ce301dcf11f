"""The cells of `tripower bench serving`, measured on servers that run.

Each cell has its share of the time that is left of what the whole run may take. A first block of either side, which does not count, says
how fast it is; then as many rounds are made as fit, and where a slow peer leaves no room for two, the answers get shorter. The note
says so.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import msgspec
import trio

from tripower.bench.children import Server
from tripower.bench.http_client import HttpConnection, build_request
from tripower.bench.paired import Progress, Rounds, alternate_async, collected, quartiles, summarise
from tripower.bench.schema import Cell, Target, paired_cell, single_cell
from tripower.bench.serving.targets import PREFILL, Size, Trial, size_blocks, target_for
from tripower.bench.serving.workload import Generated, generate, long_prompt, short_prompt
from tripower.runtime.kernel import Unavailable

CALIBRATION_WORDS = 200
SAFE_SHARE = 0.97
"""How much of the wanted length a long prompt aims for, since words differ in their tokens."""
MILLI = 1e3
TRIAL_TOKENS = 4
TRIAL_SHARE = 8
"""The first, uncounted long prompt is this much shorter than the others."""

Figures = dict[str, float]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured."""

    model: str
    """What `tripower serve` is told."""
    peer: str | None
    identity: tuple[str, str] = ("", "")
    """Name and encoding of the model, for the targets."""
    concurrency: tuple[int, ...]
    tokens: int
    rounds: int
    prefill_tokens: int
    threads: int
    backend: str | None = None
    """Which of our backends; None takes what the service chooses itself."""
    seconds: float = math.inf
    """What all blocks together may take, roughly."""


Block = Callable[["Subject", int], Awaitable[Figures]]
"""Given how much to ask for, in tokens of an answer or words of a prompt."""


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
        """One answer of `tokens` tokens for each of so many clients at once.

        `rate` is tokens a second of all together, `first` the median of milliseconds to a first token; `seconds` is what all of it took
        and `soonest` the seconds to the very first token.
        """
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
        soonest = min(result.first_seconds for result in results)
        return {"rate": concurrency * tokens / seconds, "first": first * MILLI, "seconds": seconds, "soonest": soonest}

    async def evaluate_prompt(self, words: int) -> Figures:
        """A long prompt and one token: prompt tokens a second."""
        async with HttpConnection(self.server.port) as connection:
            result = await generate(connection, self.model, long_prompt(self.next_number(), words), 1)
        seconds = result.first_seconds
        return {"rate": result.prompt_tokens / seconds, "tokens": result.prompt_tokens, "seconds": seconds, "soonest": 0.0}


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
    cells: list[Cell] = []
    clock = Clock(trio.current_time() + plan.seconds, len(plan.concurrency) + 1)
    for concurrency in plan.concurrency:
        label = f"{concurrency} at once"
        block, trial = _streams(concurrency), min(TRIAL_TOKENS, plan.tokens)
        rounds, size = await _rounds(plan, ours, peer, block, Amount(plan.tokens, trial), clock, label, progress)
        target = target_for(plan.peer, *plan.identity, concurrency)
        note = f"{size.tokens} tokens each, all clients together{_shortened(size, plan.tokens, 'answers')}; {_times(size)}"
        cells.append(_cell(f"generation, {label}", rounds, "rate", "tokens/s", note, target))
        cells.append(_cell(f"first token, {label}", rounds, "first", "ms", "median of the clients; less is better"))
    rounds, size = await _rounds(plan, ours, peer, _prompt, Amount(words, max(1, words // TRIAL_SHARE)), clock, "prefill", progress)
    tokens = int(rounds[0][1][0]["tokens"])
    note = f"prompts of about {tokens} tokens, one at a time{_shortened(size, words, 'prompts')}; {_times(size)}"
    target = target_for(plan.peer, *plan.identity, PREFILL)
    return [*cells, _cell("prefill", rounds, "rate", "tokens/s", note, target)]


@attrs.define
class Clock:
    """The time of a run, given out a cell at a time: what one leaves over is there for the next ones."""

    ends: float
    cells_left: int

    def share(self) -> float:
        """Seconds for the cell that begins now, and that is counted off."""
        seconds = (self.ends - trio.current_time()) / self.cells_left
        self.cells_left -= 1
        return seconds


class Amount(msgspec.Struct, frozen=True):
    """How much a block asks for, at best and in the first one that does not count: tokens of an answer, or words of a prompt."""

    wanted: int
    trial: int


def _streams(concurrency: int) -> Block:
    return lambda subject, tokens: subject.run_streams(concurrency, tokens)


async def _prompt(subject: Subject, words: int) -> Figures:
    return await subject.evaluate_prompt(words)


async def _rounds(
    plan: Plan, ours: Subject, peer: Subject | None, block: Block, amount: Amount, clock: Clock, label: str, progress: Progress
) -> tuple[Rounds[Figures], Size]:
    """Alternating blocks, or blocks of ours alone where there is no peer; after one of each that does not count."""
    progress(f"{label}: warming up")
    if peer is None:
        await block(ours, amount.trial)
        return await _alone(plan, ours, block, amount.wanted, label, progress), Size(amount.wanted, plan.rounds)

    async def measured(subject: Subject, other: Subject, much: int) -> Figures:
        with other.server.paused():
            return await block(subject, much)

    began = trio.current_time()
    trials = [_trial(await measured(*sides, amount.trial), amount.trial) for sides in ((ours, peer), (peer, ours))]
    spent = trio.current_time() - began
    size = size_blocks(*trials, tokens_max=amount.wanted, rounds_max=plan.rounds, seconds=clock.share() - spent)
    rounds = await alternate_async(
        functools.partial(measured, ours, peer, size.tokens),
        functools.partial(measured, peer, ours, size.tokens),
        rounds=size.rounds,
        label=label,
        progress=progress,
    )
    return rounds, size


async def _alone(plan: Plan, ours: Subject, block: Block, much: int, label: str, progress: Progress) -> Rounds[Figures]:
    figures: list[Figures] = []
    for number in range(1, plan.rounds + 1):
        progress(f"{label}: block {number} of {plan.rounds}")
        with collected():
            figures.append(await block(ours, much))
    return [(("ours",), figures)]


def _trial(figures: Figures, much: int) -> Trial:
    return Trial(much, figures["seconds"], figures["soonest"])


def _shortened(size: Size, wanted: int, what: str) -> str:
    """What the note adds where a slow side made blocks shorter."""
    return f" ({what} shortened to {size.tokens / wanted:.0%} for the slower side)" if size.tokens < wanted else ""


def _times(size: Size) -> str:
    return "1 round" if size.rounds == 1 else f"{size.rounds} rounds"


def _cell(name: str, rounds: Rounds[Figures], key: str, unit: str, note: str, target: Target | None = None) -> Cell:
    picked: Rounds[float] = [(order, [figures[key] for figures in values]) for order, values in rounds]
    if len(picked[0][0]) > 1:
        return paired_cell(name, summarise(picked), unit=unit, target=target, note=note)
    lower, median, upper = quartiles(picked[0][1])
    return msgspec.structs.replace(single_cell(name, median, unit=unit, note=note), iqr=(lower, upper))
