"""A device owns one lane and everything that happens on it: loads, steps, closings. It never waits for any of them.

Work goes to the lane as a job; the lane's news comes back through the port, is put into messages for whoever asked, and the device is
free for the next message at once. A job is never abandoned: at the end of the device every job is stopped at its next boundary and
waited for. A lane that passes no boundary for `stall_seconds` while it has work is *wedged*: new work is refused and health turns
red, but nothing is freed under it, and it recovers if it moves again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, assert_never

import attrs
import msgspec
import trio

from tripower.runtime.engine import Backend, LoadSpecification, Progress, StepEngine, StepTable
from tripower.runtime.engine.encoder import EncoderEngine, LaneModel, Vectors
from tripower.runtime.kernel import (
    LATER,
    Actor,
    ActorGone,
    Ask,
    DeviceFailed,
    LaneJob,
    Message,
    ModelRefused,
    Port,
    Ref,
    TripowerError,
)

log = logging.getLogger("tripower.device")


class LoadEngine(Ask["LaneModel"], frozen=True):
    """Make a model resident. The envelope carries a `LoadOrder`. Answered when it is there; giving up stops the load."""

    specification: LoadSpecification


class UnloadEngine(Ask["EngineUnloaded"], frozen=True):
    """Free a model. The envelope carries its engine."""

    name: str


class EngineUnloaded(Message, frozen=True):
    """Its memory is free."""

    name: str


class RunSteps(Message, frozen=True):
    """Run the steps of a table. The envelope carries a `StepOrder`. News: `StepsCommitted`, then exactly one `StepsDone`."""

    name: str
    job: int
    """Comes back in the news, so that an old job's are not taken for a new one's."""
    keeping: tuple[int, ...]
    """All sequences that are still wanted: the engine closes every other one first, whoever left it behind."""
    opening: tuple[int, ...]
    retaining: tuple[tuple[int, int], ...] = ()
    """Sequences, and how many of their positions: nobody continues them any more, but they may be forked."""
    forking: tuple[tuple[int, int, int], ...] = ()
    """Source, sequence and length: made before the first step, anew if they are there. Sources that are not kept are closed then."""


class StepsCommitted(Message, frozen=True):
    """To whoever ordered: that many steps of the table are complete and may be read."""

    job: int
    steps: int


class StepsDone(Message, frozen=True):
    """To whoever ordered: the job has ended after that many steps. `error` is empty, or the code of what went wrong."""

    job: int
    steps: int
    error: str = ""
    explanation: str = ""


class EncodeRows(Ask["RowsEncoded"], frozen=True):
    """Turn rows into vectors. The envelope carries an `EncodingOrder`. Giving up ends it at the next piece of work."""

    name: str


class RowsEncoded(Message, frozen=True):
    """The vectors are in the order's array."""

    rows: int


Command = LoadEngine | UnloadEngine | RunSteps | EncodeRows


@attrs.frozen
class LoadOrder:
    backend: Backend
    progress: Progress = lambda stage, fraction: None


@attrs.frozen
class StepOrder:
    engine: StepEngine
    table: StepTable
    reply_to: Ref[Any]


@attrs.frozen
class EncodingOrder:
    """`vectors` has a place for each row, and belongs to the lane until the answer."""

    engine: EncoderEngine
    rows: Sequence[Sequence[int]]
    vectors: Vectors


class DeviceStatistics(msgspec.Struct, frozen=True):
    device: str
    state: str
    """`idle`, `busy` or `wedged`."""
    jobs: int
    jobs_done: int
    jobs_failed: int
    steps: int
    boundaries: int
    quiet_seconds: float
    """Time since the lane's last boundary, while it has work."""
    job: str = ""
    """What the lane works on, or this device's oldest job while it is between two; empty when idle."""
    job_seconds: float = 0.0
    """Since that job was submitted; 0 where it is another runtime's."""
    thread_id: int = 0
    """Of the lane, as `threading.get_ident` counts; 0 where it has none of its own."""
    busy_seconds: float = 0.0
    """How long it has had work, all in all."""


