"""`tripower bench mix`: streams beside a long prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from tripower.bench.serving import mix
from tripower.bench.serving.mix import Gaps, Phases, mix_cells

Run = Callable[..., dict[str, Any]]


def test_it_runs_and_reports(run_quick: Run) -> None:
    report = run_quick(mix.main, ["--model", "toy:500"])
    assert report["bench"] == "mix"
    assert report["cells"][0]["name"] == "between tokens, p99"
    assert report["cells"][0]["target"] == "ratio <= 3"


def test_the_ratio_is_that_of_neighbouring_phases() -> None:
    quiet, loud = [0.010] * 99 + [0.020], [0.030] * 99 + [0.050]
    rounds = [
        Phases(quiet, loud, 8000, 10.0),
        Phases([2 * gap for gap in quiet], [2 * gap for gap in loud], 8000, 20.0),
        Phases(quiet, [gap / 2 for gap in loud], 8000, 10.0),
    ]
    p99, during, before, prompt = mix_cells(rounds)
    assert (p99.ours, p99.peer, p99.ratio, p99.ok) == (30.0, 10.0, 3.0, True)
    assert (during.ours, before.ours, prompt.ours) == (30.0, 10.0, 800.0)


def test_a_prompt_that_let_no_token_through_is_one_long_gap() -> None:
    [p99, *_] = mix_cells([Phases([0.01] * 10, [], 8000, 4.0)])
    assert p99.ratio == pytest.approx(400)
    assert (p99.ours, p99.ok) == (4000.0, False)


async def test_gaps_are_waited_for_and_taken_once(autojump_clock: trio.testing.MockClock) -> None:
    gaps = Gaps()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gaps.wait_for, 3)
        await trio.testing.wait_all_tasks_blocked()
        for seconds in (1.0, 2.0, 3.0):
            gaps.add(seconds)
    await gaps.wait_for(3)
    assert gaps.take() == [1.0, 2.0, 3.0]
    assert gaps.take() == []
