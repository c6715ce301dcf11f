"""Figures in narrow columns."""

from __future__ import annotations

import pytest

from tripower.api.overview.figures import Percentiles
from tripower.api.overview.words import bar, duration, percentiles, rate, share, sparkline


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (0, "0ms"), (-0.1, "0ms"), (0.0124, "12ms"), (0.9994, "999ms"), (0.9996, "1.00s"), (9.994, "9.99s"),
        (9.996, "10.0s"), (59.94, "59.9s"), (59.96, "1m00s"), (125, "2m05s"), (3599.6, "1h00m"), (3725, "1h02m"),
        (86_400 * 3 + 3600 * 4, "3d04h"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text and len(text) <= 6


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0, "0"), (0.04, "0"), (0.4, "0.4"), (12.54, "12.5"), (99.94, "99.9"), (99.96, "100"), (1234, "1,234"),
        (9999.4, "9,999"), (9999.6, "10.0k"), (56_700, "56.7k"), (1_234_567, "1.2M"),
    ],
)  # fmt: skip
def test_rates(value: float | None, text: str) -> None:
    assert rate(value) == text and len(text) <= 6


def test_percentiles_have_one_unit() -> None:
    assert percentiles(Percentiles()) == "-"
    assert percentiles(Percentiles(0.0624, 0.081, 0.0904)) == "62/81/90 ms"
    assert percentiles(Percentiles(0.0624, 0.5, 12.345)) == "0.06/0.50/12 s"


def test_shares() -> None:
    assert (share(0.0), share(0.004), share(0.456), share(1.0)) == ("-", "0%", "46%", "100%")


def test_bars_are_as_wide_as_asked_whatever_the_part() -> None:
    assert [bar(part, 4) for part in (-1, 0, 0.5, 0.53, 1, 2)] == ["    ", "    ", "██  ", "██▏ ", "████", "████"]


def test_a_sparkline_shows_the_last_values_and_never_something_as_nothing() -> None:
    assert sparkline([9, 0, 0.01, 4, 8], 4) == " ▁▄█"
    assert sparkline([1], 3) == "  █"
    assert sparkline([], 3) == "   "
    assert sparkline([0, 0], 2) == "  "
    assert sparkline([1, 2], 0) == ""
