"""How the time of a run is given out."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from tripower.bench.serving.cells import Clock


async def test_what_a_cell_leaves_over_is_there_for_the_next_ones(autojump_clock: MockClock) -> None:
    clock = Clock(trio.current_time() + 90.0, 3)
    assert clock.share() == 30.0
    await trio.sleep(10.0)
    assert clock.share() == 40.0
    await trio.sleep(80.0)
    assert clock.share() == 0.0
