"""The scripted runtime that stands behind the service in its tests."""

from __future__ import annotations

import pytest
import trio

from tests.api.fake_runtime import FakeRuntime, Script, Step, tokens
from tripower.actors.dialogue import GenerationRequest
from tripower.runtime.kernel import open_actor_system


@pytest.mark.parametrize("step", [tokens("Hello"), 3.0, trio.Event()], ids=["a burst", "a pause", "an event"])
async def test_a_receive_that_is_cancelled_takes_no_step(autojump_clock: trio.testing.MockClock, step: Step) -> None:
    async with open_actor_system() as system:
        runtime = FakeRuntime(system, Script([step, tokens("there")]))
        async with runtime.generate(GenerationRequest(model="fake", prompt="Hi")) as generation:
            with trio.move_on_after(0 if isinstance(step, list) else 1) as interrupted:
                await generation.receive()
            assert interrupted.cancelled_caught
            if isinstance(step, trio.Event):
                step.set()
            began = trio.current_time()
            assert await generation.receive() == (step if isinstance(step, list) else tokens("there"))
            assert trio.current_time() - began == (2.0 if isinstance(step, float) else 0.0)
