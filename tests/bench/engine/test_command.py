"""`tripower bench engine`: it runs and reports. What it measures is not asserted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tripower.bench.engine import command
from tripower.bench.engine.loads import COLD_MAX, MEMORY_MAX, WARM_MAX
from tripower.bench.engine.neighbours import AGAINST_ONE_THREAD, SHARES
from tripower.bench.engine.steps import BANDWIDTH_SHARE, FMA_SHARE
from tripower.bench.peers import registry
from tripower.runtime.kernel import InvalidConfiguration

Run = Callable[..., dict[str, Any]]

STEPS = [f"step, {rows}" for rows in ("1 row", "2 rows", "4 rows", "8 rows", "16 rows")]
CELLS = {
    "steps": [*STEPS, "share of the bandwidth limit, 1 row", "share of the FMA limit, 16 rows"],
    "memory": ["weights in memory ÷ file", "memory taken by a load"],
    "load": ["warm load", "cold load", "process start to loaded, warm"],
    "neighbours": [
        "step beside a neighbour of 30%",
        "step beside a neighbour of 100%",
        "step beside a neighbour of 100%, against one thread",
    ],
}


def test_the_targets_are_those_that_were_set() -> None:
    assert (BANDWIDTH_SHARE.limit, FMA_SHARE.limit, MEMORY_MAX.limit) == (0.6, 0.5, 1.3)
    assert (WARM_MAX.limit, COLD_MAX.limit) == (3.0, 10.0)
    assert (SHARES, AGAINST_ONE_THREAD) == (((0.3, 1.5), (1.0, 2.1)), 1.05)


@pytest.mark.long
def test_steps_and_memory_report_their_cells(tiny_gguf: Path, run_quick: Run) -> None:
    report = run_quick(command.main, ["--model", str(tiny_gguf), "--threads", "1", "--only", "steps", "--only", "memory"])
    assert [cell["name"] for cell in report["cells"]] == [*CELLS["steps"], *CELLS["memory"]]
    assert report["host"]["threads"] == 1


@pytest.mark.parametrize(("threads", "cells"), [(1, CELLS["neighbours"][:2]), (2, CELLS["neighbours"])])
@pytest.mark.long
def test_neighbours_are_measured_against_quiet_and_against_one_thread(
    threads: int, cells: list[str], tiny_gguf: Path, run_quick: Run
) -> None:
    arguments = ["--model", str(tiny_gguf), "--threads", str(threads), "--only", "neighbours"]
    assert [cell["name"] for cell in run_quick(command.main, arguments)["cells"]] == cells


@pytest.mark.long
def test_loads_are_measured_beside_llamacpp(smollm2_path: Path, run_quick: Run) -> None:
    try:
        registry.check_peer("llamacpp")
    except InvalidConfiguration as missing:
        pytest.skip(str(missing))
    report = run_quick(command.main, ["--model", str(smollm2_path), "--only", "load"])
    assert [cell["name"] for cell in report["cells"]] == CELLS["load"]
    assert all(cell["peer"] > 0 for cell in report["cells"])
