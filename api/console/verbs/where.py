"""`where` and `stacktrace`: at which line an actor, a task, a request or a thread is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from tripower.api.console.text import duration
from tripower.api.console.verb import Subject, Verb
from tripower.api.console.verbs.requests import request_ids
from tripower.runtime.introspection.frames import Frame
from tripower.runtime.introspection.where import Stack, Stacks, where, where_thread, where_threads
from tripower.runtime.kernel.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

EVERYTHING = "--all"
FOREIGN_FRAMES = 3
"""Shown of a stack without a line of ours."""


class Lane(msgspec.Struct, frozen=True):
    """What a device is at."""

    job: str
    """Empty when it has none."""
    job_seconds: float
    """Since it was submitted."""
    thread: Stack | None


class WhereAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Where an actor is, with its own tasks, or whatever goes by a name."""

    name: str
    stacks: tuple[Stack, ...]
    more: int = 0
    """So many others are not listed."""
    lane: Lane | None = None
    """Of a device."""


async def look_where(subject: Subject, words: Sequence[str]) -> WhereAnswer:
    """An actor's or a task's stack, of a device its lane's too. Raises `NotFound`, and `InvalidRequest` without a name."""
    everything, names = _everything(words)
    if not names:
        raise InvalidRequest("`where` takes the name of an actor, a task or a request: `tree` lists them")
    name = " ".join(names)
    found = await where(subject.runtime.system, name)
    lane = await _look_at_lane(subject, name)
    if not everything:
        found = _ours(found)
        lane = lane and msgspec.structs.replace(lane, thread=lane.thread and _our_lines(lane.thread))
    return WhereAnswer(name=name, stacks=found.stacks, more=found.more, lane=lane)


async def _look_at_lane(subject: Subject, name: str) -> Lane | None:
    for actor in subject.runtime.statistics():
        if actor.name == name and hasattr(actor.details, "thread_id"):
            return Lane(actor.details.job, actor.details.job_seconds, await where_thread(actor.details.thread_id))
    return None


def _ours(stacks: Stacks) -> Stacks:
    return msgspec.structs.replace(stacks, stacks=tuple(map(_our_lines, stacks.stacks)))


def _our_lines(stack: Stack) -> Stack:
    """The lines of tripower and of the program; where there are none, the kernel's innermost, or the innermost few of whatever there is."""
    own = tuple(frame for frame in stack.frames if frame.own)
    kernel = tuple(frame for frame in stack.frames if frame.origin == "kernel")
    return msgspec.structs.replace(stack, frames=own or kernel[:1] or stack.frames[:FOREIGN_FRAMES])


async def look_at_threads(subject: Subject, words: Sequence[str]) -> Stacks:
    """Where every thread of the process is."""
    everything, _ = _everything(words)
    stacks = await where_threads()
    return stacks if everything else _ours(stacks)


def show_where(answer: WhereAnswer) -> RenderableType:
    """Stacks, the innermost line first, ours before those of libraries."""
    from rich.console import Group
    from rich.text import Text

    shown = [_stack(stack) for stack in answer.stacks]
    if answer.more:
        shown.append(Text(f"and {answer.more} more with this name"))
    lane = answer.lane
    if lane is not None:
        job = f"works on {lane.job}, submitted {duration(lane.job_seconds)} ago" if lane.job else "has no work"
        shown.append(Text(f"its lane {job}", style="bold"))
        if lane.thread is not None:
            shown.append(_stack(lane.thread))
    return Group(*shown)


def show_stacks(stacks: Stacks) -> RenderableType:
    """Stacks one below the other."""
    from rich.console import Group

    return Group(*map(_stack, stacks.stacks))


def _stack(stack: Stack) -> Text:
    from rich.text import Text

    text = Text.assemble((stack.name, "bold"), f"  {stack.state}")
    if stack.asks:
        text.append(f"  asks {stack.asks}", style="cyan")
    for frame in _ours_first(stack.frames):
        text.append(f"\n  {frame}", style="" if frame.own else "dim")
        if frame.text:
            text.append(f"\n      {frame.text}", style="green" if frame.own else "dim")
    return text


def _ours_first(frames: Sequence[Frame]) -> Iterator[Frame]:
    yield from (frame for frame in frames if frame.own)
    yield from (frame for frame in frames if not frame.own)


def _everything(words: Sequence[str]) -> tuple[bool, list[str]]:
    return EVERYTHING in words, [word for word in words if word != EVERYTHING]


def _names(subject: Subject) -> list[str]:
    return [*(cell.name for cell in subject.runtime.system.cells()), *request_ids(subject)]


VERBS = (
    Verb(
        name="where",
        summary="at which line an actor, a task or a request waits; of a device, where its thread is; --all: libraries' lines too",
        usage=f"ACTOR|TASK|REQUEST [{EVERYTHING}]",
        run=look_where,
        answer=WhereAnswer,
        show=show_where,
        complete=_names,
    ),
    Verb(
        name="stacktrace",
        summary="at which line each thread of the process is; --all: libraries' lines too",
        usage=f"[{EVERYTHING}]",
        run=look_at_threads,
        answer=Stacks,
        show=show_stacks,
        complete=lambda subject: [EVERYTHING],
    ),
)
