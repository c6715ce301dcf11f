"""A device and its lane: loads, steps, unloads, crashes, the end, and a lane that does not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.rigs import BrittleEngine, Probe, RecordingBackend, greedy, order, steps_only
from tripower.actors.device import (
    DeviceActor,
    DeviceStatistics,
    EngineUnloaded,
    LoadEngine,
    LoadOrder,
    RunSteps,
    StepsCommitted,
    StepsDone,
    UnloadEngine,
)
from tripower.backends.toy import ToyEngine
from tripower.runtime.engine import LoadedModel, LoadSpecification
from tripower.runtime.kernel import (
    ActorGone,
    ActorSystem,
    DeadlineExceeded,
    DeviceFailed,
    InlineLane,
    LaneJob,
    ModelRefused,
    Ref,
    TripowerError,
    open_actor_system,
)

LOAD = LoadEngine(
    LoadSpecification(name="toy", source="toy", context=0, sequences_max=4, state_bytes_max=0, threads=1, prefill_chunk=8)
)


class CrashingDevice(DeviceActor):
    """Crashes over an unload that comes without an engine."""

    async def on_message(self, message: Any) -> Any:
        if isinstance(message, UnloadEngine) and self.envelope.live is None:
            raise RuntimeError("crashed")
        return await super().on_message(message)


class StuckPort:
    """A lane that passes no boundary until it is told how many."""

    signal_fd = -1
    thread_id = 0

    def __init__(self) -> None:
        self.inner = InlineLane(lambda job: 0.0)
        self.held: list[LaneJob] = []
        self.closed: list[bool] = []
        """Whether whoever closed it waits for what runs."""
        self.boundaries = self.inner.boundaries
        self.current = self.inner.current
        self.signal = self.inner.signal
        self.run = self.inner.run

    def submit(self, job: LaneJob) -> None:
        self.held.append(job)

    def move(self) -> None:
        for job in self.held:
            self.inner.submit(job)
        self.held.clear()

    def close(self, *, wait: bool = True) -> None:
        self.closed.append(wait)


@attrs.define
class Rig:
    system: ActorSystem
    device: Ref[Any]
    probe: Probe
    probe_ref: Ref[Any]
    backend: RecordingBackend

    async def load(self, **options: Any) -> LoadedModel:
        model: LoadedModel = await self.device.ask(LOAD, live=LoadOrder(self.backend), **options)
        return model

    def run(self, engine: ToyEngine, *prompts: str, **options: Any) -> RunSteps:
        message, live = order(engine, self.probe_ref, *prompts, **options)
        assert self.device.control(message, live=live)
        self.tables.append(live.table)
        return message

    tables: list[Any] = attrs.Factory(list)

    @property
    def figures(self) -> DeviceStatistics:
        details = next(actor.details for actor in self.system.statistics() if actor.name == "device")
        assert isinstance(details, DeviceStatistics)
        return details


@asynccontextmanager
async def open_rig(
    backend: RecordingBackend | None = None,
    open_port: Callable[[], Any] = lambda: InlineLane(steps_only),
    stall_seconds: float = 100.0,
) -> AsyncIterator[Rig]:
    probe = Probe()
    async with open_actor_system() as system:
        probe_ref = system.spawn(lambda: probe, name="probe")
        device = system.spawn(lambda: CrashingDevice("cpu0", open_port, stall_seconds=stall_seconds), name="device")
        yield Rig(system, device, probe, probe_ref, backend or RecordingBackend())
        await device.stop()
        await probe_ref.stop()


async def crash(device: Ref[Any]) -> None:
    with pytest.raises(ActorGone):
        await device.ask(UnloadEngine("nothing"))


async def test_a_model_is_loaded_used_and_unloaded(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        model = await rig.load()
        message = rig.run(rig.backend.engine, "ab", "c", steps=3)
        await trio.sleep(10)
        job = message.job
        assert rig.probe.news == [*(StepsCommitted(job, n) for n in (1, 2, 3)), StepsDone(job, 3)]
        assert rig.tables[0].drawn[:3, 0].tolist() == greedy("ab", 3)
        assert rig.tables[0].drawn[:3, 1].tolist() == greedy("c", 3)
        assert await rig.device.ask(UnloadEngine("toy"), live=model.engine) == EngineUnloaded("toy")
        assert rig.backend.engine.closed
        figures = rig.figures
        assert (figures.state, figures.jobs, figures.jobs_done, figures.jobs_failed, figures.steps) == ("idle", 0, 3, 0, 3)


@pytest.mark.parametrize(
    ("failure", "kind", "code"),
    [
        (ModelRefused("bad tensor", param="blk.0"), ModelRefused, "model_refused"),
        (DeviceFailed("dead", code="lost"), DeviceFailed, "lost"),
        (MemoryError(), DeviceFailed, "out_of_memory"),
        (OSError("secret path"), DeviceFailed, "device_failed"),
        (KeyboardInterrupt(), DeviceFailed, "device_failed"),
    ],
)
async def test_a_failed_load_is_one_of_our_errors(
    autojump_clock: MockClock, failure: BaseException, kind: type[TripowerError], code: str
) -> None:
    async with open_rig(RecordingBackend(failure)) as rig:
        with pytest.raises(kind) as caught:
            await rig.load()
        assert caught.value.code == code and "secret" not in caught.value.message
        assert rig.figures.jobs_failed == 1
        await rig.load()  # the device lives on


@pytest.mark.parametrize("way", ["cancelled", "late"])
async def test_a_load_that_nobody_waits_for_is_stopped(autojump_clock: MockClock, way: str) -> None:
    async with open_rig(RecordingBackend(boundaries=5), lambda: InlineLane(lambda job: 1.0)) as rig:
        if way == "cancelled":
            with trio.move_on_after(2.5):
                await rig.load()
        else:
            with pytest.raises(DeadlineExceeded):
                await rig.load(deadline=2.5)
        await trio.sleep(10)
        assert rig.backend.stopped == 1 and rig.backend.engines == [] and rig.figures.jobs == 0


async def test_a_model_that_arrives_after_its_caller_has_left_is_closed(autojump_clock: MockClock) -> None:
    async with open_rig(RecordingBackend(boundaries=1), lambda: InlineLane(lambda job: 1.0)) as rig:
        with trio.move_on_after(2.5):  # made at 2, handed over at 3
            await rig.load()
        assert not rig.backend.engine.closed
        await trio.sleep(10)
        assert rig.backend.engine.closed


async def test_a_model_whose_load_fails_after_it_was_made_is_closed(autojump_clock: MockClock) -> None:
    class Late(RecordingBackend):
        def load(self, *arguments: Any) -> Any:
            yield from super().load(*arguments)
            raise ModelRefused("thought better of it")

    async with open_rig(Late()) as rig:
        with pytest.raises(ModelRefused, match="better"):
            await rig.load()
        await trio.sleep(1)
        assert rig.backend.engine.closed


async def test_an_unload_that_fails_says_so(autojump_clock: MockClock) -> None:
    class Sticky(ToyEngine):
        def close(self) -> None:
            raise OSError("cannot let go")

    async with open_rig() as rig:
        with pytest.raises(DeviceFailed, match="unload toy failed on cpu0: OSError"):
            await rig.device.ask(UnloadEngine("toy"), live=Sticky())


async def test_a_failing_step_is_reported_once_after_what_was_committed(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        engine = BrittleEngine()
        message = rig.run(engine, "a")
        await trio.sleep(2.5)
        engine.failing = 1
        await trio.sleep(10)
        committed = [news.steps for news in rig.probe.news if isinstance(news, StepsCommitted)]
        assert committed == [1, 2]
        done = rig.probe.done
        assert (done.job, done.steps, done.error) == (message.job, 2, "device_failed")
        assert "RuntimeError" in done.explanation


async def test_a_job_ends_where_its_table_is_stopped(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        message = rig.run(ToyEngine(), "a", steps=60)
        await trio.sleep(2.5)
        rig.tables[0].request_stop()
        await trio.sleep(10)
        assert rig.probe.done == StepsDone(message.job, 2)


async def test_a_job_keeps_the_sequences_that_it_names_and_closes_all_others(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        engine = ToyEngine()
        for sequence in (1, 2, 3, 50):
            engine.open_sequence(sequence)
        rig.run(engine, "a", "b", first=2, steps=1)
        await trio.sleep(10)
        assert engine.sequences() == [2, 3] and engine.length(2) == 1


async def test_two_engines_take_turns(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        messages = [rig.run(ToyEngine(), "a", steps=2), rig.run(ToyEngine(), "b", steps=2)]
        await trio.sleep(20)
        committed = [news.job for news in rig.probe.news if isinstance(news, StepsCommitted)]
        first, second = (message.job for message in messages)
        assert committed == [first, second, first, second]


async def test_news_for_an_actor_that_has_gone_are_dropped(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        rig.run(ToyEngine(), "a")
        await trio.sleep(1.5)
        await rig.probe_ref.stop()
        await trio.sleep(10)
        assert rig.figures.jobs == 0
        await rig.load()


async def test_a_crash_stops_the_running_job_and_still_reports_it(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        message = rig.run(ToyEngine(), "a", steps=60)
        await trio.sleep(2.5)
        await crash(rig.device)
        assert trio.current_time() == 2.5
        await trio.sleep(10)
        assert rig.probe.done == StepsDone(message.job, 2)  # it was stopped before its third step
        await rig.load()
        assert rig.figures.jobs_done == 1  # a new instance with a port of its own


async def test_a_crash_answers_whoever_loads_and_frees_what_was_loaded(autojump_clock: MockClock) -> None:
    async with open_rig(RecordingBackend(boundaries=1), lambda: InlineLane(lambda job: 1.0)) as rig:
        async with trio.open_nursery() as nursery:

            async def load() -> None:
                with pytest.raises(ActorGone):
                    await rig.load()
                assert trio.current_time() == 2.5

            nursery.start_soon(load)
            await trio.sleep(2.5)
            await crash(rig.device)
        await trio.sleep(10)
        assert rig.backend.engine.closed


async def test_what_frees_memory_is_done_even_if_the_device_ends_before_it_began(autojump_clock: MockClock) -> None:
    engine, other = ToyEngine(), ToyEngine()
    async with open_rig() as rig:
        rig.run(other, "a", steps=60)
        assert rig.device.control(UnloadEngine("toy"), live=engine)
        await rig.device.stop()
    assert engine.closed


async def test_the_end_waits_for_the_running_job(autojump_clock: MockClock) -> None:
    async with open_rig(open_port=lambda: InlineLane(lambda job: 8.0)) as rig:
        rig.run(ToyEngine(), "a", steps=60)
        await trio.sleep(1)
        await rig.device.stop()
        assert trio.current_time() == 8.0 and rig.probe.done.steps == 0


async def test_a_lane_that_never_answers_does_not_hold_up_the_end_for_ever(autojump_clock: MockClock) -> None:
    port = StuckPort()
    async with open_rig(open_port=lambda: port) as rig:
        rig.run(ToyEngine(), "a")
        await wait_all_tasks_blocked()
        await rig.device.stop()
        assert trio.current_time() == DeviceActor.end_seconds
        assert port.closed == [False]  # nothing is freed under a job that may still run: the lane ends when it comes back


async def test_a_lane_that_passes_no_boundary_is_wedged_until_it_moves(autojump_clock: MockClock) -> None:
    port = StuckPort()
    async with open_rig(open_port=lambda: port, stall_seconds=100.0) as rig:
        await trio.sleep(1000)
        assert rig.figures.state == "idle"  # without work nothing is expected of it
        rig.run(ToyEngine(), "a")
        await trio.sleep(99)
        assert rig.figures.state == "busy" and rig.figures.quiet_seconds == 99.0
        await trio.sleep(26)
        assert rig.figures.state == "wedged"
        with pytest.raises(DeviceFailed) as caught:
            await rig.load()
        assert caught.value.code == "device_wedged"
        refused = rig.run(ToyEngine(), "b")
        await trio.sleep(1)
        assert [news for news in rig.probe.news if news.job == refused.job] == [
            StepsDone(refused.job, 0, "device_wedged", "cpu0 does not answer; restart the process")
        ]
        port.move()
        await trio.sleep(50)
        assert rig.figures.state == "idle" and rig.figures.jobs == 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.load)
            await wait_all_tasks_blocked()
            port.move()


async def test_a_native_loop_that_commits_steps_is_not_wedged_although_it_passes_no_boundary(autojump_clock: MockClock) -> None:
    port = StuckPort()
    async with open_rig(open_port=lambda: port, stall_seconds=100.0) as rig:
        rig.run(ToyEngine(), "a", steps=16)
        await trio.sleep(1)
        for _ in range(8):
            rig.tables[0].commit([1], [65])
            port.held[0].on_progress()
            await trio.sleep(60)
            assert rig.figures.state == "busy"
        rig.tables[0].request_stop()
        port.move()
        await trio.sleep(50)
        assert rig.figures.state == "idle"


async def test_a_port_that_cannot_be_opened_is_the_spawners_error() -> None:
    def fail() -> InlineLane:
        raise OSError("no threads left")

    async with open_actor_system() as system:
        with pytest.raises(OSError, match="no threads left"):
            system.spawn(lambda: DeviceActor("cpu0", fail), name="device")
