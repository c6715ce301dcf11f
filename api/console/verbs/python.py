"""`py`: a line of Python with top-level await, inside the process. See `repl` for what holds it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tripower.api.console.repl.answer import LineAnswer
from tripower.api.console.repl.source import SOURCE_CHARACTERS_MAX, is_incomplete
from tripower.api.console.verb import Subject, Verb
from tripower.runtime.kernel.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tripower.api.console.repl.session import Session

LINE_SECONDS = 5.0
LINE_SECONDS_MAX = 600.0
STATE = "py"
"""Where a connection keeps its session."""
OPTION = re.compile(r"\s*--(?:(?P<more>more)(?: |\Z)|seconds[ =](?P<seconds>\S+)\s*)")


async def run_line(subject: Subject, words: Sequence[str]) -> LineAnswer:
    """Run a line, with the names that earlier lines of the connection made. `--more`: it may be the beginning of several.

    Raises `InvalidRequest`: there is no line, it is too long or not complete, or Python is off.
    """
    if not subject.python:
        raise InvalidRequest("`py` is off in this process; the setting console.python = true turns it on", code="python_off")
    source, seconds, more = parse_line(" ".join(words))
    if is_incomplete(source, typed=more):
        if more:
            return LineAnswer(incomplete=True)
        raise InvalidRequest("the line is not complete: a bracket, a string or a block is open")
    return await _session(subject).run(source, seconds=seconds)


def parse_line(text: str) -> tuple[str, float, bool]:
    """The source, its seconds, and whether more lines may follow. Raises `InvalidRequest`."""
    seconds, more = LINE_SECONDS, False
    while option := OPTION.match(text):
        text = text[option.end() :]
        if option["more"]:
            more = True
        else:
            seconds = _parse_seconds(option["seconds"])
    source = text if more else text.strip(" \t")
    if not source.strip():
        raise InvalidRequest("`py` takes a line of Python, as in: py await runtime.models()")
    if len(source) > SOURCE_CHARACTERS_MAX:
        raise InvalidRequest(f"the line is longer than {SOURCE_CHARACTERS_MAX} characters; import a module instead")
    return source, seconds, more


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LINE_SECONDS_MAX:
        raise InvalidRequest(f"--seconds is a number above 0 and at most {LINE_SECONDS_MAX:g}, and not {text}")
    return seconds


def _session(subject: Subject) -> Session:
    if STATE not in subject.state:
        import trio

        from tripower.api.console.repl.session import Actors, Session

        system = subject.runtime.system
        names = {"runtime": subject.runtime, "system": system, "actors": Actors(system), "subject": subject, "trio": trio}
        subject.state[STATE] = Session(names)
    session: Session = subject.state[STATE]
    return session


def show_answer(answer: LineAnswer) -> RenderableType:
    """As an interpreter shows it."""
    from rich.console import Group
    from rich.text import Text

    parts = [Text(answer.output.removesuffix("\n"))] if answer.output else []
    if answer.value:
        parts.append(Text(answer.value))
    if answer.error:
        parts.append(Text(answer.error, style="red"))
    return Group(*parts)


def _names(subject: Subject) -> Sequence[str]:
    return sorted(name for name in _session(subject).namespace if not name.startswith("__"))


VERBS = (
    Verb(
        name="py",
        summary="run a line of Python in the process, with await; alone it goes on until Ctrl-D",
        usage="[--seconds N] LINE…",
        run=run_line,
        answer=LineAnswer,
        show=show_answer,
        failed=lambda answer: bool(answer.error),
        complete=_names,
        seconds=LINE_SECONDS_MAX + 10.0,
        raw=True,
    ),
)
