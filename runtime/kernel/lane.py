"""The one place where code may block: a named thread for each physical device of the process.

A *job* is a generator. Each `yield` is a boundary: the lane looks there whether the job should stop, and lets the next job have a
turn, so that two models on one device interleave and a load does not stall a stream. A native loop that runs ahead is a job with
few boundaries; it reads its own flags and calls `port.signal` through an eventfd, so that neither Python nor the GIL is needed
between its steps. While another job waits it is asked to come back after every step.

A job is never abandoned: `stop` sets a flag and the generator is closed at the next boundary, on the lane's thread, where its native
handles live. Exceptions travel as values.

Two runtimes in one process share a device's thread by reference count; each has its own *port*, the way back into its Trio loop:
the lane raises an eventfd, the loop waits for it to become readable and calls the jobs' callbacks. `InlineLane` has the same face and
runs jobs inside the loop, a boundary at a time, for simulation on virtual time.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Protocol

import attrs
import trio

Work = Generator[None, None, Any]


@attrs.define(eq=False)
class LaneJob:
    """Work for a lane. Both callbacks run in the Trio loop.

    `on_progress` is called after a boundary or a signal, once for several; what came after the last boundary is for `on_done` to tell.
    `on_done` is called exactly once, with the
    generator's return value and None, with None and the exception, or with None twice when the job was stopped at a boundary.
    """

    name: str
    work: Callable[[], Work]
    on_done: Callable[[Any, BaseException | None], None]
    on_progress: Callable[[], None] = lambda: None
    request_stop: Callable[[], None] = lambda: None
    """Tells a native loop to end; called in the loop, any number of times."""
    request_turn: Callable[[], None] = lambda: None
    """Tells a native loop to come to its next boundary, since another job waits; called from any thread, any number of times."""
    since: float = 0.0
    """When its owner submitted it, on the owner's clock."""
    stopping: bool = False
    boundaries: int = 0
    result: Any = None
    error: BaseException | None = None

    def stop(self) -> None:
        """End at the next boundary. Synchronous, idempotent."""
        self.stopping = True
        self.request_stop()

    def begin(self) -> Work:
        """The generator to `advance`. What `work` itself raises becomes the job's error."""
        return (yield from self.work())

    def advance(self, generator: Work) -> bool:
        """Run to the next boundary; True when the job has ended. Blocks; on the lane only."""
        try:
            if self.stopping:
                generator.close()
                return True
            next(generator)
            self.boundaries += 1
        except StopIteration as end:
            self.result = end.value
            return True
        except BaseException as error:  # noqa: BLE001 - travels as a value to whoever waits
            self.error = error
            return True
        return False


class Port(Protocol):
    """What a device needs of a lane."""

    signal_fd: int
    """A native loop writes eight bytes of 1 here to be heard; -1 where there is none."""
    thread_id: int
    """Of the lane, as `threading.get_ident` counts; 0 where it has none of its own."""

    def submit(self, job: LaneJob) -> None:
        """Queue a job. Synchronous; the queue is bounded by whoever admits work."""

    def signal(self) -> None:
        """Say from the lane that something has happened: `on_progress` of this port's jobs will be called. Any thread."""

    async def run(self) -> None:
        """Call the callbacks, for as long as the port is open. Runs in the owner's nursery; cancel it only when no job is left."""

    def boundaries(self) -> int:
        """Boundaries passed by all jobs, to see whether the lane moves."""

    def current(self) -> LaneJob | None:
        """The job that the lane works on, of whichever port; None between two."""

    def close(self, *, wait: bool = True) -> None:
        """Give the lane back; the thread ends with its last port. Blocks for the last job's current step, if any.

        Without `wait` it does not block: the thread ends once the jobs that it still has have come to a boundary.
        """


