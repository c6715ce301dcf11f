"""The engine-free share of a real engine's step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tripower.actors.dialogue import TokenChunk
from tripower.bench.measured_model import describe_model
from tripower.bench.overhead import observed
from tripower.bench.overhead.model_step import CONTEXT, PROMPT, STEPS, BareEngine, model_step_cells
from tripower.runtime.kernel import Unavailable


class Bursts:
    """A generation whose tokens come in bursts of these sizes."""

    def __init__(self, *sizes: int) -> None:
        self._sizes = list(sizes)

    @property
    def ended(self) -> bool:
        return not self._sizes

    async def receive(self) -> list[TokenChunk]:
        return [TokenChunk(1, "a")] * self._sizes.pop(0)


def test_what_a_member_asks_for_fits_into_its_context() -> None:
    assert observed.tokens_wanted(STEPS) + len(PROMPT) <= CONTEXT


async def test_the_clock_starts_after_the_warm_up_and_stops_when_enough_has_come() -> None:
    generation: Any = Bursts(observed.STEPS_BEFORE, 3, 3, 3)
    assert await observed._time_steps(generation, 5) > 0
    assert not generation.ended


async def test_steps_that_all_come_at_once_cannot_be_timed() -> None:
    generation: Any = Bursts(observed.STEPS_BEFORE + 100)
    with pytest.raises(Unavailable, match="too short"):
        await observed._time_steps(generation, 5)


def test_the_bare_engine_can_be_timed_again_and_again(tiny_gguf: Path) -> None:
    bare = BareEngine(tiny_gguf, 1)
    assert bare.milliseconds(3) > 0
    assert bare.milliseconds(2) > 0
    bare.close()


@pytest.mark.long
async def test_both_cells_are_reported(smollm2_path: Path) -> None:
    cells = await model_step_cells(describe_model(smollm2_path), 2, quick=True, progress=lambda text: None)
    states = ("idle", "saturated", "saturated, one thread less")
    assert [cell.name for cell in cells] == [f"step of smollm2-135m, loop {state}" for state in states]
    assert [cell.target for cell in cells] == ["ratio <= 1.03", "ratio <= 1.05", None]
    assert all(cell.ours and cell.peer for cell in cells)
