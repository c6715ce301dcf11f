"""Lanes: the thread of a device on the real clock, and its stand-in on virtual time.

Threads are steered by events only, so that nothing here depends on how fast they are.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tripower.runtime.kernel import InlineLane, LaneJob, Port, open_port
from tripower.runtime.kernel.lane import Lane, ThreadPort

HANG_SECONDS = 60
"""Only to end a test that hangs."""

devices = (f"test{n}" for n in itertools.count())


class Job:
    """A lane job that remembers what it heard."""

    def __init__(self, work: Callable[[], Generator[None, None, Any]], name: str = "job", **callbacks: Any) -> None:
        self.done = trio.Event()
        self.progress = 0
        self.progress_at_end = 0
        self.job = LaneJob(name, work, self._end, self._hear, **callbacks)

    def _hear(self) -> None:
        self.progress += 1

    def _end(self, result: Any, error: BaseException | None) -> None:
        assert not self.done.is_set(), "on_done is called once"
        self.outcome = (result, error)
        self.progress_at_end = self.progress
        self.done.set()

    async def wait(self) -> tuple[Any, BaseException | None]:
        with trio.fail_after(HANG_SECONDS):
            await self.done.wait()
        return self.outcome


@asynccontextmanager
async def running(port: Port) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.run)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()
            port.close()


@pytest.fixture
def port() -> Iterator[ThreadPort]:
    port = open_port(next(devices))
    yield port
    port.close()


@contextmanager
def held(port: Port) -> Iterator[None]:
    """Keep the lane busy, so that what is submitted meanwhile starts together."""
    began, gate = threading.Event(), threading.Event()

    def hold() -> Generator[None, None, None]:
        began.set()
        gate.wait(HANG_SECONDS)
        yield

    port.submit(Job(hold).job)
    began.wait(HANG_SECONDS)
    yield
    gate.set()


def count(log: list[Any], name: str, boundaries: int) -> Callable[[], Generator[None, None, str]]:
    def work() -> Generator[None, None, str]:
        for _ in range(boundaries):
            log.append(name)
            yield
        return name

    return work


async def test_the_result_of_a_job_comes_back(port: ThreadPort) -> None:
    async with running(port):
        job = Job(count([], "a", 3))
        port.submit(job.job)
        assert await job.wait() == ("a", None)


class Strange(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError(), Strange(), SystemExit(3)])
async def test_an_exception_comes_back_as_a_value_and_the_lane_lives_on(port: ThreadPort, error: BaseException) -> None:
    def fail() -> Generator[None, None, None]:
        yield
        raise error

    async with running(port):
        job, next_job = Job(fail), Job(count([], "b", 1))
        port.submit(job.job)
        port.submit(next_job.job)
        assert await job.wait() == (None, error)
        assert await next_job.wait() == ("b", None)


async def test_work_that_cannot_even_begin_is_an_error_of_the_job(port: ThreadPort) -> None:
    def no_generator() -> Generator[None, None, None]:
        raise TypeError("wrong arguments")

    async with running(port):
        job, next_job = Job(no_generator), Job(count([], "b", 1))
        port.submit(job.job)
        port.submit(next_job.job)
        result, error = await job.wait()
        assert result is None and isinstance(error, TypeError)
        assert await next_job.wait() == ("b", None)


async def test_jobs_take_turns_at_their_boundaries(port: ThreadPort) -> None:
    log: list[str] = []
    async with running(port):
        jobs = [Job(count(log, "a", 3)), Job(count(log, "b", 1)), Job(count(log, "c", 2))]
        with held(port):
            for job in jobs:
                port.submit(job.job)
        for job in jobs:
            await job.wait()
        assert log == ["a", "b", "c", "a", "c", "a"]
        assert port.boundaries() == 1 + 1 + 6 + 3


async def test_a_loop_that_runs_ahead_is_asked_to_come_back_when_another_job_arrives(port: ThreadPort) -> None:
    running_ahead, asked = threading.Event(), threading.Event()
    came_back: list[bool] = []

    def run_ahead() -> Generator[None, None, str]:
        running_ahead.set()
        came_back.append(asked.wait(HANG_SECONDS))
        yield
        return "ahead"

    async with running(port):
        ahead = Job(run_ahead, request_turn=asked.set)
        port.submit(ahead.job)
        running_ahead.wait(HANG_SECONDS)
        assert not asked.is_set(), "nobody else waits"
        other = Job(count([], "b", 2))
        port.submit(other.job)
        assert await other.wait() == ("b", None) and await ahead.wait() == ("ahead", None)
        assert came_back == [True]


async def test_a_loop_that_begins_while_another_job_waits_is_asked_before_it_begins(port: ThreadPort) -> None:
    log: list[str] = []

    def run_ahead() -> Generator[None, None, None]:
        for _ in range(3):
            log.append("step")
            yield

    async with running(port):
        ahead = Job(run_ahead, request_turn=lambda: log.append("asked"))
        other = Job(count(log, "b", 1))
        with held(port):
            port.submit(ahead.job)
            port.submit(other.job)
        await ahead.wait()
        await other.wait()
        assert log[:3] == ["asked", "step", "b"]
        assert log[-1] == "step" and log[-2] == "step", "alone again it is not asked"


async def test_a_stopped_job_ends_at_its_next_boundary_and_cleans_up_on_the_lane(port: ThreadPort) -> None:
    at_boundary, stopped = threading.Event(), threading.Event()
    asked, threads = [], list[int]()

    def work() -> Generator[None, None, str]:
        try:
            at_boundary.set()
            stopped.wait(HANG_SECONDS)
            yield
            raise AssertionError("it went on")
        finally:
            threads.append(threading.get_ident())

    async with running(port):
        job = Job(work, request_stop=lambda: asked.append(1))
        port.submit(job.job)
        at_boundary.wait(HANG_SECONDS)
        job.job.stop()
        job.job.stop()
        stopped.set()
        assert await job.wait() == (None, None)
        assert threads != [threading.get_ident()] and len(threads) == 1 and asked == [1, 1]


async def test_a_job_that_is_stopped_before_it_begins_never_runs(port: ThreadPort) -> None:
    log: list[str] = []
    async with running(port):
        job = Job(count(log, "a", 3))
        with held(port):
            port.submit(job.job)
            job.job.stop()
        assert await job.wait() == (None, None) and log == []


async def test_trouble_while_a_stopped_job_cleans_up_is_its_error(port: ThreadPort) -> None:
    at_boundary, stopped = threading.Event(), threading.Event()

    def work() -> Generator[None, None, None]:
        try:
            at_boundary.set()
            stopped.wait(HANG_SECONDS)
            yield
        finally:
            raise OSError("cannot clean up")

    async with running(port):
        job = Job(work)
        port.submit(job.job)
        at_boundary.wait(HANG_SECONDS)
        job.job.stop()
        stopped.set()
        result, error = await job.wait()
        assert result is None and isinstance(error, OSError)


async def test_progress_is_heard_at_a_boundary_and_never_after_the_end(port: ThreadPort) -> None:
    gate, heard = threading.Event(), trio.Event()

    def work() -> Generator[None, None, None]:
        yield
        gate.wait(HANG_SECONDS)
        port.signal()

    async with running(port):
        job, other = Job(work), Job(count([], "other", 5))

        def hear() -> None:
            job.progress += 1
            heard.set()

        job.job.on_progress = hear
        port.submit(job.job)
        with trio.fail_after(HANG_SECONDS):
            await heard.wait()
        assert not job.done.is_set()
        gate.set()
        await job.wait()
        port.submit(other.job)
        await other.wait()
        assert job.progress == job.progress_at_end


async def test_a_native_loop_is_heard_through_the_descriptor(port: ThreadPort) -> None:
    gate, heard = threading.Event(), trio.Event()

    def work() -> Generator[None, None, None]:
        os.write(port.signal_fd, (1).to_bytes(8, "little"))
        gate.wait(HANG_SECONDS)  # no Python and no boundary until it has been heard
        yield

    async with running(port):
        job = Job(work)
        job.job.on_progress = heard.set
        port.submit(job.job)
        with trio.fail_after(HANG_SECONDS):
            await heard.wait()
        assert not job.done.is_set() and port.boundaries() == 0
        gate.set()
        await job.wait()


async def test_a_system_without_eventfd_uses_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd", raising=False)
    port = open_port(next(devices))
    async with running(port):
        for _ in range(3):
            port.signal()
            job = Job(count([], "a", 2))
            port.submit(job.job)
            assert await job.wait() == ("a", None)


async def test_two_ports_of_a_device_share_one_thread_and_hear_only_their_own_jobs() -> None:
    device = next(devices)
    first, second = open_port(device), open_port(device)
    threads: list[int] = []

    def work(port: Port) -> Callable[[], Generator[None, None, None]]:
        def run() -> Generator[None, None, None]:
            for _ in range(3):
                threads.append(threading.get_ident())
                port.signal()
                yield

        return run

    async with running(first), running(second):
        jobs = [Job(work(first)), Job(work(second))]
        idle = Job(count([], "idle", 0))
        first.submit(jobs[0].job)
        second.submit(jobs[1].job)
        for job in jobs:
            await job.wait()
        assert len(threads) == 6 and len(set(threads)) == 1
        assert idle.progress == 0 and first.boundaries() == second.boundaries() == 4


async def test_the_thread_ends_with_the_last_port() -> None:
    device = next(devices)
    name = f"tripower-lane-{device}"

    def alive() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == name]

    first, second = open_port(device), open_port(device)
    assert len(alive()) == 1
    first.close()
    first.close()
    assert len(alive()) == 1
    async with running(second):
        job = Job(count([], "a", 1))
        second.submit(job.job)
        await job.wait()
    assert alive() == [] and device not in Lane._lanes
    third = open_port(device)
    assert len(alive()) == 1
    third.close()
    assert alive() == []


async def test_closing_stops_and_joins_what_still_runs() -> None:
    port = open_port(next(devices))
    began, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> Generator[None, None, None]:
        try:
            while True:
                began.set()
                gate.wait(HANG_SECONDS)
                yield
        finally:
            ended.set()

    port.submit(Job(work).job)
    began.wait(HANG_SECONDS)
    gate.set()
    port.close()
    assert ended.is_set()
    port.signal()  # too late, and harmless


async def test_a_lane_that_is_not_waited_for_ends_when_its_step_does() -> None:
    port = open_port(next(devices))
    thread = port._lane._thread
    began, gate = threading.Event(), threading.Event()

    def work() -> Generator[None, None, None]:
        began.set()
        gate.wait(HANG_SECONDS)
        os.write(port.signal_fd, (1).to_bytes(8, "little"))  # as a native loop does, which must not find another's file there
        yield

    job = Job(work).job
    port.submit(job)
    began.wait(HANG_SECONDS)
    port.close(wait=False)
    assert thread.is_alive()
    gate.set()
    thread.join(HANG_SECONDS)
    assert not thread.is_alive() and job.error is None
    with pytest.raises(OSError, match="[Bb]ad file descriptor"):
        os.fstat(port.signal_fd)


async def test_an_idle_lane_that_is_not_waited_for_is_let_go_at_once() -> None:
    port = open_port(next(devices))
    port.close(wait=False)
    with pytest.raises(OSError, match="[Bb]ad file descriptor"):
        os.fstat(port.signal_fd)
    port._lane._thread.join(HANG_SECONDS)
    assert not port._lane._thread.is_alive()


async def test_a_port_may_be_closed_in_the_turn_in_which_it_was_woken() -> None:
    for _ in range(40):
        port = open_port(next(devices))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(port.run)
            await wait_all_tasks_blocked()
            port.signal()
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
            port.close()


async def test_many_jobs_from_two_loops_in_two_threads_all_come_back() -> None:
    device = next(devices)
    results: list[list[str]] = [[], []]
    threads: set[int] = set()

    async def main(number: int) -> None:
        port = open_port(device)
        async with running(port):
            for n in range(30):
                job = Job(count([], f"{number}.{n}", n % 3))
                port.submit(job.job)
                results[number].append((await job.wait())[0])
            threads.add(port._lane._thread.ident or 0)

    keeper = open_port(device)
    loops = [threading.Thread(target=trio.run, args=(main, number)) for number in range(2)]
    for loop in loops:
        loop.start()
    for loop in loops:
        await trio.to_thread.run_sync(loop.join)
    keeper.close()
    assert results == [[f"{number}.{n}" for n in range(30)] for number in range(2)]
    assert len(threads) == 1


# The stand-in.


async def test_inline_jobs_take_turns_at_the_pace_they_are_given(autojump_clock: MockClock) -> None:
    log: list[tuple[float, str]] = []
    lane = InlineLane(lambda job: {"a": 1.0, "b": 0.5}[job.name])

    def work(name: str, boundaries: int) -> Callable[[], Generator[None, None, str]]:
        def run() -> Generator[None, None, str]:
            for _ in range(boundaries):
                log.append((trio.current_time(), name))
                yield
            return name

        return run

    async with running(lane):
        jobs = [Job(work("a", 2), "a"), Job(work("b", 1), "b")]
        for job in jobs:
            lane.submit(job.job)
        for job in jobs:
            await job.wait()
        assert log == [(1.0, "a"), (1.5, "b"), (2.5, "a")]
        assert trio.current_time() == 4.0 and lane.boundaries() == 5
        late = Job(work("b", 0), "b")
        await trio.sleep(10)
        lane.submit(late.job)
        assert await late.wait() == ("b", None) and trio.current_time() == 14.5


async def test_inline_jobs_stop_fail_and_are_heard_like_those_of_a_thread(autojump_clock: MockClock) -> None:
    lane = InlineLane(lambda job: 1.0)

    def fail() -> Generator[None, None, None]:
        lane.signal()
        yield
        raise ValueError("no")

    def no_generator() -> Generator[None, None, None]:
        raise TypeError("wrong arguments")

    async with running(lane):
        lane.signal()  # nobody runs
        failing, stopped, broken = Job(fail), Job(count([], "a", 5)), Job(no_generator)
        for job in (failing, stopped, broken):
            lane.submit(job.job)
        await trio.sleep(2.5)
        stopped.job.stop()
        assert await stopped.wait() == (None, None)
        assert isinstance((await failing.wait())[1], ValueError)
        assert failing.progress_at_end == 2  # its signal and its boundary
        assert isinstance((await broken.wait())[1], TypeError)


async def test_closing_an_inline_lane_cleans_up_what_waits(autojump_clock: MockClock) -> None:
    cleaned: list[str] = []

    def work() -> Generator[None, None, None]:
        try:
            yield
        finally:
            cleaned.append("a")

    lane = InlineLane(lambda job: 1.0)
    async with running(lane):
        lane.submit(Job(work).job)
        lane.submit(Job(work).job)
        await trio.sleep(1.5)
    assert cleaned == ["a"]  # the other one had not begun
