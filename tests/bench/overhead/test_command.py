"""`tripower bench overhead`: it runs and reports. What it measures is not asserted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tripower.bench.overhead import command, kernel, step

Run = Callable[..., dict[str, Any]]

CELLS = {
    "kernel": {"ask", "ask, tighter deadline", "ask, against Pykka", "tell", "tell_nowait"},
    "step": {"step, loop idle", "step, loop saturated"},
    "http": {
        "HTTP, whole answer",
        "the same, bare on our listener",
        "HTTP, stream of 64",
        "the same, a step of 1 ms",
    },
}


@pytest.mark.long
@pytest.mark.parametrize("part", command.PARTS)
def test_every_part_reports_its_cells(part: str, run_quick: Run) -> None:
    report = run_quick(command.main, ["--only", part])
    assert report["bench"] == "overhead"
    assert {cell["name"] for cell in report["cells"]} == CELLS[part]


@pytest.mark.long
def test_without_pykka_its_cell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "has_pykka", lambda: False)
    cells = kernel.kernel_cells(rounds=1, count=16, progress=lambda text: None)
    assert {cell.name for cell in cells} == CELLS["kernel"] - {"ask, against Pykka"}


def test_the_bare_engine_runs_as_many_steps_as_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "STEP_MICROSECONDS", 0)
    assert step.engine_alone(20) > 0
