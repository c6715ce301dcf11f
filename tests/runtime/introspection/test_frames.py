"""Frames of tasks and threads: the line that tells most, through coroutines, generators and context managers."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FunctionType
from typing import Any

import pytest
import trio
import trio.testing

import tripower.actors.device
import tripower.runtime.kernel.cell
from tripower.runtime.introspection import frames
from tripower.runtime.introspection.frames import (
    PlaceLook,
    PlaceMemory,
    await_frames,
    ended,
    origin_of,
    place_of,
    place_text,
    thread_frames,
    with_text,
)


def line(function: Callable[..., Any], number: int) -> int:
    """The line of a function's body, counted from its `def`."""
    assert isinstance(function, FunctionType)
    return function.__code__.co_firstlineno + number


async def plain(event: trio.Event) -> None:
    await event.wait()


async def through_a_generator(event: trio.Event) -> None:
    async for _ in items(event):
        pass


async def items(event: trio.Event) -> AsyncIterator[int]:
    await event.wait()
    yield 1


async def through_a_context(event: trio.Event) -> None:
    async with waiting(event):
        pass


@asynccontextmanager
async def waiting(event: trio.Event) -> AsyncIterator[None]:
    await event.wait()
    yield


async def through_a_nursery(event: trio.Event) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(event.wait)


WAITING = waiting.__wrapped__  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("work", "function", "number"),
    [
        (plain, plain, 1),
        (through_a_generator, items, 1),
        (through_a_context, WAITING, 2),  # its `def` is counted from the decorator
        (through_a_nursery, through_a_nursery, 1),
    ],
)
async def test_the_place_of_a_task_is_its_innermost_line_that_is_no_librarys(
    work: Callable[[trio.Event], Any], function: Callable[..., Any], number: int
) -> None:
    event = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, event)
        await trio.testing.wait_all_tasks_blocked()
        (task,) = nursery.child_tasks
        frame = place_of(task)
        assert frame is not None and frame.file == __file__ and frame.origin == "program" and frame.own
        assert (frame.line, frame.function) == (line(function, number), function.__qualname__)
        frames = await_frames(task)
        assert frames[-1].function == work.__name__
        assert frame in frames and not frames[0].own and frames[0].file.startswith("trio/")
        assert str(frame) == f"{__file__}:{frame.line} in {frame.function}"
        assert [place_text(task) for _ in range(2)] == [str(frame)] * 2
        event.set()


async def test_a_task_that_is_over_has_no_place() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.lowlevel.checkpoint)
        (task,) = nursery.child_tasks
        assert not ended(task)
    assert ended(task) and await_frames(task) == [] and place_of(task) is None


def test_what_a_thread_executes_is_seen_from_outside() -> None:
    begun, end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    assert thread.ident is not None
    frames = thread_frames(thread.ident)
    while not any(frame.function.endswith("Event.wait") for frame in frames[:-1]):  # it is on its way there
        frames = thread_frames(thread.ident)
    own = [frame for frame in frames if frame.own]
    assert [(frame.line, frame.function) for frame in own] == [(line(work, 2), work.__qualname__)]
    assert frames.index(own[0]) > 0  # the innermost comes first
    end.set()
    thread.join()
    assert thread_frames(thread.ident) == []


async def test_lines_are_shown_as_they_are_written() -> None:
    event = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plain, event)
        await trio.testing.wait_all_tasks_blocked()
        (task,) = nursery.child_tasks
        texts = {frame.function: frame.text for frame in await with_text(await_frames(task))}
        assert texts.pop("plain") == "await event.wait()"
        assert texts and not any(texts.values())  # of libraries only the place is told
        event.set()


@pytest.mark.parametrize(
    ("file", "origin", "short"),
    [
        (tripower.actors.device.__file__, "tripower", "actors/device.py"),
        (tripower.runtime.kernel.cell.__file__, "kernel", "runtime/kernel/cell.py"),
        (trio.__file__, "library", "trio/__init__.py"),
        (threading.__file__, "library", "threading.py"),
        ("<frozen importlib._bootstrap>", "library", "<frozen importlib._bootstrap>"),
        ("<console>", "program", "<console>"),
        (__file__, "program", __file__),
    ],
)
def test_whose_code_a_file_holds(file: str, origin: str, short: str) -> None:
    assert origin_of(file) == (origin, short)


async def steps(go_on: list[trio.Event], *, task_status: trio.TaskStatus[trio.lowlevel.Task]) -> None:
    task_status.started(trio.lowlevel.current_task())
    await go_on[0].wait()
    await go_on[1].wait()


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[trio.lowlevel.Task]:
    """The tasks whose coroutines somebody has walked through."""
    tasks: list[trio.lowlevel.Task] = []
    walk = frames.place_text

    def place(task: trio.lowlevel.Task) -> str:
        tasks.append(task)
        return walk(task)

    monkeypatch.setattr(frames, "place_text", place)
    return tasks


async def test_the_place_of_a_parked_task_is_remembered_until_it_runs(walked: list[trio.lowlevel.Task]) -> None:
    memory, go_on = PlaceMemory(), [trio.Event(), trio.Event()]

    def look(task: trio.lowlevel.Task) -> tuple[str, bool]:
        walked.clear()
        looked = PlaceLook(memory)
        place = looked.place(task)
        looked.keep()
        assert place == place_text(task)
        return place, bool(walked)

    async with trio.open_nursery() as nursery:
        task = await nursery.start(steps, go_on)
        await trio.testing.wait_all_tasks_blocked()
        first, _ = look(task)
        assert first.endswith(f":{line(steps, 2)} in steps")
        assert look(task) == (first, False)
        go_on[0].set()  # it will run, and is where it was until then
        assert look(task) == (first, False)
        await trio.testing.wait_all_tasks_blocked()
        second, _ = look(task)
        assert second.endswith(f":{line(steps, 3)} in steps")
        assert look(task) == (second, False)
        PlaceLook(memory).keep()  # a look that has not met it
        assert look(task) == (second, True)
        go_on[1].set()
    assert look(task) == ("", True)


async def test_the_place_of_whoever_looks_is_never_remembered(walked: list[trio.lowlevel.Task]) -> None:
    memory, looking = PlaceMemory(), trio.lowlevel.current_task()
    for _ in range(2):
        looked = PlaceLook(memory)
        looked.place(looking)
        looked.keep()
    assert walked == [looking] * 2
