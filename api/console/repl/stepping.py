"""How a line runs: a coroutine that is driven step by step, in which nothing that the line does reaches the task that drives it.

Three bounds hold it:

1. *Its own code* asks at the head of every loop and function whether the same step of the same task has lasted longer than
   `STEP_SECONDS`, and raises `CutOff` there. This holds in tasks that the line starts, too.
2. *Python that it calls* is traced while a step lasts. After `FOREIGN_SECONDS` the next line of it raises, unless it is Trio's or ours,
   or holds locks for a living: these are left alone, whatever happens.
3. *Its deadline* cancels it. If it catches that and goes on awaiting, it is cut off after `STEPS_AFTER_DEADLINE` further steps.

What blocks within one call of C (`time.sleep`, a sort of a huge list) cannot be ended by anybody.
"""

from __future__ import annotations

import io
import sys
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import FrameType
from typing import Any

import attrs
import trio

STEP_SECONDS = 0.05
FOREIGN_SECONDS = 1.0
STEPS_AFTER_DEADLINE = 100
OUTPUT_CHARACTERS_MAX = 64 * 1024
OWN_CODE = "<py "
"""How the file names of lines begin."""
LEFT_ALONE = ("trio", "tripower", "outcome", "importlib", "threading", "logging", "queue", "concurrent", "warnings")
"""Packages in which nothing is raised: an exception in the wrong place would harm the server, not the line."""


class CutOff(BaseException):
    """Raised in a line that took too long. No `Exception`, so that a line does not catch it by accident."""


class Output(io.TextIOBase):
    """What a line prints, up to a bound. What other threads print meanwhile goes where it would have gone."""

    def __init__(self, others: Any) -> None:
        self._others = others
        self._thread = threading.get_ident()
        self._pieces: list[str] = []
        self._room = OUTPUT_CHARACTERS_MAX
        self._dropped = 0

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread and self._others is not None:
            return int(self._others.write(text))
        kept = text[: self._room]
        self._room -= len(kept)
        self._dropped += len(text) - len(kept)
        if kept:
            self._pieces.append(kept)
        return len(text)

    def writable(self) -> bool:
        return True

    @property
    def text(self) -> str:
        more = f"\n… {self._dropped} more characters" if self._dropped else ""
        return "".join(self._pieces) + more


@attrs.define(eq=False)
class Line:
    """A line that runs, and what came of it."""

    output: Output
    scope: trio.CancelScope
    value: str | None = None
    error: BaseException | None = None
    running: bool = True
    overdue: int = 0
    """Steps since its deadline passed."""


LINE: ContextVar[Line | None] = ContextVar("LINE", default=None)
"""The line for which the current task runs; tasks that it starts inherit it."""


class Pace:
    """Says to the code of lines whether it may go on. One for a session."""

    def __init__(self, step_seconds: float = STEP_SECONDS) -> None:
        self._step_seconds = step_seconds
        self._task: trio.lowlevel.Task | None = None
        self._steps = 0
        self._began = 0.0

    def check(self) -> bool:
        """True, or raises `CutOff`."""
        try:
            task = trio.lowlevel.current_task()
        except RuntimeError:  # a thread of its own: it holds nobody
            return True
        steps = task._schedule_points
        if task is not self._task or steps != self._steps:
            self._task, self._steps, self._began = task, steps, time.perf_counter()
            self._count_overdue()
        elif time.perf_counter() - self._began > self._step_seconds:
            raise CutOff(
                f"the line held the loop for more than {self._step_seconds * 1000:g} ms; "
                "`await trio.lowlevel.checkpoint()` within a loop lets the others go on"
            )
        return True

    def _count_overdue(self) -> None:
        line = LINE.get()
        if line is not None and line.running and line.scope.cancel_called:
            line.overdue += 1
            if line.overdue > STEPS_AFTER_DEADLINE:
                raise CutOff("the line went on after its time was over")


@trio.lowlevel.enable_ki_protection  # Ctrl-C ends the server, as it would without us, and not the line
@types.coroutine
def drive(coroutine: Coroutine[Any, Any, None], line: Line) -> Generator[Any, Any, BaseException | None]:
    """Run a coroutine to its end in the caller's task; returns whatever it raises, `GeneratorExit` and `Cancelled` as well.

    A caller that gets `Cancelled` back has to look whether it is cancelled itself.
    """
    step: Callable[[], Any] = partial(coroutine.send, None)
    while True:
        try:
            with _one_step(line.output):
                passed_on = step()
        except StopIteration:
            return None
        except BaseException as error:  # noqa: BLE001 - an answer for whoever typed the line, whatever it is
            return error
        try:
            sent = yield passed_on
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:  # noqa: BLE001 - it is the coroutine's to handle
            step = partial(coroutine.throw, error)
        else:
            step = partial(coroutine.send, sent)


@contextmanager
def _one_step(output: Output) -> Iterator[None]:
    """What holds for one step of a line and for nothing else: it prints to us, reads nothing, and what it calls is timed."""
    streams, trace = (sys.stdin, sys.stdout, sys.stderr), sys.gettrace()
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), output, output
    sys.settrace(_ForeignLimit(time.perf_counter() + FOREIGN_SECONDS))
    try:
        yield
    finally:
        sys.settrace(trace)
        sys.stdin, sys.stdout, sys.stderr = streams


class _ForeignLimit:
    """A trace function that ends Python code called by a line, once its time is over."""

    def __init__(self, until: float) -> None:
        self._until = until

    def __call__(self, frame: FrameType, event: str, argument: Any) -> _ForeignLimit | None:
        if _is_left_alone(frame) or frame.f_code.co_filename.startswith(OWN_CODE):
            return None
        if time.perf_counter() > self._until and not _on_behalf_of_ours(frame):
            raise CutOff(f"{frame.f_code.co_qualname} held the loop for more than {FOREIGN_SECONDS:g} s")
        frame.f_trace_opcodes = frame.f_code.co_filename.startswith(
            "<"
        )  # `exec("while True: pass")` never comes to a next line
        return self


def _is_left_alone(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in LEFT_ALONE


def _on_behalf_of_ours(frame: FrameType) -> bool:
    """Whether code that is left alone waits for this frame's return: between it and the line."""
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith(OWN_CODE):
        if _is_left_alone(caller):
            return True
        caller = caller.f_back
    return caller is None