class _Wakeup:
    """A readable descriptor that any thread can raise: an eventfd, or a pipe where there is none."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.read_fd = self.write_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.read_fd, self.write_fd = os.pipe()
            os.set_blocking(self.read_fd, False)
            os.set_blocking(self.write_fd, False)
        self._lock = threading.Lock()
        self._closed = False

    def signal(self) -> None:
        with self._lock:
            if not self._closed:
                with suppress(BlockingIOError):  # it is raised already
                    os.write(self.write_fd, b"\x01\0\0\0\0\0\0\0")

    def clear(self) -> None:
        with self._lock:
            if not self._closed:
                with suppress(BlockingIOError):
                    os.read(self.read_fd, 4096)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                for descriptor in {self.read_fd, self.write_fd}:
                    os.close(descriptor)


class Lane:
    """One device's thread. Made and shared by `open_port`."""

    _lanes: ClassVar[dict[str, Lane]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, device: str) -> None:
        self.device = device
        self.ports = 0
        self._queue: SimpleQueue[tuple[LaneJob, ThreadPort] | None] = SimpleQueue()
        self.current: LaneJob | None = None
        self._thread = threading.Thread(target=self._run, name=f"tripower-lane-{device}")
        self._thread.start()
        self.thread_id = self._thread.ident or 0

    @classmethod
    def acquire(cls, device: str) -> Lane:
        with cls._lock:
            lane = cls._lanes.get(device)
            if lane is None:
                lane = cls._lanes[device] = cls(device)
            lane.ports += 1
            return lane

    def release(self, *, wait: bool) -> None:
        with self._lock:
            self.ports -= 1
            if self.ports:
                return
            del self._lanes[self.device]
        self._queue.put(None)
        if wait:
            self._thread.join()

    def submit(self, job: LaneJob, port: ThreadPort) -> None:
        self._queue.put((job, port))
        current = self.current
        if current is not None:
            current.request_turn()

    def _run(self) -> None:
        active: deque[tuple[LaneJob, ThreadPort, Work]] = deque()
        open_ = True
        while open_ or active:
            while open_:
                try:
                    item = self._queue.get(block=not active)
                except Empty:
                    break
                if item is None:
                    open_ = False
                else:
                    active.append((*item, item[0].begin()))
            if active:
                job, port, generator = active.popleft()
                self.current = job
                if active or not self._queue.empty():
                    job.request_turn()
                ended = job.advance(generator)
                self.current = None
                if ended:
                    port.finished(job)
                else:
                    port.signal()
                    active.append((job, port, generator))


class ThreadPort:
    """One runtime's access to a device's thread. Make it with `open_port`."""

    def __init__(self, device: str) -> None:
        self._lane = Lane.acquire(device)
        self._wakeup = _Wakeup()
        self._running: dict[LaneJob, None] = {}
        self._finished: deque[LaneJob] = deque()
        self._passed = 0
        self._closed = False
        self.signal_fd = self._wakeup.write_fd
        self.thread_id = self._lane.thread_id
        self.signal = self._wakeup.signal

    def submit(self, job: LaneJob) -> None:
        self._running[job] = None
        self._lane.submit(job, self)

    def finished(self, job: LaneJob) -> None:
        """On the lane: a job has ended."""
        self._finished.append(job)
        self._wakeup.signal()
        if self._closed and len(self._finished) == len(self._running):
            self._wakeup.close()

    def boundaries(self) -> int:
        return self._passed + sum(job.boundaries for job in self._running)

    def current(self) -> LaneJob | None:
        return self._lane.current

    async def run(self) -> None:
        while not self._closed:  # it may be closed in the very turn in which the descriptor woke us
            await trio.lowlevel.wait_readable(self._wakeup.read_fd)
            self._wakeup.clear()
            ended: list[LaneJob] = []
            while self._finished:
                ended.append(self._finished.popleft())
            for job in ended:
                del self._running[job]
                self._passed += job.boundaries + 1
            for job in list(self._running):
                job.on_progress()
            for job in ended:
                job.on_done(job.result, job.error)

    def close(self, *, wait: bool = True) -> None:
        if not self._closed:
            self._closed = True
            for job in self._running:
                job.stop()
            self._lane.release(wait=wait)
            if wait or len(self._finished) == len(
                self._running
            ):  # else a native loop may yet write to it: it goes with the last job
                self._wakeup.close()


class InlineLane:
    """A port without a thread: jobs run in the loop, and `pace` says how long a boundary takes on the loop's clock."""

    signal_fd = -1
    thread_id = 0

    def __init__(self, pace: Callable[[LaneJob], float]) -> None:
        self._pace = pace
        self._jobs: deque[tuple[LaneJob, Work]] = deque()
        self._arrived = trio.Event()
        self._passed = 0
        self._running: LaneJob | None = None

    def submit(self, job: LaneJob) -> None:
        self._jobs.append((job, job.begin()))
        self._arrived.set()

    def signal(self) -> None:
        if self._running is not None:
            self._running.on_progress()

    def boundaries(self) -> int:
        return self._passed

    def current(self) -> LaneJob | None:
        return self._running

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            while self._jobs:
                job, generator = self._jobs.popleft()
                await trio.sleep(self._pace(job))
                self._running = job
                ended = job.advance(generator)
                self._running = None
                self._passed += 1
                if ended:
                    job.on_done(job.result, job.error)
                else:
                    self._jobs.append((job, generator))
                    job.on_progress()
            self._arrived = trio.Event()

    def close(self, *, wait: bool = True) -> None:
        for job, generator in self._jobs:
            job.stop()
            job.advance(generator)
        self._jobs.clear()


def open_port(device: str) -> ThreadPort:
    """A port to this device's lane, started if need be. Synchronous."""
    return ThreadPort(device)
