"""A session of Python: the names that lines share, and one line after the other, each in a task of its own."""

from __future__ import annotations

import builtins
import inspect
import linecache
import logging
import sys
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, TracebackType
from typing import Any

import trio

from tripower.api.console.repl.answer import LineAnswer
from tripower.api.console.repl.source import ANSWER, CHECK, compile_line
from tripower.api.console.repl.stepping import (
    LINE,
    OUTPUT_CHARACTERS_MAX,
    OWN_CODE,
    CutOff,
    Line,
    Output,
    Pace,
    drive,
)
from tripower.api.console.text import encodable
from tripower.runtime.kernel import ActorSystem, Ref

log = logging.getLogger("tripower.console")

SOURCES_KEPT = 100
"""Earlier lines whose text tracebacks can show."""


class Actors(Mapping[str, Ref[Any]]):
    """The addresses of all actors by name: `actors["queue:toy"].details`."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system

    def __getitem__(self, name: str) -> Ref[Any]:
        found = self._system.find(name)
        if found is None:
            raise KeyError(f"no actor is called {name!r}; there are {', '.join(self)}")
        return found

    def __iter__(self) -> Iterator[str]:
        return (actor.name for actor in self._system.statistics())

    def __len__(self) -> int:
        return len(self._system.statistics())

    def __repr__(self) -> str:
        return f"<actors {', '.join(self)}>"


class Session:
    """Lines that share a namespace. `names` is what it begins with."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        hidden = {CHECK: Pace().check, ANSWER: self._answer, "print": _print}
        self.namespace: dict[str, Any] = {"__name__": "__console__", "__builtins__": vars(builtins) | hidden, **names}
        self._sources: deque[tuple[str, str]] = deque(maxlen=SOURCES_KEPT)
        self._count = 0

    async def run(self, source: str, *, seconds: float) -> LineAnswer:
        """Run a complete line; blocks for `seconds` at most. Whatever the line raises is in the answer."""
        self._count += 1
        name = f"{OWN_CODE}{self._count}>"
        self._sources.append((name, source))
        log.info("py %r", source)
        try:
            code = compile_line(source, name)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return LineAnswer(error=encodable(self._explain(error)))
        line = Line(Output(sys.stdout), trio.CancelScope(deadline=trio.current_time() + seconds))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run, code, line, name=f"console/py {self._count}")
        except BaseExceptionGroup as group:  # it left a scope or a nursery of its own open, and Trio says so at the task's end
            await trio.lowlevel.checkpoint_if_cancelled()
            if group.subgroup((KeyboardInterrupt, SystemExit)):
                raise
            line.error = group
        if line.scope.cancelled_caught:
            explanation = f"cut off: it was not over after {seconds:g} s; `--seconds` gives it more"
        else:
            explanation = "" if line.error is None else self._explain(line.error)
        return LineAnswer(output=encodable(line.output.text), value=encodable(line.value or ""), error=encodable(explanation))

    async def _run(self, code: CodeType, line: Line) -> None:
        LINE.set(line)
        with line.scope:
            line.error = await drive(_evaluate(code, self.namespace), line)
            line.running = False
            await trio.lowlevel.checkpoint_if_cancelled()  # it may have taken a cancellation that was meant for us

    def _answer(self, value: Any) -> None:
        """The value of a last expression. Runs as a part of the line, and so does the value's `__repr__`."""
        if value is not None:
            self.namespace["_"] = value
            line = LINE.get()
            assert line is not None, "a last expression is evaluated in the line's own task"
            line.value = _cut(repr(value))

    def _explain(self, error: BaseException) -> str:
        """A traceback, without the frames that drive the line, and with the text of lines."""
        if isinstance(error, CutOff):
            return f"cut off: {error}"
        for name, source in self._sources:
            linecache.cache[name] = (len(source), None, f"{source}\n".splitlines(keepends=True), name)
        try:
            written = traceback.format_exception(type(error), error, _own(error.__traceback__))
        finally:
            for name, _ in self._sources:
                linecache.cache.pop(name, None)
        return _cut("".join(written).rstrip())


async def _evaluate(code: CodeType, namespace: dict[str, Any]) -> None:
    running = eval(code, namespace)
    if code.co_flags & inspect.CO_COROUTINE:
        await running


def _own(frames: TracebackType | None) -> TracebackType | None:
    """From the line's first frame on; None when there is none, as for a syntax error."""
    while frames is not None and not frames.tb_frame.f_code.co_filename.startswith(OWN_CODE):
        frames = frames.tb_next
    return frames


def _print(*values: object, file: Any = None, **options: Any) -> None:
    """`print`, which also works in the tasks that a line starts."""
    line = LINE.get()
    printing = partial(print, *values, **options)
    printing(file=line.output if file is None and line is not None and line.running else file)


def _cut(text: str) -> str:
    kept = text[:OUTPUT_CHARACTERS_MAX]
    return kept if len(kept) == len(text) else f"{kept}\n… {len(text) - len(kept)} more characters"
