"""Models leave memory when they have been idle for long enough, or when another one needs their place; nobody who asks notices."""

from __future__ import annotations

import math

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.rigs import RecordingBackend, assert_quiet, complete, greedy, open_toy, request, steps_only
from tripower.actors.dialogue import TokenChunk
from tripower.actors.models import ModelSource
from tripower.actors.residency import Residency, Use
from tripower.actors.runtime import Runtime, toy_plan
from tripower.runtime.kernel import LaneJob, Unavailable

IDLE = 100.0


@pytest.mark.parametrize(
    ("uses", "victim"),
    [
        ({}, None),
        ({"a": Use(True, False, 0.0)}, None),
        ({"a": Use(False, False, 5.0), "b": Use(False, False, 3.0)}, "b"),
        ({"a": Use(False, True, 1.0), "b": Use(False, False, 9.0)}, "b"),
        ({"a": Use(False, True, 2.0), "b": Use(False, True, 1.0), "c": Use(True, False, 0.0)}, "b"),
    ],
)
def test_the_longest_idle_makes_room_then_the_least_recently_busy_and_never_a_pinned_one(
    uses: dict[str, Use], victim: str | None
) -> None:
    assert Residency(models_max=1).victim(uses) == victim


def test_idle_time_counts_from_the_last_end_and_not_while_busy() -> None:
    rules = Residency(keep_alive_seconds=10.0)
    assert rules.due(Use(False, False, 3.0), now=7.0) == 13.0
    assert rules.due(Use(False, True, 3.0), now=7.0) == 17.0
    assert rules.due(Use(True, False, 3.0), now=7.0) == math.inf
    assert not rules.expired(Use(False, True, 3.0), now=99.0)
    assert rules.expired(Use(False, False, 3.0), now=13.0)


def sources(names: str, pinned: str = "") -> tuple[ModelSource, ...]:
    return tuple(ModelSource(name=name, source="toy", backend="toy", pinned=name in pinned) for name in names)


def limits(**rules: float) -> object:
    return attrs.evolve(toy_plan().limits, residency=Residency(**rules))  # type: ignore[arg-type]


async def states(runtime: Runtime) -> dict[str, str]:
    return {card.name: card.state for card in await runtime.models()}


async def ask(runtime: Runtime, model: str, count: int = 3) -> list[int]:
    async with runtime.generate(request("p", count, model=model)) as generation:
        return [event.token async for event in generation if isinstance(event, TokenChunk)]


async def test_an_idle_model_goes_at_its_time_and_comes_back_when_asked_for(autojump_clock: MockClock) -> None:
    async with open_toy(limits=limits(keep_alive_seconds=IDLE)) as (runtime, backend):
        await complete(runtime)
        ended = trio.current_time()
        await trio.sleep_until(ended + IDLE - 1)
        assert await states(runtime) == {"toy": "loaded"}
        await trio.sleep(2)
        assert await states(runtime) == {"toy": "unloaded"}
        assert backend.engine.closed
        await complete(runtime)
        assert backend.loads == 2
        await trio.sleep(10)
        await assert_quiet(runtime, backend)


async def test_each_request_begins_the_time_anew_and_a_long_one_is_never_cut_off(autojump_clock: MockClock) -> None:
    async with open_toy(limits=limits(keep_alive_seconds=IDLE)) as (runtime, backend):
        for _ in range(4):
            await complete(runtime)
            await trio.sleep(IDLE - 1)
        assert await ask(runtime, "toy", 300) == greedy("p", 300)  # 300 s of steps
        await trio.sleep(IDLE - 1)
        assert await states(runtime) == {"toy": "loaded"} and backend.loads == 1


async def test_a_model_that_was_named_at_the_start_stays(autojump_clock: MockClock) -> None:
    async with open_toy(limits=limits(keep_alive_seconds=IDLE), sources=sources("a", pinned="a")) as (runtime, _):
        await runtime.load("a")
        await trio.sleep(100 * IDLE)
        assert await states(runtime) == {"a": "loaded"}


async def test_the_longest_idle_model_makes_room(autojump_clock: MockClock) -> None:
    async with open_toy(limits=limits(models_max=2), sources=sources("abc")) as (runtime, backend):
        for name in "abac":
            assert await ask(runtime, name) == greedy("p", 3)
            await trio.sleep(10)
        assert await states(runtime) == {"a": "loaded", "b": "unloaded", "c": "loaded"}
        assert backend.loads == 3


async def test_a_busy_model_ends_what_it_runs_before_it_makes_room_and_its_next_caller_waits(autojump_clock: MockClock) -> None:
    async with open_toy(limits=limits(models_max=1), sources=sources("ab")) as (runtime, backend):
        found: dict[str, list[int]] = {}

        async def keep(key: str, model: str, count: int) -> None:
            found[key] = await ask(runtime, model, count)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep, "long", "a", 50)
            await trio.sleep(5)
            nursery.start_soon(keep, "other", "b", 3)
            await trio.sleep(5)
            assert await states(runtime) == {"a": "unloading", "b": "loading"}
            nursery.start_soon(keep, "again", "a", 3)
        assert found == {"long": greedy("p", 50), "other": greedy("p", 3), "again": greedy("p", 3)}
        assert backend.loads == 3
        await trio.sleep(10)
        await assert_quiet(runtime, backend)


async def test_where_all_places_are_for_ever_the_next_model_is_refused(autojump_clock: MockClock) -> None:
    async with open_toy(limits=limits(models_max=1), sources=sources("ab", pinned="a")) as (runtime, _):
        await runtime.load("a")
        with pytest.raises(Unavailable, match="engine.models_max") as caught:
            await runtime.load("b")
        assert caught.value.code == "model_slots_busy"
        await runtime.unload("a")
        await runtime.load("b")


async def test_who_gives_up_waiting_for_a_place_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    def slow(job: LaneJob) -> float:
        return 10.0 if job.name.startswith("load") else steps_only(job)

    backend = RecordingBackend()
    async with open_toy(backend, pace=slow, limits=limits(models_max=1), sources=sources("ab")) as (runtime, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.load, "a")
            await wait_all_tasks_blocked()
            with trio.move_on_after(1):
                await runtime.load("b")
        assert await states(runtime) == {"a": "loaded", "b": "unloaded"}
        await trio.sleep(100)
        assert backend.loads == 1
