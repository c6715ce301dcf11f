"""A runtime as a whole: its health, its drain, its end at any moment, and two of them in one process."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.rigs import Listener, RecordingBackend, Saboteur, complete, greedy, open_toy, request, warm_up
from tripower.actors.device import RunSteps
from tripower.actors.runtime import Runtime, open_actors, toy_plan
from tripower.backends.toy import ToyEngine
from tripower.runtime.kernel import ActorGone, InlineLane, LaneJob, Overloaded, Supervision, TripowerError
from tripower.runtime.kernel.lane import Lane


async def test_health_follows_the_actors(autojump_clock: MockClock) -> None:
    def pace(job: LaneJob) -> float:
        return 10.0 if job.name.startswith("load") else 0.0

    async with open_toy(pace=pace) as (runtime, _), trio.open_nursery() as nursery:
        assert runtime.health().status == "ok"
        nursery.start_soon(runtime.load, "toy")
        await trio.sleep(5)
        assert runtime.health().status == "loading"
        await trio.sleep(50)
        assert runtime.health().status == "ok"
        runtime.begin_drain()
        assert runtime.health().status == "draining"


async def test_a_part_that_restarts_makes_the_runtime_fail_its_check(autojump_clock: MockClock) -> None:
    saboteur = Saboteur()
    async with open_toy(on_instance=saboteur.on_instance, supervision=Supervision(backoff_first=10.0, backoff_max=10.0)) as (
        runtime,
        _,
    ):
        saboteur.arm("registry")
        with pytest.raises(ActorGone):
            await runtime.models()
        await trio.sleep(5)
        assert runtime.health().status == "failing" and runtime.health().reasons == ("registry is restarting",)
        await trio.sleep(20)
        assert runtime.health().status == "ok"


async def test_a_wedged_device_makes_the_runtime_fail_its_check(autojump_clock: MockClock) -> None:
    slow = 1000.0

    def pace(job: LaneJob) -> float:
        return slow if job.name.startswith("steps") else 0.0

    async with open_toy(pace=pace, stall_seconds=40.0) as (runtime, _), trio.open_nursery() as nursery:
        await runtime.load("toy")
        first, second = Listener(), Listener()
        nursery.start_soon(first.run, runtime.generate(request("a", 1)))
        await trio.sleep(60)
        assert runtime.health().status == "failing"
        assert runtime.health().reasons == ("cpu0 passes no step boundary any more",)
        nursery.start_soon(second.run, runtime.generate(request("b", 1), deadline=trio.current_time() + 5))
        await trio.sleep(10)
        assert isinstance(second.error, TripowerError) and second.error.code == "deadline_exceeded"
        slow = 1.0
        await trio.sleep(2000)
        assert runtime.health().status == "ok" and first.tokens in ([], greedy("a", 1))
        await complete(runtime)


async def test_a_draining_runtime_ends_what_runs_and_takes_nothing_new(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _), trio.open_nursery() as nursery:
        await warm_up(runtime)
        listener = Listener()
        nursery.start_soon(listener.run, runtime.generate(request("a", 5)))
        await trio.sleep(1.5)
        assert runtime.active() == 1 and not runtime.draining
        runtime.begin_drain()
        runtime.begin_drain()
        with pytest.raises(Overloaded) as caught:
            await runtime.generate(request()).__aenter__()
        assert (caught.value.code, caught.value.status, caught.value.retry_after) == ("draining", 503, 5.0)
        await trio.sleep(20)
        assert listener.tokens == greedy("a", 5) and runtime.active() == 0


async def test_after_its_end_a_runtime_says_that_it_has_gone(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        pass
    with pytest.raises(ActorGone):
        await runtime.models()
    with pytest.raises(ActorGone):
        await runtime.generate(request()).__aenter__()
    assert runtime.active() == 0


def mixed_pace(job: LaneJob) -> float:
    return 1.0 if job.name.startswith("steps") else 0.75


@pytest.mark.parametrize("way", ["left", "cancelled", "failed"])
async def test_the_end_at_any_moment_leaves_nothing_and_nobody_without_an_answer(autojump_clock: MockClock, way: str) -> None:
    for quarter in range(60):
        began, backend = trio.current_time(), RecordingBackend(boundaries=2)
        listeners = [Listener() for _ in range(6)]
        async with trio.open_nursery() as callers:
            try:
                with trio.move_on_at(began + quarter / 4 if way == "cancelled" else float("inf")):
                    async with open_toy(backend, pace=mixed_pace, members_max=2, waiting_max=2) as (runtime, _):
                        for number, listener in enumerate(listeners):
                            callers.start_soon(arrive, runtime, number, listener)
                        await trio.sleep(quarter / 4 if way != "cancelled" else 1000)
                        if way == "failed":
                            raise ZeroDivisionError
            except* ZeroDivisionError:
                assert way == "failed"
        if way == "cancelled" and not quarter:
            continue  # nobody had come yet
        for number, listener in enumerate(listeners):
            assert listener.ended_at is not None
            assert listener.tokens == greedy(f"p{number}", len(listener.tokens))
            assert listener.finished is not None or isinstance(listener.error, TripowerError)
        assert all(engine.closed for engine in backend.engines)


async def arrive(runtime: Runtime, number: int, listener: Listener) -> None:
    await trio.sleep(number * 0.6)
    await listener.run(runtime.generate(request(f"p{number}", 1 + number)))


async def test_a_crash_of_the_user_does_not_hide_behind_the_end(autojump_clock: MockClock) -> None:
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with open_toy() as (runtime, _):
            await runtime.load("toy")
            _ = 1 / 0


async def test_two_runtimes_in_one_loop_know_nothing_of_each_other(autojump_clock: MockClock) -> None:
    async with open_toy() as (first, _), open_toy() as (second, backend):
        await complete(first)
        assert backend.loads == 0 and [card.state for card in await second.models()] == ["unloaded"]
        await complete(second)
        backend.engine.failing = 2
        async with trio.open_nursery() as nursery:
            listeners = [Listener(), Listener()]
            for runtime, listener in zip((first, second), listeners, strict=True):
                nursery.start_soon(listener.run, runtime.generate(request("p", 5)))
        assert listeners[0].error is None and isinstance(listeners[1].error, TripowerError)


# On the real clock, with the lane's thread.


def lane_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "tripower-lane-cpu0"]


async def test_two_runtimes_in_one_loop_share_a_lane() -> None:
    async with open_actors(toy_plan()) as first, open_actors(toy_plan()) as second, trio.open_nursery() as nursery:
        listeners = {(runtime, n): Listener() for runtime in (first, second) for n in range(8)}
        for (runtime, n), listener in listeners.items():
            nursery.start_soon(listener.run, runtime.generate(request(f"p{n}", 100)))
        await wait_all_tasks_blocked()
        assert lane_threads() == ["tripower-lane-cpu0"]
    for (_, n), listener in listeners.items():
        assert listener.error is None and listener.tokens == greedy(f"p{n}", 100)
    assert lane_threads() == [] and "cpu0" not in Lane._lanes


def test_two_runtimes_in_two_threads_share_a_lane_and_do_not_disturb_each_other() -> None:
    both_are_up = threading.Barrier(2)
    seen: list[list[str]] = []
    results: dict[tuple[int, int], Listener] = {}

    async def main(number: int) -> None:
        async with open_actors(toy_plan()) as runtime, trio.open_nursery() as nursery:
            await runtime.load("toy")
            await trio.to_thread.run_sync(both_are_up.wait)
            seen.append(lane_threads())
            for n in range(10):
                listener = results[number, n] = Listener()
                nursery.start_soon(listener.run, runtime.generate(request(f"{number}.{n}", 80)))
                if n == 5:  # one leaves, the others and the neighbour do not notice
                    async with runtime.generate(request("left", 5000)) as generation:
                        await generation.receive()

    loops = [threading.Thread(target=trio.run, args=(main, number)) for number in range(2)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    assert seen == [["tripower-lane-cpu0"]] * 2 and lane_threads() == []
    assert len(results) == 20
    for (number, n), listener in results.items():
        assert listener.error is None and listener.tokens == greedy(f"{number}.{n}", 80)


async def test_a_cancelled_runtime_closes_its_engine_on_the_lane_after_the_last_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed_on: list[str] = []
    close = ToyEngine.close

    def watched(self: ToyEngine) -> None:
        closed_on.append(threading.current_thread().name)
        close(self)

    monkeypatch.setattr(ToyEngine, "close", watched)
    with trio.CancelScope() as scope:
        async with open_actors(toy_plan(source="toy:2000")) as runtime, runtime.generate(request("p", 4000)) as generation:
            await generation.receive()
            await generation.receive()
            scope.cancel()  # a native step is running
            await trio.sleep_forever()
    assert scope.cancelled_caught and closed_on == ["tripower-lane-cpu0"]
    assert not caplog.records and lane_threads() == []


async def test_the_end_waits_for_the_step_of_a_device_that_has_just_crashed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed_on: list[str] = []
    close = ToyEngine.close

    def watched(self: ToyEngine) -> None:
        closed_on.append(threading.current_thread().name)
        close(self)

    monkeypatch.setattr(ToyEngine, "close", watched)
    saboteur = Saboteur()
    async with (
        open_actors(toy_plan(source="toy:20000", on_instance=saboteur.on_instance)) as runtime,
        trio.open_nursery() as nursery,
        runtime.generate(request("p", 4000)) as generation,
    ):
        await generation.receive()
        await generation.receive()
        device = runtime.system.find("device:cpu0")
        assert device is not None and not device.ended
        saboteur.arm("device:cpu0")
        device.control(RunSteps("nobody", 0, (), ()))
        nursery.cancel_scope.cancel()  # a native step is running, and nobody is there who could tell
        await trio.sleep_forever()
    assert device.ended and closed_on == ["tripower-lane-cpu0"] and lane_threads() == []
    assert [record.message for record in caplog.records if "failed on" in record.message] == []


def test_the_plan_of_a_toy_can_be_changed() -> None:
    def port() -> Any:
        return InlineLane(lambda job: 0.0)

    plan = toy_plan(members_max=3, source="toy:5", open_port=port, stall_seconds=7.0)
    assert plan.limits.queue.members_max == 3 and plan.open_port is port and plan.stall_seconds == 7.0
    assert plan.sources[0].source == "toy:5"
