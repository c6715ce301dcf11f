"""Shares of the machine's limits, from figures that are given."""

from __future__ import annotations

import pytest

from tripower.bench.engine.steps import ROWS, Round, cells_of
from tripower.bench.engine.work import StepWork

WORK = StepWork(weight_bytes=100_000_000, multiply_adds=150_000_000)


def measured(one_row: float, sixteen_rows: float, *, bandwidth: float = 20e9, peak: float = 100e9) -> Round:
    times = dict.fromkeys(ROWS, one_row) | {16: sixteen_rows}
    return Round(times, bandwidth, peak)


def test_shares_are_what_is_needed_over_what_is_possible() -> None:
    cells = {cell.name: cell for cell in cells_of([measured(10.0, 40.0)], WORK, 2, "an engine")}
    bandwidth, fma = cells["share of the bandwidth limit, 1 row"], cells["share of the FMA limit, 16 rows"]
    assert bandwidth.ours == pytest.approx(0.5)  # 5 ms would do
    assert fma.ours == pytest.approx(0.6)  # 24 ms would do
    assert (bandwidth.ok, fma.ok) == (False, True)
    assert (bandwidth.target, fma.target) == ("ours >= 0.6", "ours >= 0.5")
    assert cells["step, 1 row"].ours == 10.0 and "100 tokens/s" in (cells["step, 1 row"].note or "")


def test_a_share_is_the_median_of_its_rounds_and_not_of_their_parts() -> None:
    rounds = [measured(10.0, 40.0), measured(5.0, 40.0, bandwidth=40e9), measured(20.0, 40.0, bandwidth=10e9)]
    [share] = [cell for cell in cells_of(rounds, WORK, 2, "") if "bandwidth" in cell.name]
    assert share.ours == pytest.approx(0.5)
    assert share.iqr is not None and list(share.iqr) == pytest.approx([0.5, 0.5])
