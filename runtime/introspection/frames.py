"""Where code is at this moment: the frames of parked tasks and of threads, with our own lines told from those of libraries.

A parked task is a chain of coroutines, each awaiting the next. Coroutines know their code and what they await without a frame object,
so that finding the innermost line that is ours costs a fraction of a microsecond for each of them. The line of interest is rarely the last
one, which is in Trio or in the kernel, but the last one before.
"""

from __future__ import annotations

import gc
import linecache
import sys
import sysconfig
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any

import msgspec
import trio

ROOT = str(Path(__file__).parents[2]) + "/"
OURS = ("actors/", "api/", "backends/", "runtime/")
KERNEL = "runtime/kernel/"
PACKAGES = ("/site-packages/", "/dist-packages/")
LIBRARY = sysconfig.get_path("stdlib") + "/"
OWN = 2
RANKS = {"library": 0, "kernel": 1, "tripower": OWN, "program": OWN}
"""Whose line tells most."""
THREAD_FRAMES_MAX = 100
CODES_MAX = 4096
TRAPS = ("generator", "coroutine_wrapper")
"""What the innermost coroutine of a parked task awaits: Trio's own `types.coroutine` functions."""
_own_codes: dict[int, tuple[bool, CodeType, dict[int, str]]] = {}
AWAITED = ("async_generator_asend", "async_generator_athrow", "anext_awaitable")


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One line of a stack."""

    file: str
    """Short for tripower (`actors/device.py`) and for libraries (`trio/_timeouts.py`); else the whole path."""
    line: int
    function: str
    origin: str
    """`tripower`, `kernel` (its actor kernel), `program` (whoever embeds it) or `library`."""
    text: str = ""
    """The line itself, where it was asked for."""

    @property
    def own(self) -> bool:
        """Whether it is a line of tripower or of the program that embeds it, and no plumbing."""
        return self.origin in ("tripower", "program")

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@lru_cache(maxsize=4096)
def origin_of(filename: str) -> tuple[str, str]:
    """Whose code a file holds, and its short name."""
    if filename.startswith(ROOT) and filename.startswith(OURS, len(ROOT)):
        short = filename[len(ROOT) :]
        return ("kernel" if short.startswith(KERNEL) else "tripower"), short
    for packages in PACKAGES:
        if packages in filename:
            return "library", filename.rpartition(packages)[2]
    if filename.startswith(LIBRARY):
        return "library", filename[len(LIBRARY) :]
    return ("library" if filename.startswith("<frozen") else "program"), filename


@lru_cache(maxsize=4096)
def _rank_of(filename: str) -> int:
    return RANKS[origin_of(filename)[0]]


def make_frame(frame: FrameType) -> Frame:
    """A frame as plain data."""
    code = frame.f_code
    origin, short = origin_of(code.co_filename)
    return Frame(short, frame.f_lineno or code.co_firstlineno, code.co_qualname, origin)


def _chain(task: trio.lowlevel.Task) -> list[Any]:
    """What a task is in, the outermost first: coroutines, generators and asynchronous generators."""
    chain: list[Any] = []
    awaited: Any = task.coro
    while awaited is not None:
        kind = type(awaited)
        if kind is CoroutineType:  # nearly all
            chain.append(awaited)
            awaited = awaited.cr_await
        elif kind is GeneratorType:
            chain.append(awaited)
            awaited = awaited.gi_yieldfrom
        elif kind is AsyncGeneratorType:
            chain.append(awaited)
            awaited = awaited.ag_await
        elif kind.__name__ in AWAITED:  # they hold what they step where only the collector sees it
            held = gc.get_referents(awaited)
            awaited = next((each for each in held if type(each) is AsyncGeneratorType or type(each).__name__ in AWAITED), None)
        else:
            break  # no Python in it
    return chain


def _code_of(awaited: Any) -> CodeType:
    kind = type(awaited)
    code: CodeType = awaited.cr_code if kind is CoroutineType else awaited.gi_code if kind is GeneratorType else awaited.ag_code
    return code


def _frame_of(awaited: Any) -> FrameType | None:
    kind = type(awaited)
    frame: FrameType | None = (
        awaited.cr_frame if kind is CoroutineType else awaited.gi_frame if kind is GeneratorType else awaited.ag_frame
    )
    return frame


def ended(task: trio.lowlevel.Task) -> bool:
    """Whether a task is over; Trio keeps it for as long as somebody has it."""
    coroutine: Any = task.coro
    return type(coroutine) is CoroutineType and not coroutine.cr_suspended and coroutine.cr_frame is None


def place_of(task: trio.lowlevel.Task) -> Frame | None:
    """The line that tells most about where a task is. Synchronous; cheap.

    It is the innermost one of tripower or of the program, else the kernel's, else the outermost of the libraries.
    """
    chain = _chain(task)
    best: Any = chain[0]
    best_rank = 0
    for awaited in reversed(chain):
        rank = _rank_of(_code_of(awaited).co_filename)
        if rank > best_rank:
            best, best_rank = awaited, rank
            if rank == OWN:
                break
    frame = _frame_of(best)
    return None if frame is None else make_frame(frame)


def place_text(task: trio.lowlevel.Task) -> str:
    """`str` of `place_of`: for those who look at thousands of tasks, most of them at the same lines."""
    chain: list[Any] = []
    awaited: Any = task.coro
    while type(awaited) is CoroutineType:
        chain.append(awaited)
        awaited = awaited.cr_await
    best: Any = None
    if awaited is None or type(awaited).__name__ in TRAPS:
        while chain:
            coroutine = chain.pop()
            code = coroutine.cr_code
            known = _own_codes.get(id(code)) or _remember(code)
            if known[0]:
                best = coroutine
                break
    if best is None:
        frame = place_of(task)  # the careful way
        return "" if frame is None else str(frame)
    stopped = best.cr_frame
    if stopped is None:
        return ""
    places = known[2]
    text = places.get(stopped.f_lasti)
    if text is None:
        text = places[stopped.f_lasti] = str(make_frame(stopped))
    return text


class PlaceMemory:
    """Where tasks were at the last look at all of them. A parked task stays where it is until it runs, and Trio counts how often it has.

    So a look at thousands of tasks, most of which have waited since the one before, need not walk through all their coroutines.
    """

    def __init__(self) -> None:
        self.last: dict[int, tuple[int, str]] = {}
        """By the task's number in this process: how often it had run, and its place."""


