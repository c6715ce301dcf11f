"""`tripower bench soak`: it runs and reports, and tells growth from noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tripower.bench.serving import soak
from tripower.bench.serving.soak import Tally, cells_of

Run = Callable[..., dict[str, Any]]


def test_streams_are_asked_again_and_none_is_lost(run_quick: Run) -> None:
    report = run_quick(soak.main, ["--model", "toy", "--streams", "8"])
    cells = {cell["name"]: cell for cell in report["cells"]}
    assert cells["answers lost"]["ours"] == 0
    assert cells["answers whole"]["ours"] >= 8


@pytest.mark.parametrize(
    ("own", "growth", "ok"),
    [
        ([10.0] * 20, 0.0, True),
        ([1.0] * 10 + [10.0] * 10, 0.0, True),
        ([10.0] * 18 + [20.0] * 2, 10.0, False),
        ([20.0] * 10 + [20.0 - place for place in range(10)], -9.0, True),
    ],
)
def test_growth_is_counted_from_the_end_of_the_warm_up(own: list[float], growth: float, ok: bool) -> None:
    cell = cells_of([(each, 2 * each) for each in own], Tally(), warm=0.5)[0]
    assert cell.ours == growth
    assert cell.ok is ok


def test_a_lost_answer_is_a_missed_target_with_its_reason() -> None:
    cells = cells_of([(1.0, 1.0)], Tally(lost=1, first_loss="cut off"), warm=0.5)
    assert [(cell.ok, cell.note) for cell in cells if cell.name == "answers lost"] == [(False, "cut off")]
