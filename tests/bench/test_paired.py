"""The arithmetic of alternating blocks, by table and by property."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.bench.paired import (
    ORDERS,
    Side,
    alternate,
    alternate_async,
    block_order,
    collected,
    percentile,
    quartiles,
    round_ratio,
    summarise,
)

ABA, BAB = ORDERS


def quiet(text: str) -> None:
    """Show nothing."""


def test_both_orders_take_turns() -> None:
    assert list(block_order(3)) == [ABA, BAB, ABA]


@pytest.mark.parametrize(
    ("order", "values", "ratio"),
    [
        (ABA, (2.0, 4.0, 2.0), 0.5),
        (ABA, (1.0, 4.0, 3.0), 0.5),
        (BAB, (4.0, 2.0, 4.0), 0.5),
        (BAB, (3.0, 2.0, 5.0), 0.5),
        (ABA, (1.0, 1.0, 1.0), 1.0),
    ],
)
def test_a_rounds_ratio_is_ours_over_peer_with_the_outer_blocks_averaged(
    order: Sequence[Side], values: Sequence[float], ratio: float
) -> None:
    assert round_ratio(order, values) == ratio


def test_a_peer_that_measured_nothing_gives_no_ratio() -> None:
    assert math.isnan(round_ratio(ABA, (1.0, 0.0, 1.0)))


@settings(deadline=None)
@given(
    order=st.sampled_from(ORDERS),
    ours=st.floats(1, 1e6),
    peer=st.floats(1, 1e6),
    drift=st.floats(-0.4, 0.4),
)
def test_a_speed_that_drifts_evenly_over_a_round_cancels(order: Sequence[Side], ours: float, peer: float, drift: float) -> None:
    truth = {"ours": ours, "peer": peer}
    values = [truth[side] * (1 + drift * place) for place, side in enumerate(order)]
    assert round_ratio(order, values) == pytest.approx(ours / peer)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5.0], (5.0, 5.0, 5.0)),
        ([1.0, 2.0], (1.25, 1.5, 1.75)),
        ([4.0, 1.0, 3.0, 2.0, 5.0], (2.0, 3.0, 4.0)),
    ],
)
def test_quartiles_interpolate(values: Sequence[float], expected: tuple[float, float, float]) -> None:
    assert quartiles(values) == expected


@pytest.mark.parametrize(
    ("values", "fraction", "expected"),
    [([3.0, 1.0, 2.0], 0.5, 2.0), ([1.0], 0.99, 1.0), (list(range(1, 101)), 0.99, 99), (list(range(1, 11)), 0.99, 10)],
)
def test_a_percentile_is_one_of_the_values(values: Sequence[float], fraction: float, expected: float) -> None:
    assert percentile(values, fraction) == expected


def test_the_summary_takes_the_median_of_the_ratios_not_the_ratio_of_the_medians() -> None:
    rounds = [(ABA, [1.0, 1.0, 1.0]), (BAB, [10.0, 20.0, 10.0]), (ABA, [300.0, 100.0, 300.0])]
    paired = summarise(rounds)
    assert paired.ratio == 2.0
    assert paired.iqr == (1.5, 2.5)
    assert (paired.ours, paired.peer) == (20.0, 10.0)
    assert paired.rounds == 3


def test_blocks_run_in_the_order_that_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", lambda: 0)  # what all the other tests have left is much
    ran: list[str] = []
    figures = iter(range(6))

    def block(side: str) -> int:
        ran.append(side)
        return next(figures)

    rounds = alternate(lambda: block("ours"), lambda: block("peer"), rounds=2, label="", progress=quiet)
    assert ran == [*ABA, *BAB]
    assert rounds == [(ABA, [0, 1, 2]), (BAB, [3, 4, 5])]


async def test_blocks_in_a_loop_alternate_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", lambda: 0)
    ran: list[str] = []

    def block(side: str) -> Iterator[None]:
        ran.append(side)
        return iter(())

    async def ours() -> float:
        block("ours")
        return 1.0

    async def peer() -> float:
        block("peer")
        return 2.0

    told: list[str] = []
    rounds = await alternate_async(ours, peer, rounds=2, label="cell", progress=told.append)
    assert ran == [*ABA, *BAB]
    assert summarise(rounds).ratio == 0.5
    assert told == ["cell: round 1 of 2", "cell: round 2 of 2"]


def test_a_block_begins_with_a_frozen_heap_and_collection_stays_on() -> None:
    with collected():
        assert gc.get_freeze_count() > 0
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0
