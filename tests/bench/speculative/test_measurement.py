"""What is asked of one engine, cold and with its prompt kept, and which figures carry the targets."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from tripower.actors.dialogue import GenerationRequest
from tripower.bench.speculative import measurement
from tripower.bench.speculative.measurement import TARGETS, Measurement, Plan
from tripower.bench.speculative.samples import Group, Sample
from tripower.runtime.engine import EngineInfo

PLAN = Plan(
    model="m", mode="ngram-context", tokens=6, rounds=1, samples=1, prompts=2, concurrency=(1,), work=("edit", "chat"), threads=1, each=False
)  # fmt: skip
INFO = EngineInfo(backend="toy", architecture="toy", context_max=99, vocabulary_size=257, sequences_max=1)


async def test_prompts_are_asked_cold_then_evaluated_then_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, int, bool]] = []

    async def run_group(runtime: Any, requests: Sequence[GenerationRequest], *, at_once: int) -> Group:
        assert at_once == 1
        [request] = requests
        plain = request.draft_max == 0
        asked.append((plain, request.max_tokens or 0, request.cache_prompt))
        seconds = (2.0 if request.cache_prompt else 4.0) if plain else 1.0
        tokens = (1, 2, 3, 1, 2, 3)
        sample = Sample(prompt=(9,), tokens=tokens, first=0.5, last=seconds, seconds=seconds, drafted=4, accepted=3)
        return Group(samples=(sample,), seconds=seconds)

    monkeypatch.setattr(measurement, "run_group", run_group)
    monkeypatch.setattr(measurement, "collected", nullcontext)  # the heap of a test run is large
    unfinished = list[set[str]]()
    measured = Measurement(
        None,  # type: ignore[arg-type] # nobody is asked
        "m", True, INFO, PLAN, lambda text: None, lambda cells: unfinished.append({cell.name for cell in cells}),
    )  # fmt: skip
    cells = {cell.name: cell for cell in await measured.run()}
    orders = [True, False, False, True]
    assert asked[:8] == [(plain, 6, False) for plain in orders * 2]
    assert asked[8:13] == [(True, 1, True), *((plain, 6, True) for plain in orders)]
    cold, warm = cells["all repetitive × 1, request-wide"], cells["all repetitive × 1, request-wide, prompt kept"]
    assert (cold.ours, cold.target, cold.ok) == (4.0, str(TARGETS[1]), True)
    assert (warm.ours, warm.target) == (2.0, None)
    assert cells["identical answers"].ok and "16 comparisons" in (cells["identical answers"].note or "")
    assert "chat × 1, steady decode" in cells and "kept" in measured.plot()
    first, second = unfinished
    assert {"edit × 1, request-wide", "edit, counted", "identical answers"} <= first < second
    assert cells.keys() - second == {"identical answers, sampled"}
