"""How two things are compared on a machine whose speed drifts: alternating blocks and paired ratios.

Absolute times of one machine move by half within minutes with nothing else running, so a mean of one against a mean of the other
compares two moments. A *round* is three blocks, A-B-A or B-A-B in turn: the outer two bracket the middle one, and their mean stands
for the same moment, so a drift that is even over the round cancels. Each round gives one ratio; the result is the median of the
ratios, with its quartiles for how far to trust it.

Garbage: each block starts from a collected heap whose survivors are frozen, and the collector stays on inside it. So neither side
pays for the heap that the other left behind, and both pay for the garbage that they make.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias, TypeVar

import msgspec

Side = Literal["ours", "peer"]
Progress = Callable[[str], None]
Figure = TypeVar("Figure")
Rounds: TypeAlias = Sequence[tuple[Sequence[Side], Sequence[Figure]]]
"""For every round, the order of its sides and what its three blocks returned."""

ORDERS: tuple[tuple[Side, Side, Side], ...] = (("ours", "peer", "ours"), ("peer", "ours", "peer"))


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """The result: medians of all blocks of each side, the median of the rounds' ratios and its quartiles."""

    ours: float
    peer: float
    ratio: float
    iqr: tuple[float, float]
    rounds: int


def block_order(rounds: int) -> Iterator[tuple[Side, Side, Side]]:
    """The sides of each round's three blocks: both orders in turn."""
    for number in range(rounds):
        yield ORDERS[number % 2]


def round_ratio(order: Sequence[Side], values: Sequence[float]) -> float:
    """ours / peer of one round: the mean of the outer blocks against the middle one. NaN when the peer measured nothing."""
    first, middle, last = values
    outer = (first + last) / 2
    ours, peer = (outer, middle) if order[0] == "ours" else (middle, outer)
    return ours / peer if peer else math.nan


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile, with linear interpolation; one value is all three."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return lower, median, upper


def percentile(values: Sequence[float], fraction: float) -> float:
    """The smallest value that at least `fraction` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def summarise(rounds: Rounds[float]) -> Paired:
    """From the block values of every round to the result."""
    blocks: dict[Side, list[float]] = {"ours": [], "peer": []}
    for order, values in rounds:
        for side, value in zip(order, values, strict=True):
            blocks[side].append(value)
    lower, ratio, upper = quartiles([round_ratio(order, values) for order, values in rounds])
    return Paired(
        ours=statistics.median(blocks["ours"]),
        peer=statistics.median(blocks["peer"]),
        ratio=ratio,
        iqr=(lower, upper),
        rounds=len(rounds),
    )


@contextmanager
def collected() -> Iterator[None]:
    """A block that starts from a collected heap; see the module."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def alternate(
    ours: Callable[[], Figure], peer: Callable[[], Figure], *, rounds: int, label: str, progress: Progress
) -> Rounds[Figure]:
    """Run both in alternating blocks; each call is one block and returns its figures. Blocks for all of it."""
    sides: dict[Side, Callable[[], Figure]] = {"ours": ours, "peer": peer}
    done: list[tuple[Sequence[Side], Sequence[Figure]]] = []
    for number, order in enumerate(block_order(rounds), 1):
        progress(f"{label}: round {number} of {rounds}")
        values = []
        for side in order:
            with collected():
                values.append(sides[side]())
        done.append((order, values))
    return done


async def alternate_async(
    ours: Callable[[], Awaitable[Figure]],
    peer: Callable[[], Awaitable[Figure]],
    *,
    rounds: int,
    label: str,
    progress: Progress,
) -> Rounds[Figure]:
    """`alternate` for blocks that run in the caller's Trio loop."""
    sides: dict[Side, Callable[[], Awaitable[Figure]]] = {"ours": ours, "peer": peer}
    done: list[tuple[Sequence[Side], Sequence[Figure]]] = []
    for number, order in enumerate(block_order(rounds), 1):
        progress(f"{label}: round {number} of {rounds}")
        values = []
        for side in order:
            with collected():
                values.append(await sides[side]())
        done.append((order, values))
    return done
