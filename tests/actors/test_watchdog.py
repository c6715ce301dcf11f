"""Work that no longer moves makes health red, whichever engine it waits for, and is described in the log once."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.actors.delegates import PIECE_SECONDS, ScriptedDelegate, ask, open_scripted, text
from tests.actors.encoders import asking, open_telling
from tests.actors.rigs import Listener, open_toy, queue_figures, request, warm_up
from tripower.actors import watchdog as module
from tripower.actors.runtime import Runtime
from tripower.actors.watchdog import stalled
from tripower.runtime.engine import DelegateEvent
from tripower.runtime.kernel import ActorSystem, LaneJob

FAR = "far has had no step for 50 s"
WEDGED = "cpu0 passes no step boundary any more"


@attrs.define(eq=False)
class SilentDelegate(ScriptedDelegate):
    """Says its first piece, and nothing more before `silent_seconds` are over."""

    silent_seconds: float = 100.0
    only_first: bool = False
    """Whether later streams go on."""

    async def _events(self) -> AsyncGenerator[DelegateEvent, None]:
        silent = not self.only_first or len(self.requests) == 1
        for number, item in enumerate(self.script):
            await trio.sleep(self.silent_seconds if silent and number == 1 else PIECE_SECONDS)
            assert not isinstance(item, BaseException)
            yield item


def reasons(runtime: Runtime) -> tuple[str, ...]:
    return runtime.health().reasons


def dumps(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "tripower.watchdog" and record.levelname == "ERROR"]


async def test_a_wedged_lane_is_described_once_for_each_time_that_it_stalls(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = 1.0

    def pace(job: LaneJob) -> float:
        return seconds if job.name.startswith("steps") else 0.0

    async with open_toy(pace=pace, stall_seconds=40.0) as (runtime, _), trio.open_nursery() as nursery:
        await warm_up(runtime)
        assert reasons(runtime) == () and dumps(caplog) == []
        for incident in (1, 2):
            seconds = 300.0
            listener = Listener()
            nursery.start_soon(listener.run, runtime.generate(request("a", 1)))
            await trio.sleep(200)
            assert reasons(runtime) == (WEDGED,)
            assert len(dumps(caplog)) == incident  # although it was looked at many times
            seconds = 1.0
            await trio.sleep(400)
            assert listener.finished is not None and reasons(runtime) == ()
        told = dumps(caplog)[0]
        assert told.startswith(f"stalled: {WEDGED}\nactors:")
        for expected in ("device:cpu0 idle", "tasks (", "queue:toy", "device:cpu0/port", "threads:"):
            assert expected in told
        assert [record.levelname for record in caplog.records if record.name == module.log.name] == ["ERROR", "WARNING"] * 2


async def test_a_delegate_that_says_nothing_makes_health_red_until_it_does(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    delegate = SilentDelegate(text("a", "b"))
    async with open_scripted(delegate, stall_seconds=40.0) as (runtime, _), trio.open_nursery() as nursery:
        await runtime.load("far")
        listener = Listener()
        nursery.start_soon(listener.run, runtime.generate(ask()))
        await trio.sleep(50.5)  # the first piece came after a second
        assert reasons(runtime) == ()
        await trio.sleep(1)
        assert reasons(runtime) == (FAR,) and runtime.health().status == "failing"
        await trio.sleep(20)
        assert len(dumps(caplog)) == 1 and "far/stream 0" in dumps(caplog)[0]
        await trio.sleep(100)
        assert listener.finished is not None and reasons(runtime) == ()


async def test_one_delegate_stream_that_moves_is_enough(autojump_clock: object) -> None:
    delegate = SilentDelegate(text(*"abcdefghij" * 20), only_first=True, silent_seconds=150.0)
    async with open_scripted(delegate, stall_seconds=40.0) as (runtime, _), trio.open_nursery() as nursery:
        await runtime.load("far")
        for _ in range(2):
            nursery.start_soon(Listener().run, runtime.generate(ask()))
            await trio.sleep(0.1)
        for _ in range(14):
            await trio.sleep(10)
            assert reasons(runtime) == ()


async def test_a_process_that_was_paused_is_given_time_to_move_again(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    delegate = SilentDelegate(text("a", "b"), silent_seconds=100.0)
    async with open_scripted(delegate, stall_seconds=40.0) as (runtime, _), trio.open_nursery() as nursery:
        await runtime.load("far")
        listener = Listener()
        nursery.start_soon(listener.run, runtime.generate(ask()))
        await trio.sleep(5)
        autojump_clock.jump(95)  # as after a stop of the process, of which nobody here has known
        await trio.sleep(20)
        assert listener.finished is not None
    assert dumps(caplog) == []


async def test_a_long_answer_and_an_idle_queue_are_not_stalls(autojump_clock: object, caplog: pytest.LogCaptureFixture) -> None:
    async with open_toy(stall_seconds=10.0) as (runtime, _), trio.open_nursery() as nursery:
        await runtime.load("toy")
        await trio.sleep(100)
        listener = Listener()
        nursery.start_soon(listener.run, runtime.generate(request("a", 60)))  # a second for each token
        for _ in range(30):
            await trio.sleep(2)
            assert reasons(runtime) == () and queue_figures(runtime).quiet_seconds <= 1.0
        await trio.sleep(50)
        assert listener.finished is not None and queue_figures(runtime).quiet_seconds == 0.0
    assert dumps(caplog) == []


async def test_a_long_list_of_texts_is_no_stall_while_its_rows_are_encoded(autojump_clock: object) -> None:
    async with open_telling(stall_seconds=5.0) as (runtime, _), trio.open_nursery() as nursery:
        nursery.start_soon(runtime.embed, asking(*"abcdefghijklmnopqrst"))  # a second for each
        for _ in range(25):
            await trio.sleep(1)
            assert reasons(runtime) == ()


async def test_a_queue_that_was_forgotten_is_found_although_its_lane_is_idle(autojump_clock: object) -> None:
    async with open_toy(stall_seconds=40.0) as (runtime, _), trio.open_nursery() as nursery:
        await warm_up(runtime)
        queue = next(cell for cell in runtime.system.cells() if cell.name == "queue:toy")
        actor = queue._actor
        assert actor is not None
        actor._start_job = lambda: None  # type: ignore[attr-defined]
        nursery.start_soon(Listener().run, runtime.generate(request("a", 1), deadline=trio.current_time() + 100))
        await trio.sleep(49)
        assert reasons(runtime) == ()
        await trio.sleep(2)
        assert reasons(runtime) == ("toy has had no step for 50 s",)
        assert stalled(runtime.statistics(), 1000.0) == []
        nursery.cancel_scope.cancel()


async def test_a_description_that_fails_ends_neither_the_watchdog_nor_the_runtime(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(system: ActorSystem) -> str:
        raise RuntimeError("cannot describe")

    monkeypatch.setattr(module, "describe", fail)
    delegate = SilentDelegate(text("a", "b"))
    async with open_scripted(delegate, stall_seconds=40.0) as (runtime, _), trio.open_nursery() as nursery:
        await runtime.load("far")
        nursery.start_soon(Listener().run, runtime.generate(ask()))
        await trio.sleep(80)
        assert reasons(runtime) == (FAR,) and "could not describe" in caplog.text
        await trio.sleep(100)
        assert reasons(runtime) == () and "moves again" in caplog.text
