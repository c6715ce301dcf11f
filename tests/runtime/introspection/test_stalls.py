"""The watch over steps: it names who held the loop and at which line, raises never, and is not there when it is off."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from tripower.runtime.introspection import stalls as module
from tripower.runtime.introspection.stalls import ELSEWHERE, LINES_KEPT, SECONDS_MIN, STALLS_KEPT, StallWatch, owner_of
from tripower.runtime.kernel import Actor, Ask, open_actor_system


@attrs.define
class Clock:
    """Steps last as long as they say."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def watching(clock: Callable[[], float], threshold: float = 0.1) -> AsyncIterator[StallWatch]:
    watch = StallWatch(clock)
    watch.turn_on(threshold)
    await trio.lowlevel.checkpoint()
    try:
        yield watch
    finally:
        watch.turn_off()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "tripower-stalls"]


def hold(watch: StallWatch, clock: Clock, seconds: float = 0.5) -> None:
    """Hold the loop until the thread has looked."""
    clock.now += seconds
    sampler = watch._sampler
    assert sampler is not None
    while sampler._step != watch._steps:
        pass


HOLD_LINES = range(hold.__code__.co_firstlineno, hold.__code__.co_firstlineno + 8)


async def test_a_step_that_holds_the_loop_is_told_with_its_line() -> None:
    clock = Clock()
    async with watching(clock, 0.02) as watch, trio.open_nursery() as nursery:

        async def guilty() -> None:
            hold(watch, clock)
            await trio.lowlevel.checkpoint()

        nursery.start_soon(guilty, name="guilty")
        await trio.testing.wait_all_tasks_blocked()
        clock.now += 10
        report = watch.report()
        (stall,) = report.recent
        assert (stall.task, stall.actor, stall.seconds, stall.ago, stall.seen) == ("guilty", "", 0.5, 10.0, True)
        file, _, rest = stall.place.partition(":")
        number, _, function = rest.partition(" in ")
        assert file == __file__
        assert function == "hold" and int(number) in HOLD_LINES
        assert any(frame.function.endswith("guilty") for frame in stall.frames)
        assert (report.on, report.stalls, report.longest_seconds) == (True, 1, 0.5)
        assert [(line.place, line.count, line.seconds) for line in report.lines] == [(stall.place, 1, 0.5)]


async def test_a_stall_that_nobody_saw_is_told_with_the_line_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StallWatch, "overdue", lambda self: 0)
    clock = Clock()
    async with watching(clock) as watch, trio.open_nursery() as nursery:

        async def guilty(then: trio.Event | None) -> None:
            clock.now += 0.5
            if then is not None:
                await then.wait()

        end = trio.Event()
        nursery.start_soon(guilty, end, name="guilty")
        nursery.start_soon(guilty, None, name="ends")
        await trio.testing.wait_all_tasks_blocked()
        by_task = {stall.task: stall for stall in watch.report().recent}
        line = guilty.__code__.co_firstlineno + 3
        assert by_task["guilty"].place == f"{__file__}:{line} in {guilty.__qualname__}"
        assert by_task["ends"].place == "" and not any(stall.seen or stall.frames for stall in by_task.values())
        end.set()


async def test_the_actor_in_whose_task_it_happened_is_named() -> None:
    class Compute(Ask[None], frozen=True):
        """Take a while."""

    clock = Clock()

    class Slow(Actor[Compute]):
        async def on_message(self, message: Compute) -> None:
            self.start_soon(self._compute, name="computation")
            clock.now += 0.2

        async def _compute(self) -> None:
            clock.now += 0.4

    async with open_actor_system() as system, watching(clock) as watch:
        await system.spawn(Slow, name="slow").ask(Compute())
        await trio.testing.wait_all_tasks_blocked()
        told = {(stall.task, stall.actor, round(stall.seconds, 1)) for stall in watch.report().recent}
        assert told == {("actor:slow", "slow", 0.2), ("slow/computation", "slow", 0.4)}


async def test_a_step_in_which_the_watch_was_turned_on_is_not_counted() -> None:
    clock = Clock()
    watch = StallWatch(clock)
    watch.turn_on()
    clock.now += 5  # still in the step that turned it on: Trio will tell of its end only
    await trio.lowlevel.checkpoint()
    assert watch.report().stalls == 0
    clock.now += 5
    await trio.lowlevel.checkpoint()
    assert watch.report().stalls == 1
    watch.turn_off()


async def test_off_means_that_neither_instrument_nor_thread_is_there() -> None:
    clock = Clock()
    assert threads() == []
    async with watching(clock) as watch:
        assert threads() == ["tripower-stalls"]
        watch.turn_on(0.2)  # again, with another threshold
        assert watch.threshold_seconds == 0.2 and watch.on
    watch.turn_off()
    steps = watch.report().steps
    clock.now += 5
    await trio.lowlevel.checkpoint()
    assert (watch.report().steps, watch.report().stalls, watch.report().on) == (steps, 0, False)
    for thread in threading.enumerate():
        if thread.name == "tripower-stalls":
            thread.join()
    assert threads() == []


async def test_what_cannot_be_described_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    async with watching(clock) as watch:
        monkeypatch.setattr(module, "owner_of", lambda task: 1 / 0)
        clock.now += 1
        await trio.lowlevel.checkpoint()
        monkeypatch.undo()
        clock.now += 1
        await trio.lowlevel.checkpoint()
        assert watch.report().stalls == 1
    assert "could not be described" in caplog.text and "trio.abc.Instrument" not in {record.name for record in caplog.records}


async def test_what_is_kept_is_bounded_and_can_be_cleared(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    async with watching(clock) as watch:
        watch._counts.update(f"line {number}" for number in range(LINES_KEPT))
        for _ in range(STALLS_KEPT + 10):
            clock.now += 1
            await trio.lowlevel.checkpoint()
        report = watch.report()
        assert (len(report.recent), report.stalls) == (STALLS_KEPT, STALLS_KEPT + 10)
        assert {line.place: line.count for line in report.lines}[ELSEWHERE] == STALLS_KEPT + 10
        watch.clear()
        report = watch.report()
        assert (report.recent, report.lines, report.stalls, report.steps, report.longest_seconds) == ((), (), 0, 0, 0.0)


async def test_a_line_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StallWatch, "overdue", lambda self: 0)
    clock = Clock()
    async with watching(clock):
        for _ in range(3):
            clock.now += 1
            await trio.lowlevel.checkpoint()
    assert [record.levelname for record in caplog.records if record.name == "tripower.stalls"] == ["WARNING"]
    assert "held the loop for 1000 ms" in caplog.text


async def test_a_threshold_has_a_floor() -> None:
    async with watching(Clock(), 0.0) as watch:
        assert watch.threshold_seconds == SECONDS_MIN


async def test_a_watch_that_trio_has_removed_can_still_be_turned_off(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(Clock()) as watch:
        trio.lowlevel.remove_instrument(watch)
    assert not watch.on and "removed the watch" in caplog.text


async def test_whoever_is_below_no_actor_belongs_to_none() -> None:
    assert owner_of(trio.lowlevel.current_task()) == ""
