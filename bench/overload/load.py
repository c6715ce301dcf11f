"""Ten times the capacity, beside the same load without the excess.

Clients of every key ask again as soon as they are answered, twice as many as there are seats, and some read slowly: that is the load that
can be served, and it goes on all the time. In every other block further requests arrive whether or not anybody is answered, most of them with the noisy
key, so that all together are ten times what is served. Work is counted by the server, in tokens generated while a block lasts, after a
moment in which the block gets going.
"""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Callable, Sequence

import attrs
import trio

from tripower.api.http.observe.audit_chain import AuditEvent
from tripower.bench.overload import targets
from tripower.bench.overload.books import SHOWN, Ledger, contradictions
from tripower.bench.overload.client import Outcome, Pool, perform
from tripower.bench.overload.figures import Reading
from tripower.bench.overload.requests import BRISK_MIX, Deck, Kind
from tripower.bench.overload.service import NOISY, QUIET, WEIGHTS, Service
from tripower.bench.paired import Paired, Progress, alternate_async, percentile, summarise
from tripower.bench.schema import Cell, paired_cell, single_cell

BASE_PER_SEAT = 2
CAPACITY_MIN = 0.1
"""Requests a second, where nothing was complete in the time of warming up."""
NOISY_SHARE = 0.8
"""Of the excess; the other keys share the rest."""
GOING_SHARE = 0.1
"""Of a block, before its counting begins."""
REFUSED_PAUSE_MAX = 0.25
"""A client of the steady load comes again after so many seconds at most, whatever it is advised."""
REST_SECONDS_MAX = 30.0
SEED = 4
MEGA, MILLI = 1e6, 1e3


@attrs.frozen(kw_only=True)
class Plan:
    """How long, and how much."""

    seats: int
    block_seconds: float
    rounds: int
    warm_seconds: float
    tokens: tuple[int, int]
    """Of an answer under overload, between these."""


@attrs.define
class Load:
    """The clients of one run, and what they saw."""

    service: Service
    plan: Plan
    pool: Pool
    deck: Deck
    ledger: Ledger = attrs.Factory(Ledger)
    memory: list[float] = attrs.Factory(list)
    """Megabytes of the server's own memory after each block."""
    rate: float = 0.0
    """Requests a second of the excess."""
    ended: bool = False
    _choose: random.Random = attrs.Factory(lambda: random.Random(SEED))

    def start_steady(self, nursery: trio.Nursery) -> None:
        """Start those who ask again as soon as they are answered, and a slow reader for each key."""
        keys = tuple(WEIGHTS)
        for number in range(BASE_PER_SEAT * self.plan.seats):
            nursery.start_soon(self._steady_client, keys[number % len(keys)], lambda: self.deck.draw(BRISK_MIX))
        for key in keys:
            nursery.start_soon(self._steady_client, key, lambda: Kind.SLOW)

    async def _steady_client(self, key: str, draw: Callable[[], Kind]) -> None:
        while not self.ended:
            ask = self.deck.deal(key, draw())
            ending = await perform(self.pool, ask)
            self.ledger.enter(ask, ending)
            if ending.outcome in (Outcome.REFUSED, Outcome.LOST):
                await trio.sleep(min(ending.retry_seconds or REFUSED_PAUSE_MAX, REFUSED_PAUSE_MAX))

    async def arrive(self, everybody: trio.Nursery, until: trio.Event) -> None:
        """Let requests of the excess arrive, at times that are drawn, whether or not others have been answered."""
        due = trio.current_time()
        while not until.is_set():
            due += self._choose.expovariate(self.rate)
            await trio.sleep_until(due)  # behind its time it sends at once, so that the rate is kept
            key = NOISY if self._choose.random() < NOISY_SHARE else self._choose.choice(QUIET)
            everybody.start_soon(self._excess_client, key)

    async def _excess_client(self, key: str) -> None:
        ask = self.deck.deal(key, self.deck.draw())
        self.ledger.enter(ask, await perform(self.pool, ask))

    async def block(self, *, excess: bool) -> float:
        """Tokens that the server generates in a second. The last request of the excess has ended when this returns."""
        seconds, ended = self.plan.block_seconds, trio.Event()
        async with trio.open_nursery() as nursery:
            if excess:
                nursery.start_soon(self.arrive, nursery, ended)
            await trio.sleep(seconds * GOING_SHARE)
            rate = await self.measure(seconds * (1 - GOING_SHARE), "generated")
            ended.set()
        self.memory.append(self.service.server.anonymous_bytes() / MEGA)
        return rate

    async def measure(self, seconds: float, what: str) -> float:
        """A second's growth of the tokens `generated`, or of the requests `completed`, in so many seconds from now on."""
        began, before = trio.current_time(), self._value(await self.service.figures(), what)
        await trio.sleep(seconds)
        after = self._value(await self.service.figures(), what)
        return (after - before) / (trio.current_time() - began)

    def _value(self, figures: Reading, what: str) -> float:
        return figures.generated() if what == "generated" else figures.outcomes(self.service.model)["completed"]


