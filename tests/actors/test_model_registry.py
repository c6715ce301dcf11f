"""What exists and what is loaded: one load for everybody who waits, whoever comes, leaves or runs out of time."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.rigs import (
    Listener,
    RecordingBackend,
    Saboteur,
    assert_quiet,
    complete,
    figures,
    open_toy,
    request,
    steps_only,
)
from tripower.actors.models import ModelSource, RegistryStatistics
from tripower.actors.runtime import Runtime
from tripower.runtime.kernel import ActorGone, DeadlineExceeded, LaneJob, ModelRefused, NotFound, TripowerError, Unavailable

LOAD_SECONDS = 10.0
"""A load has two boundaries and an end: it takes three of these on virtual time, the other jobs none."""


def slow_load(job: LaneJob) -> float:
    return LOAD_SECONDS if job.name.startswith("load") else steps_only(job)


class Waiter:
    """Somebody who loads a model and remembers how that ended."""

    def __init__(self, nursery: trio.Nursery, runtime: Runtime, name: str = "toy", **options: Any) -> None:
        self.scope = trio.CancelScope()
        self.result: Any = None
        self.error: TripowerError | None = None
        self.ended_at: float | None = None
        nursery.start_soon(self._run, runtime, name, options)

    async def _run(self, runtime: Runtime, name: str, options: dict[str, Any]) -> None:
        with self.scope:
            try:
                self.result = await runtime.load(name, **options)
            except TripowerError as error:
                self.error = error
        self.ended_at = trio.current_time()


def registry(runtime: Runtime) -> RegistryStatistics:
    details = figures(runtime, "registry").details
    assert isinstance(details, RegistryStatistics)
    return details


async def test_one_load_serves_everybody_who_waits(autojump_clock: MockClock) -> None:  # BB-073
    async with open_toy(pace=slow_load) as (runtime, backend), trio.open_nursery() as nursery:
        first = Waiter(nursery, runtime)
        await trio.sleep(5)
        others = [Waiter(nursery, runtime) for _ in range(2)]
        await wait_all_tasks_blocked()
        first.scope.cancel()
        assert figures(runtime, "registry").pending == 2
        await trio.sleep(100)
        assert backend.loads == 1 and backend.stopped == 0 and first.result is None
        assert all(waiter.result.name == "toy" and waiter.ended_at == 3 * LOAD_SECONDS for waiter in others)
        again = Waiter(nursery, runtime)
        await wait_all_tasks_blocked()
        assert again.result is not None and backend.loads == 1
        assert (registry(runtime).loaded, registry(runtime).loads_ok, registry(runtime).load_seconds) == (1, 1, 30.0)
        await assert_quiet(runtime, backend)


async def test_when_the_last_one_gives_up_the_load_is_stopped(autojump_clock: MockClock) -> None:
    async with open_toy(pace=slow_load) as (runtime, backend), trio.open_nursery() as nursery:
        waiters = [Waiter(nursery, runtime) for _ in range(3)]
        await trio.sleep(15)
        for waiter in waiters:
            waiter.scope.cancel()
        await wait_all_tasks_blocked()
        assert registry(runtime).loading == 0  # at once; the lane ends at its boundary
        await trio.sleep(100)
        assert backend.stopped == 1 and backend.engines == []
        assert [state for _, state in registry(runtime).names] == ["unloaded"]
        await assert_quiet(runtime, backend)
        await complete(runtime)


async def test_when_everybody_ran_out_of_time_the_load_goes_on_and_a_retry_finds_it(autojump_clock: MockClock) -> None:
    async with open_toy(pace=slow_load) as (runtime, backend), trio.open_nursery() as nursery:
        waiters = [Waiter(nursery, runtime, deadline=8.0 + n) for n in range(3)]
        await trio.sleep(20)
        assert [waiter.ended_at for waiter in waiters] == [8.0, 9.0, 10.0]
        assert all(isinstance(waiter.error, DeadlineExceeded) for waiter in waiters)
        assert registry(runtime).loading == 1
        await trio.sleep(20)
        fourth = Waiter(nursery, runtime)
        await wait_all_tasks_blocked()
        assert fourth.result is not None and fourth.ended_at == 40.0 and backend.loads == 1
        await assert_quiet(runtime, backend)


async def test_who_comes_after_the_last_one_gave_up_gets_a_load_of_its_own(autojump_clock: MockClock) -> None:
    async with open_toy(pace=slow_load) as (runtime, backend), trio.open_nursery() as nursery:
        for _ in range(5):
            quitter = Waiter(nursery, runtime)
            await trio.sleep(1)
            quitter.scope.cancel()
        stayer = Waiter(nursery, runtime)  # in the very turn in which the stop is on its way
        await trio.sleep(200)
        assert stayer.error is None and stayer.result is not None
        assert len(backend.engines) == 1 and backend.loads - backend.stopped == 1
        await assert_quiet(runtime, backend)


@pytest.mark.parametrize(
    ("failure", "code"), [(ModelRefused("bad tensor"), "model_refused"), (RuntimeError("a bug"), "device_failed")]
)
async def test_a_failed_load_tells_everybody_and_can_be_tried_again(
    autojump_clock: MockClock, failure: Exception, code: str
) -> None:
    async with open_toy(RecordingBackend(failure), pace=slow_load) as (runtime, backend), trio.open_nursery() as nursery:
        waiters = [Waiter(nursery, runtime) for _ in range(3)]
        await trio.sleep(100)
        assert [waiter.error and waiter.error.code for waiter in waiters] == [code] * 3
        (card,) = await runtime.models()
        assert card.state == "unloaded" and card.error and registry(runtime).loads_failed == 1
        await complete(runtime)
        (card,) = await runtime.models()
        assert (card.state, card.error, card.context) == ("loaded", "", 8192)
        assert backend.loads == 2


async def test_generations_wait_for_the_load_with_one_deadline_over_both(autojump_clock: MockClock) -> None:
    async with open_toy(pace=slow_load) as (runtime, _), trio.open_nursery() as nursery:
        late, patient = Listener(), Listener()
        nursery.start_soon(late.run, runtime.generate(request("a", 9), deadline=33.0))
        nursery.start_soon(patient.run, runtime.generate(request("b", 3), deadline=60.0))
        await trio.sleep(100)
        assert isinstance(late.error, DeadlineExceeded) and late.ended_at == 33.0 and late.started_at is not None
        assert patient.error is None


async def test_what_does_not_exist_is_not_found(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        with pytest.raises(NotFound, match="no model 'other'; known: toy") as caught:
            await runtime.load("other")
        assert (caught.value.status, caught.value.param, caught.value.code) == (404, "model", "model_not_found")


async def test_a_backend_that_does_not_exist_fails_the_load(autojump_clock: MockClock) -> None:
    sources = (ModelSource(name="odd", source="x", backend="quantum"),)
    async with open_toy(sources=sources) as (runtime, backend):
        with pytest.raises(NotFound, match="quantum"):
            await runtime.load("odd")
        await assert_quiet(runtime, backend)


async def test_a_model_that_was_not_named_at_the_start_is_looked_for(autojump_clock: MockClock) -> None:
    looked: list[str] = []

    def find(name: str) -> ModelSource | None:
        looked.append(name)
        return ModelSource(name=name, source="toy", backend="toy") if name.startswith("found") else None

    async with open_toy(find_model=find) as (runtime, backend):
        for _ in range(2):
            await runtime.load("found-1")
        with pytest.raises(NotFound, match="known: found-1, toy"):
            await runtime.load("lost")
        assert looked == ["found-1", "lost"] and backend.loads == 1
        assert [(card.name, card.state) for card in await runtime.models()] == [("toy", "unloaded"), ("found-1", "loaded")]
        assert not any(card.pinned for card in await runtime.models())


async def test_a_model_that_was_named_at_the_start_is_shown_as_such(autojump_clock: MockClock) -> None:
    named = ModelSource(name="toy", source="toy", backend="toy", pinned=True)
    async with open_toy(sources=(named,)) as (runtime, _):
        assert [card.pinned for card in await runtime.models()] == [True]


async def test_a_store_that_cannot_be_read_fails_the_request_and_not_the_registry(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def find(name: str) -> ModelSource | None:
        if name == "refused":
            raise ModelRefused("not that one")
        raise ValueError("embedded null byte")

    async with open_toy(find_model=find) as (runtime, backend):
        await complete(runtime)
        with pytest.raises(Unavailable) as caught:
            await runtime.load("a\0b")
        assert caught.value.code == "model_lookup_failed"
        with pytest.raises(ModelRefused):
            await runtime.load("refused")
        await trio.sleep(10)
        assert figures(runtime, "registry").crashes == 0
        await assert_quiet(runtime, backend)


async def test_two_models_are_loaded_side_by_side(autojump_clock: MockClock) -> None:
    sources = tuple(ModelSource(name=name, source="toy", backend="toy") for name in "ab")
    async with open_toy(sources=sources, pace=slow_load) as (runtime, backend), trio.open_nursery() as nursery:
        waiters = [Waiter(nursery, runtime, name) for name in "ab"]
        await trio.sleep(100)
        assert {waiter.ended_at for waiter in waiters} == {50.0, 60.0}  # they take turns on the lane
        assert len(backend.engines) == 2


async def test_everybody_who_waits_hears_the_progress_and_one_bad_listener_harms_nobody(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def bad(stage: str, fraction: float) -> None:
        raise OSError("the terminal has gone")

    heard: list[tuple[str, float]] = []
    left: list[float] = []
    async with open_toy(RecordingBackend(boundaries=4), pace=slow_load) as (runtime, _), trio.open_nursery() as nursery:
        with caplog.at_level(logging.CRITICAL, "tripower.registry"):
            Waiter(nursery, runtime, progress=bad)
            leaver = Waiter(nursery, runtime, progress=lambda stage, fraction: left.append(fraction))
            stayer = Waiter(nursery, runtime, progress=lambda stage, fraction: heard.append((stage, fraction)))
            await trio.sleep(15)
            leaver.scope.cancel()
            await trio.sleep(100)
    assert stayer.result is not None
    assert heard == [("weights", n / 4) for n in range(4)] and left == [0.0]


async def test_a_registry_that_crashes_comes_back_and_loads_again(autojump_clock: MockClock) -> None:
    saboteur = Saboteur()
    async with open_toy(on_instance=saboteur.on_instance) as (runtime, backend), trio.open_nursery() as nursery:
        await complete(runtime)
        listener = Listener()
        nursery.start_soon(listener.run, runtime.generate(request("p", 50)))
        await trio.sleep(3)
        saboteur.arm("registry")
        with pytest.raises(ActorGone):
            await runtime.models()
        await trio.sleep(20)
        assert isinstance(listener.error, TripowerError) and listener.error.code == "actor_gone"
        assert backend.engines[0].closed
        await complete(runtime)
        assert len(backend.engines) == 2 and figures(runtime, "registry").restarts == 1
        await trio.sleep(10)
        await assert_quiet(runtime, backend)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("skip", range(3))
async def test_a_crash_anywhere_in_a_load_leaks_no_model(autojump_clock: MockClock, skip: int, after: bool) -> None:
    saboteur = Saboteur()
    async with open_toy(pace=slow_load, on_instance=saboteur.on_instance) as (runtime, backend), trio.open_nursery() as nursery:
        saboteur.arm("registry", skip=skip, after=after)
        Waiter(nursery, runtime)
        await trio.sleep(5)
        Waiter(nursery, runtime)
        await trio.sleep(100)
        await complete(runtime)
        await trio.sleep(10)
        await assert_quiet(runtime, backend)
        assert sum(not engine.closed for engine in backend.engines) == 1


async def test_an_unload_that_fails_does_not_keep_the_others_loaded(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    sources = tuple(ModelSource(name=name, source="toy", backend="toy") for name in "ab")
    backend = RecordingBackend()
    with caplog.at_level(logging.ERROR, "tripower"):
        async with open_toy(backend, sources=sources) as (runtime, _):
            for name in "ab":
                await runtime.load(name)
            first = backend.engines[0]
            close = first.close

            def close_badly() -> None:
                close()
                raise OSError("stuck")

            first.close = close_badly  # type: ignore[method-assign]
    assert "a could not be unloaded" in caplog.text