class PlaceLook:
    """One look at many tasks. Made by the task that looks."""

    def __init__(self, memory: PlaceMemory) -> None:
        self._memory = memory
        self._last = memory.last
        self._found: dict[int, tuple[int, str]] = {}
        self._looking = trio.lowlevel.current_task()

    def place(self, task: trio.lowlevel.Task) -> str:
        """Like `place_text`."""
        number, runs = task._counter, task._schedule_points
        known = self._last.get(number)
        if known is None or known[0] != runs or task is self._looking or task._cancel_status is None:
            known = runs, place_text(task)  # it has run since, or runs now, or has ended
        self._found[number] = known
        return known[1]

    def keep(self) -> None:
        """It was a look at all tasks: the next one begins with what it has found, and everything else is forgotten."""
        self._memory.last = self._found


def _remember(code: CodeType) -> tuple[bool, CodeType, dict[int, str]]:
    """Whether code is ours, and the places in it that were told. By its address, which it keeps for as long as it is remembered."""
    if len(_own_codes) >= CODES_MAX:
        _own_codes.clear()
    known = _own_codes[id(code)] = (_rank_of(code.co_filename) == OWN, code, {})
    return known


def await_frames(task: trio.lowlevel.Task) -> list[Frame]:
    """The whole stack of a parked task, the innermost frame first. Synchronous."""
    return [make_frame(frame) for frame in map(_frame_of, reversed(_chain(task))) if frame is not None]


def thread_frames(thread_id: int) -> list[Frame]:
    """What a thread executes, the innermost frame first; empty when there is no such thread. Any thread; does not stop it.

    Code in C has no frames: such a thread is in the call on the first line.
    """
    frame = sys._current_frames().get(thread_id)
    return list(map(make_frame, _outwards(frame)))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(THREAD_FRAMES_MAX):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def thread_names() -> dict[int, str]:
    """The threads of the process that Python knows, by their id."""
    return {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None}


async def with_text(frames: list[Frame]) -> list[Frame]:
    """The same with their source lines, where they can be found. Reads a file now and then, with a checkpoint for each frame."""
    result = []
    for frame in frames:
        await trio.lowlevel.checkpoint()
        if frame.origin != "library":  # of theirs only the short name is kept, and their lines tell little
            whole = frame.file if frame.origin == "program" else ROOT + frame.file
            frame = msgspec.structs.replace(frame, text=linecache.getline(whole, frame.line).strip())
        result.append(frame)
    return result