async def load_cells(service: Service, plan: Plan, progress: Progress) -> list[Cell]:
    """Run it all and compare the books. Blocks for all the blocks."""
    deck = Deck(service.model, {key: service.headers(key) for key in WEIGHTS}, seed=SEED, tokens=plan.tokens)
    load = Load(service, plan, Pool(service.server.port), deck)
    before = (await service.figures()).outcomes(service.model)
    async with trio.open_nursery() as steady:
        load.start_steady(steady)
        progress("overload: warming up")
        capacity = max(CAPACITY_MIN, await load.measure(plan.warm_seconds, "completed"))
        load.rate = (targets.TIMES - 1) * capacity
        deck.typical_seconds = BASE_PER_SEAT * plan.seats / capacity
        rounds = await alternate_async(
            functools.partial(load.block, excess=True),
            functools.partial(load.block, excess=False),
            rounds=plan.rounds,
            label=f"overload, {load.rate:.0f} more requests a second",
            progress=progress,
        )
        load.ended = True
    load.pool.close()
    occupied = await rest(service)
    after = (await service.figures()).outcomes(service.model)
    events = await trio.to_thread.run_sync(read_events, service)
    counted = {name: after[name] - before[name] for name in after}
    found = contradictions(load.ledger, events, counted)
    return report(load, summarise(rounds), found, occupied, capacity)


async def rest(service: Service) -> dict[str, float]:
    """What is still occupied when nobody has asked for a while; empty where nothing is. Blocks until then."""
    occupied: dict[str, float] = {}
    with trio.move_on_after(REST_SECONDS_MAX):
        while True:
            occupied = (await service.figures()).occupied()
            if taken := await service.taken_slots():
                occupied["/slots"] = taken
            if not occupied:
                break
            await trio.sleep(0.1)
    await trio.sleep(2 * GATHERED_SECONDS)
    return occupied


GATHERED_SECONDS = 0.2
"""In which the audit log has written what it was told."""


def read_events(service: Service) -> list[AuditEvent]:
    """The records of completions, in a chain that nobody has broken. Blocks."""
    from tripower.api.http.observe.audit_chain import read

    return [event for event in read(service.audit_file) if event.action == "completion"]


def report(load: Load, throughput: Paired, found: Sequence[str], occupied: dict[str, float], capacity: float) -> list[Cell]:
    """The cells of a run."""
    ledger, outcomes = load.ledger, load.ledger.outcomes
    counts = ", ".join(f"{outcomes[each]} {each}" for each in Outcome)
    mixture = f"{len(ledger.entries)} requests: {counts}"
    refusals = ledger.refusal_seconds or [0.0]
    return [
        paired_cell(
            "work beside the excess",
            throughput,
            unit="tokens/s",
            target=targets.THROUGHPUT,
            note=f"{load.plan.seats} seats, {capacity:.3g} requests/s served and {load.rate + capacity:.3g} sent; "
            "peer: the same without the excess",
        ),
        single_cell("requests lost", outcomes[Outcome.LOST], unit="requests", target=targets.NONE, note=quoted(ledger.faults)),
        single_cell(
            "contradictions in the books",
            len(found),
            unit="requests",
            target=targets.NONE,
            note=quoted(found) or f"clients, audit log and counters agree; {mixture}",
        ),
        single_cell(
            "seats and state not given back",
            len(occupied),
            unit="figures",
            target=targets.NONE,
            note=", ".join(f"{name} is {value:g}" for name, value in occupied.items()) or None,
        ),
        single_cell(
            "refusals, median",
            statistics.median(refusals) * MILLI,
            unit="ms",
            target=targets.REFUSAL_MS,
            note=f"{len(ledger.refusal_seconds)} refusals, as their clients see them; those that lost a waiting place included",
        ),
        single_cell("refusals, p99", percentile(refusals, 0.99) * MILLI, unit="ms"),
        single_cell("refusals without retry-after", ledger.unadvised, unit="refusals", target=targets.NONE),
        single_cell(
            "growth of own memory under load",
            growth(load.memory),
            unit="MB",
            target=targets.GROWTH_MB,
            note=f"from the first block to the last, {load.memory[-1]:.0f} MB at the end",
        ),
    ]


def growth(memory: Sequence[float]) -> float:
    """From after the first block, which fills what is kept, to the end: of the least of two neighbours, so that no peak decides."""
    settled = memory[1:] or memory
    return min(settled[-2:]) - min(settled[:2])


def quoted(lines: Sequence[str]) -> str | None:
    """The first few for a note."""
    return "; ".join(lines[:SHOWN]) or None
