"""Unloading on request: who uses a model is waited for, who comes later gets it loaded again, who loads it is stopped."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.delegates import ScriptedDelegate, ask, open_scripted, text
from tests.actors.rigs import (
    Listener,
    RecordingBackend,
    Saboteur,
    assert_quiet,
    complete,
    figures,
    greedy,
    open_toy,
    request,
    steps_only,
)
from tripower.actors.generation import Generation
from tripower.actors.models import ReadyModel, Standing
from tripower.actors.runtime import Runtime
from tripower.runtime.kernel import NEVER, DeadlineExceeded, DeviceFailed, LaneJob, NotFound, TripowerError, Unavailable


class Call:
    """Somebody who waits for something, and how that ended."""

    def __init__(self, nursery: trio.Nursery, method: Any, *arguments: Any, **options: Any) -> None:
        self.scope = trio.CancelScope()
        self.error: TripowerError | None = None
        self.ended_at: float | None = None
        nursery.start_soon(self._run, method, arguments, options)

    async def _run(self, method: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        with self.scope:
            try:
                await method(*arguments, **options)
            except TripowerError as error:
                self.error = error
            self.ended_at = trio.current_time()


async def state(runtime: Runtime) -> str:
    (card,) = await runtime.models()
    return card.state


def slow_load(job: LaneJob) -> float:
    return 10.0 if job.name.startswith("load") else steps_only(job)


async def test_memory_is_free_when_the_answer_comes_and_the_next_request_loads_again(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend):
        for loads in (1, 2, 3):
            await complete(runtime)
            assert backend.loads == loads and not backend.engine.closed
            await runtime.unload("toy")
            assert backend.engine.closed and await state(runtime) == "unloaded"
        await runtime.unload("toy")
        assert backend.loads == 3


async def test_what_the_model_held_is_gone_without_a_collection(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        gc.collect()
        gc.disable()
        try:
            for _ in range(2):
                await complete(runtime)
                text = weakref.ref((await runtime.load("toy")).loaded.text)  # type: ignore[union-attr]
                assert text() is not None
                await runtime.unload("toy")
                await wait_all_tasks_blocked()
                assert text() is None
        finally:
            gc.enable()


async def test_what_does_not_exist_cannot_be_unloaded(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        with pytest.raises(NotFound, match="known: toy"):
            await runtime.unload("other")


async def test_requests_that_run_and_wait_come_to_their_ends_first(autojump_clock: MockClock) -> None:
    async with open_toy(members_max=1) as (runtime, backend), trio.open_nursery() as nursery:
        await runtime.load("toy")
        seated, waiting, later = Listener(), Listener(), Listener()
        nursery.start_soon(seated.run, runtime.generate(request("a", 20)))
        await wait_all_tasks_blocked()
        nursery.start_soon(waiting.run, runtime.generate(request("b", 5)))
        await wait_all_tasks_blocked()
        calls = [Call(nursery, runtime.unload, "toy") for _ in range(2)]
        await wait_all_tasks_blocked()
        nursery.start_soon(later.run, runtime.generate(request("c", 5)))
        await wait_all_tasks_blocked()
        assert await state(runtime) == "unloading" and backend.loads == 1
        await trio.sleep(200)
        assert (seated.tokens, waiting.tokens, later.tokens) == (greedy("a", 20), greedy("b", 5), greedy("c", 5))
        assert waiting.ended_at is not None and later.started_at is not None
        assert all(call.error is None and call.ended_at is not None for call in calls)
        assert waiting.ended_at <= calls[0].ended_at <= later.started_at  # type: ignore[operator]
        assert backend.loads == 2 and backend.engines[0].closed and not backend.engines[1].closed
        await assert_quiet(runtime, backend)


async def test_who_stops_waiting_does_not_keep_the_model_loaded(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend), trio.open_nursery() as nursery:
        await runtime.load("toy")
        listener = Listener()
        nursery.start_soon(listener.run, runtime.generate(request("a", 20)))
        await wait_all_tasks_blocked()
        late = Call(nursery, runtime.unload, "toy", deadline=trio.current_time() + 2)
        gone = Call(nursery, runtime.unload, "toy")
        await trio.sleep(1)
        gone.scope.cancel()
        await trio.sleep(100)
        assert isinstance(late.error, DeadlineExceeded)
        assert listener.error is None and backend.engine.closed and await state(runtime) == "unloaded"


async def test_a_load_that_is_on_its_way_is_stopped_and_its_waiters_are_told(autojump_clock: MockClock) -> None:
    async with open_toy(pace=slow_load) as (runtime, backend), trio.open_nursery() as nursery:
        loads = [Call(nursery, runtime.load, "toy") for _ in range(2)]
        await trio.sleep(15)
        unload = Call(nursery, runtime.unload, "toy")
        await wait_all_tasks_blocked()
        assert [load.error and load.error.code for load in loads] == ["load_stopped"] * 2
        again = Call(nursery, runtime.load, "toy")
        await trio.sleep(200)
        assert unload.error is None and unload.ended_at is not None
        assert again.error is None and again.ended_at is not None and unload.ended_at < again.ended_at
        assert backend.stopped == 1 and await state(runtime) == "loaded"
        await assert_quiet(runtime, backend)


async def test_a_request_that_found_the_queue_just_before_it_closed_gets_the_next_load(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend), trio.open_nursery() as nursery:
        ready = await runtime.load("toy")
        running = Listener()
        nursery.start_soon(running.run, runtime.generate(request("a", 20)))
        await wait_all_tasks_blocked()
        unload = Call(nursery, runtime.unload, "toy")
        await wait_all_tasks_blocked()
        found = [attrs.evolve(ready, standing=Standing())]  # what it has had in hand, tokenising, since before

        async def find(name: str, deadline: float) -> ReadyModel:
            return found.pop() if found else await runtime.ready(name, deadline)

        late = Listener()
        await late.run(Generation(find, request("b", 2), NEVER))
        assert late.error is None and late.tokens == greedy("b", 2) and not found
        await trio.sleep(100)
        assert unload.error is None and running.error is None and backend.loads == 2
        await assert_quiet(runtime, backend)


async def test_a_queue_that_is_always_leaving_is_said_in_the_end(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _), trio.open_nursery() as nursery:
        ready = await runtime.load("toy")
        nursery.start_soon(Listener().run, runtime.generate(request("a", 20)))
        await wait_all_tasks_blocked()
        nursery.start_soon(runtime.unload, "toy")
        await wait_all_tasks_blocked()

        async def find(name: str, deadline: float) -> ReadyModel:
            return attrs.evolve(ready, standing=Standing())

        late = Listener()
        await late.run(Generation(find, request("b", 2), NEVER))
        assert isinstance(late.error, Unavailable) and late.error.code == "model_unloading"


async def test_a_failed_unload_is_told_and_the_model_can_be_loaded_again(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "tripower"):
        async with open_toy() as (runtime, backend):
            await runtime.load("toy")
            close = backend.engine.close

            def close_badly() -> None:
                close()
                raise OSError("stuck")

            backend.engine.close = close_badly  # type: ignore[method-assign]
            with pytest.raises(DeviceFailed):
                await runtime.unload("toy")
            (card,) = await runtime.models()
            assert card.state == "unloaded" and card.error
            await complete(runtime)
            assert backend.loads == 2


@pytest.mark.parametrize("victim", ["registry", "queue:toy", "cpu0"])
async def test_a_crash_of_anybody_meanwhile_leaks_no_model(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, victim: str
) -> None:
    saboteur = Saboteur()
    with caplog.at_level(logging.CRITICAL, "tripower"):
        async with open_toy(on_instance=saboteur.on_instance) as (runtime, backend), trio.open_nursery() as nursery:
            await runtime.load("toy")
            listener = Listener()
            nursery.start_soon(listener.run, runtime.generate(request("a", 20)))
            await wait_all_tasks_blocked()
            unload = Call(nursery, runtime.unload, "toy")
            await wait_all_tasks_blocked()
            saboteur.arm(victim)
            if victim == "registry":
                Call(nursery, runtime.models)
            await trio.sleep(100)
            assert unload.ended_at is not None
            await complete(runtime)
            await trio.sleep(10)
            assert backend.engines[0].closed and sum(not engine.closed for engine in backend.engines) == 1
            await assert_quiet(runtime, backend)


async def test_the_streams_of_a_delegate_come_to_their_ends_first(autojump_clock: MockClock) -> None:
    delegate = ScriptedDelegate(text("a", "b", "c"))
    async with open_scripted(delegate) as (runtime, _), trio.open_nursery() as nursery:
        listener = Listener()
        nursery.start_soon(listener.run, runtime.generate(ask()))
        await trio.sleep(1)
        unload = Call(nursery, runtime.unload, "far")
        await trio.sleep(100)
        assert listener.text == "abc" and listener.error is None
        assert unload.error is None and listener.ended_at is not None and unload.ended_at is not None
        assert unload.ended_at >= listener.ended_at
        assert figures(runtime, "registry").pending == 0


async def test_a_load_that_completes_as_it_is_stopped_is_unloaded_all_the_same(autojump_clock: MockClock) -> None:
    """Whoever comes in between has to wait, and gets the next load."""
    async with open_toy(RecordingBackend(), pace=slow_load) as (runtime, backend), trio.open_nursery() as nursery:
        Call(nursery, runtime.load, "toy")
        await trio.sleep(20)  # the load has ended in this very moment, and its news is on the way
        unload = Call(nursery, runtime.unload, "toy")
        after = Call(nursery, runtime.load, "toy")
        await trio.sleep(200)
        assert unload.error is None
        assert after.error is None or after.error.code == "load_stopped"  # it may have come first
        assert sum(not engine.closed for engine in backend.engines) == (after.error is None)
        await assert_quiet(runtime, backend)
