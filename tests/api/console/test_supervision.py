"""The console beside real actors: what befalls it is nothing to them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tripower.actors.dialogue import GenerationRequest
from tripower.actors.runtime import open_actors, toy_plan
from tripower.api.console.actor import ConsoleActor, start_console
from tripower.api.console.client import open_console
from tripower.api.console.finding import CannotAttach
from tripower.api.console.listening import library_console
from tripower.runtime.kernel import InlineLane


async def test_a_crash_of_the_console_is_no_failure_of_the_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.CRITICAL, "tripower")

    def crash(self: ConsoleActor, accepted: object) -> None:
        raise RuntimeError("the console is broken")

    with library_console(tmp_path / "s") as opened:
        async with open_actors(toy_plan(open_port=lambda: InlineLane(lambda job: 0.0))) as runtime:
            start_console(runtime, opened)
            with monkeypatch.context() as broken:
                broken.setattr(ConsoleActor, "_welcome", crash)
                for _ in range(20):  # more often than any budget
                    with pytest.raises(CannotAttach):
                        async with open_console(str(opened.path)):
                            pass
            assert runtime.health().status == "ok"
            await trio.sleep(10)
            async with runtime.generate(GenerationRequest(model="toy", prompt="x")) as generation:
                assert await generation.receive()
            async with open_console(str(opened.path)) as console:
                assert await console.call("help")
            (figures,) = [actor for actor in runtime.statistics() if actor.name == "console"]
            assert figures.crashes >= 1
            assert figures.restarts == figures.crashes
