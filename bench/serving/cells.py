"""The cells of `tripower bench serving`, measured on servers that run.

Each cell has its share of the time that is left of what the whole run may take. A first block of either side, which does not count, says
how fast it is; then as many rounds are made as fit, and where a slow peer leaves no room for two, the answers get shorter. The note
says so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable

import attrs
import msgspec
import trio

from tripower.bench.paired import Progress, Rounds, alternate_async, collected, quartiles, summarise
from tripower.bench.schema import Cell, Target, paired_cell, single_cell
from tripower.bench.serving.subject import Figures, Subject
from tripower.bench.serving.targets import PREFILL, Size, Trial, size_blocks, target_for

TRIAL_TOKENS = 4
TRIAL_SHARE = 8
"""The first, uncounted long prompt is this much shorter than the others."""


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


Block = Callable[[Subject, int], Awaitable[Figures]]
"""Given how much to ask for, in tokens of an answer or words of a prompt."""


class Amount(msgspec.Struct, frozen=True):
    """How much a block asks for, at best and in the first one that does not count."""

    wanted: int
    trial: int


@attrs.define
class Clock:
    """The time of a run, given out a cell at a time: what one leaves over is there for the next ones."""

    ends: float
    cells_left: int

    def share(self) -> float:
        """Seconds for the cell that begins now, which is counted off."""
        seconds = (self.ends - trio.current_time()) / self.cells_left
        self.cells_left -= 1
        return seconds


@attrs.define
class Measurement:
    """Ours, and a peer if there is one, while both run."""

    plan: Plan
    ours: Subject
    peer: Subject | None
    progress: Progress
    _clock: Clock = attrs.field(init=False)

    async def cells(self, words: int) -> list[Cell]:
        """Generation and first token at every concurrency, then prompts of so many words. Blocks, for minutes."""
        self._clock = Clock(trio.current_time() + self.plan.seconds, len(self.plan.concurrency) + 1)
        cells: list[Cell] = []
        for concurrency in self.plan.concurrency:
            cells += await self._generation(concurrency)
        return [*cells, await self._prefill(words)]

    async def _generation(self, concurrency: int) -> list[Cell]:
        label, tokens = f"{concurrency} at once", self.plan.tokens

        def block(subject: Subject, much: int) -> Awaitable[Figures]:
            return subject.run_streams(concurrency, much)

        rounds, size = await self._rounds(block, Amount(tokens, min(TRIAL_TOKENS, tokens)), label)
        note = f"{size.tokens} tokens each, all clients together{_shortened(size, tokens, 'answers')}; {_times(size)}"
        target = self._target(concurrency)
        return [
            _cell(f"generation, {label}", rounds, "rate", "tokens/s", note, target),
            _cell(f"first token, {label}", rounds, "first", "ms", "median of the clients; less is better"),
        ]

    async def _prefill(self, words: int) -> Cell:
        def block(subject: Subject, much: int) -> Awaitable[Figures]:
            return subject.evaluate_prompt(much)

        rounds, size = await self._rounds(block, Amount(words, max(1, words // TRIAL_SHARE)), "prefill")
        tokens = int(rounds[0][1][0]["tokens"])
        note = f"prompts of about {tokens} tokens, one at a time{_shortened(size, words, 'prompts')}; {_times(size)}"
        return _cell("prefill", rounds, "rate", "tokens/s", note, self._target(PREFILL))

    def _target(self, concurrency: int) -> Target | None:
        return target_for(self.plan.peer, *self.plan.identity, concurrency)

    async def _rounds(self, block: Block, amount: Amount, label: str) -> tuple[Rounds[Figures], Size]:
        """Alternating blocks, or blocks of ours alone where there is no peer; after one of each that does not count."""
        self.progress(f"{label}: warming up")
        share, began = self._clock.share(), trio.current_time()
        if self.peer is None:
            await block(self.ours, amount.trial)
            return await self._alone(block, amount.wanted, label), Size(amount.wanted, self.plan.rounds)
        run_ours = functools.partial(_measured, block, self.ours, self.peer)
        run_peer = functools.partial(_measured, block, self.peer, self.ours)
        trials = [_trial(await run(amount.trial), amount.trial) for run in (run_ours, run_peer)]
        left = share - (trio.current_time() - began)
        size = size_blocks(*trials, tokens_max=amount.wanted, rounds_max=self.plan.rounds, seconds=left)
        rounds = await alternate_async(
            functools.partial(run_ours, size.tokens),
            functools.partial(run_peer, size.tokens),
            rounds=size.rounds,
            label=label,
            progress=self.progress,
        )
        return rounds, size

    async def _alone(self, block: Block, much: int, label: str) -> Rounds[Figures]:
        figures: list[Figures] = []
        for number in range(1, self.plan.rounds + 1):
            self.progress(f"{label}: block {number} of {self.plan.rounds}")
            with collected():
                figures.append(await block(self.ours, much))
        return [(("ours",), figures)]


async def _measured(block: Block, subject: Subject, other: Subject, much: int) -> Figures:
    with other.server.paused():
        return await block(subject, much)


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