class DeviceActor(Actor[Command]):
    """See the module. The port is opened with the instance and closed at its end."""

    end_seconds = 30.0

    def __init__(self, device: str, open_port: Callable[[], Port], *, stall_seconds: float = 120.0) -> None:
        self._device = device
        self._port = open_port()
        self._stall_seconds = stall_seconds
        self._jobs: dict[LaneJob, bool] = {}
        """Each with whether the end of the device may stop it: what frees memory runs to its end."""
        self._jobs_done = self._jobs_failed = self._steps = 0
        self._wedged = False
        self._moved_at = 0.0
        self._busy_since = self._busy_seconds = 0.0
        self._quiet = trio.Event()
        self._pump = trio.CancelScope(shield=True)

    async def on_start(self) -> None:
        self._moved_at = trio.current_time()
        self.start_soon(self._run_port, name="port")
        self.start_soon(self._watch, name="watch")

    async def on_message(self, message: Command) -> Any:
        match message:
            case LoadEngine():
                return self._load(message)
            case UnloadEngine():
                return self._unload(message)
            case RunSteps():
                return self._run_steps(message)
            case EncodeRows():
                return self._encode_rows(message)
        assert_never(message)

    async def on_end(self) -> None:
        try:
            for job, stoppable in self._jobs.items():
                if stoppable:
                    job.stop()
            while self._jobs:
                self._quiet = trio.Event()
                await self._quiet.wait()
        finally:
            self._pump.cancel(reason="the device ends")
            self._port.close(wait=not self._jobs)  # a lane that has not come back in all that time ends when it does

    async def _run_port(self) -> None:
        with self._pump:
            await self._port.run()

    async def _watch(self) -> None:
        """Notice a lane that no longer moves. A native loop passes no boundary of the lane, but it tells of its steps."""
        while True:
            before = self._port.boundaries(), self._jobs_done, self._steps
            await trio.sleep(self._stall_seconds / 4)
            if not self._jobs or (self._port.boundaries(), self._jobs_done, self._steps) != before:
                self._moved_at = trio.current_time()
            wedged = trio.current_time() - self._moved_at >= self._stall_seconds
            if wedged and not self._wedged:
                log.error("%s passes no boundary any more; new work is refused", self._device)
            self._wedged = wedged

    def _check_usable(self) -> None:
        if self._wedged:
            raise DeviceFailed(f"{self._device} does not answer; restart the process", code="device_wedged")

    def _submit(
        self,
        name: str,
        work: Callable[[], Generator[None, None, Any]],
        on_done: Callable[[Any, TripowerError | None], None],
        *,
        on_progress: Callable[[], None] = lambda: None,
        request_stop: Callable[[], None] = lambda: None,
        request_turn: Callable[[], None] = lambda: None,
        stoppable: bool = True,
    ) -> LaneJob:
        def done(result: Any, error: BaseException | None) -> None:
            del self._jobs[job]
            if not self._jobs:
                self._busy_seconds += trio.current_time() - self._busy_since
            self._jobs_done += 1
            self._jobs_failed += error is not None
            on_done(result, None if error is None else self._mapped(name, error))
            if not self._jobs:
                self._quiet.set()

        if not self._jobs:
            self._moved_at = self._busy_since = trio.current_time()
        job = LaneJob(name, work, done, on_progress, request_stop, request_turn, since=trio.current_time())
        self._jobs[job] = stoppable
        self._port.submit(job)
        return job

    def _mapped(self, name: str, error: BaseException) -> TripowerError:
        """The one seam where an engine's exceptions become ours."""
        if isinstance(error, TripowerError):
            return error
        log.error("%s failed on %s", name, self._device, exc_info=error)
        if isinstance(error, MemoryError):
            return DeviceFailed(f"{self._device} has no memory left for this", code="out_of_memory")
        return DeviceFailed(f"{name} failed on {self._device}: {type(error).__name__}")

    def _load(self, message: LoadEngine) -> Any:
        self._check_usable()
        envelope, order = self.envelope, self.envelope.live
        model_box: list[LaneModel] = []

        def work() -> Generator[None, None, None]:
            for model in order.backend.load(message.specification, order.progress):
                if model is not None:
                    model_box.append(model)
                yield

        def done(_result: Any, error: TripowerError | None) -> None:
            # It may be there although the job was stopped or failed at its end. Taken out, so that the job does not keep it alive.
            model = model_box.pop() if model_box else None
            if error is None and model is not None and envelope.answer(model):
                return
            envelope.refuse(error or ModelRefused("the load was stopped", code="load_stopped"))
            if model is not None:
                self._close_engine(message.specification.name, model.engine, lambda _result, _error: None)

        job = self._submit(f"load {message.specification.name}", work, done)
        envelope.on_abandon = job.stop
        return LATER

    def _unload(self, message: UnloadEngine) -> Any:
        envelope = self.envelope

        def done(_result: Any, error: TripowerError | None) -> None:
            if error is None:
                envelope.answer(EngineUnloaded(message.name))
            else:
                envelope.refuse(error)

        self._close_engine(message.name, envelope.live, done)
        return LATER

    def _close_engine(
        self, name: str, engine: StepEngine | EncoderEngine, on_done: Callable[[Any, TripowerError | None], None]
    ) -> None:
        self._submit(f"unload {name}", partial(_close_engine, engine), on_done, stoppable=False)

    def _run_steps(self, message: RunSteps) -> None:
        order: StepOrder = self.envelope.live
        table, reply_to = order.table, order.reply_to
        if self._wedged and table.slots:  # a job that only closes may wait until the lane moves again
            reply_to.control(StepsDone(message.job, 0, "device_wedged", f"{self._device} does not answer; restart the process"))
            return
        told = 0

        def count() -> bool:
            """Whether there are steps that nobody has been told of."""
            nonlocal told
            steps, before = table.steps_done, told
            self._steps += steps - before
            told = steps
            return steps > before

        def progress() -> None:
            if count():
                reply_to.control(StepsCommitted(message.job, told))

        def done(_result: Any, error: TripowerError | None) -> None:
            count()
            code, explanation = (error.code, error.message) if error else ("", "")
            reply_to.control(StepsDone(message.job, table.steps_done, code, explanation))

        table.set_signal_fd(self._port.signal_fd)
        self._submit(
            f"steps {message.name}",
            partial(_steps, order.engine, table, message),
            done,
            on_progress=progress,
            request_stop=table.request_stop,
            request_turn=table.request_turn,
        )

    def _encode_rows(self, message: EncodeRows) -> Any:
        self._check_usable()
        envelope = self.envelope
        order: EncodingOrder = envelope.live

        def work() -> Generator[None, None, bool]:
            yield from order.engine.encode(order.rows, order.vectors)
            return True

        def done(complete: Any, error: TripowerError | None) -> None:
            if complete and error is None:
                envelope.answer(RowsEncoded(len(order.rows)))
            else:
                envelope.refuse(error or ActorGone(f"{self._device} ended before the vectors were complete"))

        job = self._submit(f"encode {message.name}", work, done)
        envelope.on_abandon = job.stop
        return LATER

    def statistics(self) -> DeviceStatistics:
        job = (self._port.current() or next(iter(self._jobs))) if self._jobs else None
        return DeviceStatistics(
            device=self._device,
            state="wedged" if self._wedged else "busy" if self._jobs else "idle",
            jobs=len(self._jobs),
            jobs_done=self._jobs_done,
            jobs_failed=self._jobs_failed,
            steps=self._steps,
            boundaries=self._port.boundaries(),
            quiet_seconds=trio.current_time() - self._moved_at if self._jobs else 0.0,
            job=job.name if job else "",
            job_seconds=trio.current_time() - job.since if job in self._jobs else 0.0,
            thread_id=self._port.thread_id,
            busy_seconds=self._busy_seconds + (trio.current_time() - self._busy_since if self._jobs else 0.0),
        )


# What runs on the lane. No Trio here.


def _close_engine(engine: StepEngine | EncoderEngine) -> Generator[None, None, None]:
    engine.close()
    yield


def _steps(engine: StepEngine, table: StepTable, message: RunSteps) -> Generator[None, None, None]:
    keeping = set(message.keeping)
    sources = {source for source, _, _ in message.forking} - keeping
    for sequence in engine.sequences():
        if sequence not in keeping and sequence not in sources:
            engine.close_sequence(sequence)
    for sequence, length in message.retaining:
        engine.retain(sequence, length)
    for source, sequence, length in message.forking:
        engine.close_sequence(sequence)
        engine.fork(source, sequence, length)
    for source in sources:
        engine.close_sequence(source)
    for sequence in message.opening:
        engine.open_sequence(sequence)
    yield from engine.run(table)
