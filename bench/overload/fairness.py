"""What quiet keys notice of a noisy one: the time to their first token, with it and without.

The quiet keys ask now and then, at a quarter of what the server could do. In every other block the noisy key asks for fifty times its
share besides, at times that are drawn, and is refused nearly always. It is compared with the same key asking for just its share, which is
what its excess costs the others, and with a server that has nothing else to do, which is what sharing a machine costs.

With a toy the ratio means little: it reads prompts in no time, so its first token comes at once where nothing runs, and after a step where
something does.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import attrs
import msgspec
import trio

from tripower.bench.overload import targets
from tripower.bench.overload.client import Ending, Outcome, Pool, perform
from tripower.bench.overload.load import Plan
from tripower.bench.overload.requests import Deck, Kind
from tripower.bench.overload.service import NOISY, QUIET, WEIGHTS, Service
from tripower.bench.paired import Progress, Rounds, alternate_async, percentile, summarise
from tripower.bench.schema import Cell, Target, paired_cell, single_cell
from tripower.bench.serving.workload import long_prompt
from tripower.runtime.kernel import Unavailable

QUIET_TOKENS = 8
QUIET_WORDS = 80
NOISY_TOKENS = 64
QUIET_LOAD = 0.25
"""Of what the server could do, by all quiet keys together."""
TRIALS = 16
SEED = 5
FAIR = targets.FIRST_TOKEN
PEERS = (("the noisy key within its share", 1.0), ("nobody else", 0.0))
MILLI = 1e3


AskOne: TypeAlias = Callable[[list[Ending]], Awaitable[None]]
"""Sends one request and adds how it ended."""


class Seen(msgspec.Struct, frozen=True):
    """The first tokens of the quiet keys in one block, seconds, and what their requests did not get."""

    first: list[float]
    denied: int


@attrs.define
class Streets:
    """The two kinds of traffic on one server."""

    service: Service
    plan: Plan
    pool: Pool
    deck: Deck
    quiet_rate: float = 1.0
    noisy_rate: float = 1.0
    """Requests a second."""
    _prompts: int = 0

    async def ask_quietly(self, endings: list[Ending]) -> None:
        """One request of a quiet key, each in turn."""
        self._prompts += 1
        key = QUIET[self._prompts % len(QUIET)]
        prompt = long_prompt(self._prompts, QUIET_WORDS)
        ask = self.deck.deal(key, Kind.STREAM, tokens=QUIET_TOKENS, prompt=prompt)
        endings.append(await perform(self.pool, ask))

    async def ask_noisily(self, endings: list[Ending]) -> None:
        """One request of the noisy key."""
        endings.append(await perform(self.pool, self.deck.deal(NOISY, Kind.STREAM, tokens=NOISY_TOKENS)))

    async def calibrate(self) -> None:
        """Find out how much the server can do of either kind, everybody at once, and set the rates by it."""
        share = WEIGHTS[NOISY] / sum(WEIGHTS.values())
        self.quiet_rate = QUIET_LOAD * await self._capacity(self.ask_quietly)
        self.noisy_rate = targets.NOISY_TIMES * share * await self._capacity(self.ask_noisily)

    async def _capacity(self, ask: AskOne) -> float:
        """Requests of one kind a second, as many at once as there are seats. Raises `Unavailable` when one is not answered."""
        endings: list[Ending] = []
        began = trio.current_time()
        limit = trio.CapacityLimiter(self.plan.seats)

        async def one() -> None:
            async with limit:
                await ask(endings)

        async with trio.open_nursery() as nursery:
            for _ in range(max(TRIALS, self.plan.seats)):
                nursery.start_soon(one)
        if not all(ending.outcome is Outcome.WHOLE for ending in endings):
            raise Unavailable("a server with nothing else to do did not answer everybody")
        return len(endings) / (trio.current_time() - began)

    async def block(self, *, noise: float) -> Seen:
        """Quiet requests for as long as a block lasts, and to the end of the last one. The noisy key asks for its share times `noise`."""
        quiet: list[Ending] = []
        noisy: list[Ending] = []
        ended = trio.Event()
        choose = random.Random(SEED)  # the same moments in every block
        async with trio.open_nursery() as nursery:
            if noise:
                rate = self.noisy_rate * noise / targets.NOISY_TIMES
                nursery.start_soon(arrive, nursery, random.Random(SEED), rate, self.ask_noisily, noisy, ended)
                await trio.sleep(min(1.0, self.plan.block_seconds / 4))
            nursery.start_soon(arrive, nursery, choose, self.quiet_rate, self.ask_quietly, quiet, ended)
            await trio.sleep(self.plan.block_seconds)
            ended.set()
        first = [ending.first_seconds for ending in quiet if ending.outcome is Outcome.WHOLE]
        return Seen(first or [float("nan")], len(quiet) - len(first))


async def arrive(
    nursery: trio.Nursery,
    choose: random.Random,
    rate: float,
    ask: AskOne,
    endings: list[Ending],
    until: trio.Event,
) -> None:
    """Let requests arrive, so many a second on average, until that."""
    due = trio.current_time()
    while True:
        due += choose.expovariate(rate)
        await trio.sleep_until(due)
        if until.is_set():
            return
        nursery.start_soon(ask, endings)


async def fairness_cells(service: Service, plan: Plan, progress: Progress) -> list[Cell]:
    """Calibrate and compare. Blocks."""
    headers: Mapping[str, Mapping[str, str]] = {key: service.headers(key) for key in WEIGHTS}
    streets = Streets(service, plan, Pool(service.server.port), Deck(service.model, headers, seed=SEED, tokens=(1, 1)))
    progress("fairness: calibrating")
    await streets.calibrate()
    cells: list[Cell] = []
    for peer, noise in PEERS:
        rounds = await alternate_async(
            functools.partial(streets.block, noise=targets.NOISY_TIMES),
            functools.partial(streets.block, noise=noise),
            rounds=plan.rounds,
            label=f"fairness, {streets.noisy_rate:.0f} noisy requests a second, beside {peer}",
            progress=progress,
        )
        cells += report(rounds, streets.quiet_rate, streets.noisy_rate, peer, target=FAIR if noise else None)
    streets.pool.close()
    return cells


def report(
    rounds: Rounds[Seen], quiet_rate: float, noisy_rate: float, peer: str, *, target: Target | None = FAIR
) -> list[Cell]:
    """The cells of these blocks."""
    seen = [each for _, values in rounds for each in values]
    requests = sum(len(each.first) for each in seen)
    note = (
        f"{requests} requests of {len(QUIET)} quiet keys, {quiet_rate:.3g} a second, prompts of {QUIET_WORDS} words; "
        f"the noisy key sends {noisy_rate:.3g} a second; peer: {peer}"
    )

    def at(fraction: float) -> Rounds[float]:
        return [(order, [percentile(each.first, fraction) * MILLI for each in values]) for order, values in rounds]

    return [
        paired_cell(f"first token of quiet keys, p95, beside {peer}", summarise(at(0.95)), unit="ms", target=target, note=note),
        paired_cell(f"first token of quiet keys, median, beside {peer}", summarise(at(0.5)), unit="ms"),
        single_cell(
            f"quiet requests denied, beside {peer}", sum(each.denied for each in seen), unit="requests", target=targets.NONE
        ),
    ]
