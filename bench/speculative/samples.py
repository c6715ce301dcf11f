"""Answers with and without guesses, asked of one engine in this process, and what is made of their times.

Steady decode is `(tokens - 1) / (time of the last token - time of the first)`; request-wide is tokens over the time of the whole request.
Neither stands for the other. Within each order of the two sides the median counts, and the smaller of both orders is the score, so that
what a machine does by the way favours nobody.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

import attrs
import trio

from tripower.actors.dialogue import GenerationFinished, GenerationRequest, TokenChunk
from tripower.actors.runtime import Runtime
from tripower.bench.speculative.closed_loop import run_closed_loop

SAMPLES_MIN = 3
"""Answers, or blocks of several at a time, that a cell has of each order: of one alone, noise would be the figure."""


@attrs.frozen(kw_only=True)
class Sample:
    """One answer. Times are seconds after the request."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    first: float
    last: float
    seconds: float
    drafted: int
    accepted: int

    @property
    def steady(self) -> float:
        """Tokens a second after the first; 0 where there is no second one."""
        return (len(self.tokens) - 1) / (self.last - self.first) if self.last > self.first else 0.0

    @property
    def passes(self) -> int:
        """Steps behind the prompt's own."""
        return max(len(self.tokens) - 1 - self.accepted, 0)


@attrs.frozen(kw_only=True)
class Group:
    """Answers that were asked for together; so many at a time that the next one begins where one has ended."""

    samples: tuple[Sample, ...]
    seconds: float

    @property
    def speed(self) -> float:
        """Tokens a second, prompts included."""
        return sum(len(sample.tokens) for sample in self.samples) / self.seconds

    @property
    def steady(self) -> float:
        """Tokens a second of all answers, each after its first, were they side by side."""
        return sum(sample.steady for sample in self.samples)


@attrs.frozen(kw_only=True)
class Round:
    """Both sides of one group, one right after the other."""

    plain: Group
    guessing: Group
    plain_first: bool

    @property
    def same(self) -> bool:
        """Whether every answer is the same, token for token."""
        pairs = zip(self.plain.samples, self.guessing.samples, strict=True)
        return all(ours.tokens == theirs.tokens for ours, theirs in pairs)


async def run_group(runtime: Runtime, requests: Sequence[GenerationRequest], *, at_once: int = 1) -> Group:
    """Ask for so many at once, for the next one whenever one is complete, and wait for all. Blocks for seconds."""
    started = trio.current_time()
    samples = await run_closed_loop(len(requests), at_once, lambda place: _run_one(runtime, requests[place]))
    return Group(samples=samples, seconds=trio.current_time() - started)


async def _run_one(runtime: Runtime, request: GenerationRequest) -> Sample:
    started, tokens, times = trio.current_time(), list[int](), list[float]()
    generation = runtime.generate(request)
    last: GenerationFinished | None = None
    async with generation:
        async for event in generation:
            if isinstance(event, TokenChunk):
                tokens.append(event.token)
                times.append(trio.current_time() - started)
            elif isinstance(event, GenerationFinished):
                last = event
    assert last is not None
    return Sample(
        prompt=tuple(generation.prompt),
        tokens=tuple(tokens),
        first=times[0] if times else 0.0,
        last=times[-1] if times else 0.0,
        seconds=trio.current_time() - started,
        drafted=last.timings.drafted,
        accepted=last.timings.accepted,
    )


def rounds_of(groups: int, *, rounds: int, samples: int) -> int:
    """Rounds of each order where a kind of work has so many groups: `rounds`, and more of few groups, until each order has `samples`."""
    return max(rounds, -(-samples // groups))


def score(groups: Iterable[Sequence[Round]], *, steady: bool = False) -> float:
    """How many times as fast these groups are with guesses."""
    return smaller_of_orders(_ratios(rounds, steady) for rounds in groups)


def _ratios(rounds: Sequence[Round], steady: bool) -> Iterator[tuple[bool, float]]:
    for each in rounds:
        ours, theirs = (each.guessing.steady, each.plain.steady) if steady else (each.guessing.speed, each.plain.speed)
        if theirs:
            yield each.plain_first, ours / theirs


def smaller_of_orders(groups: Iterable[Iterable[tuple[bool, float]]]) -> float:
    """Of ratios and the order that each was measured in: of each order the geometric mean of its groups' medians, and the smaller one of both.

    1 of none. A side that gains by going first gains in every group; what only one group loses in one order is the machine's noise, and
    taken from every group by itself it would be taken for a loss.
    """
    medians: dict[bool, list[float]] = {}
    for group in groups:
        found: dict[bool, list[float]] = {}
        for order, ratio in group:
            found.setdefault(order, []).append(ratio)
        for order, ratios in found.items():
            medians.setdefault(order, []).append(statistics.median_low(ratios))
    return min((geometric_mean(each) for each in medians.values()), default=1.0)


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive values; NaN of none."""
    logs = [math.log(value) for value in values if value > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
