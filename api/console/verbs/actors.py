"""`ps` and `tree`: which actors and tasks are there, what they do, and what ends with what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import trio

from tripower.api.console.table import FittedTable
from tripower.api.console.text import duration
from tripower.api.console.verb import Subject, Verb
from tripower.runtime.introspection.task_tree import ActorBrief, TaskNode, TaskTree, task_tree
from tripower.runtime.kernel.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text
    from rich.tree import Tree

    from tripower.runtime.kernel import ActorStatistics

EVERYTHING = "--all"
WORDS = ("ACTOR", "STATE", "MESSAGE")
"""Columns of `ps` with words."""
SPARE = ("HANDLED", "PEAK", "RESTARTS", "PENDING", "WAITING", "LEFT", "SEATS", "INBOX", "FOR", "MESSAGE")


class Permits(msgspec.Struct, frozen=True):
    """Of an actor with a gate: seats in use and how many there are, and the same of its waiting room."""

    active: int
    active_limit: int
    waiting: int
    waiting_limit: int


class ActorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One actor. Times are seconds."""

    name: str
    kind: str
    parent: str
    state: str
    message: str | None
    handling_seconds: float
    deadline_left: float | None
    inbox: int
    inbox_max: int
    inbox_peak: int
    waiting: int
    control: int
    pending: int
    received: int
    handled: int
    refused: int
    expired: int
    crashes: int
    restarts: int
    permits: Permits | None = None
    job: str = ""
    """Of a device, what its lane works on, and since when it was submitted."""
    job_seconds: float = 0.0


# ps


async def list_actors(subject: Subject, words: Sequence[str]) -> list[ActorRow]:
    """Everyone, or those that are named. Raises `NotFound`."""
    await trio.lowlevel.checkpoint()
    rows = [_row(actor) for actor in subject.runtime.statistics()]
    for word in words:
        if word not in {row.name for row in rows}:
            raise NotFound(f"there is no actor {word[:200]!r}: `ps` lists them", code="actor_not_found")
    return [row for row in rows if not words or row.name in words]


def _row(actor: ActorStatistics) -> ActorRow:
    details = actor.details
    gate = getattr(details, "gate", None)
    fields = {name: getattr(actor, name) for name in ActorRow.__struct_fields__ if hasattr(actor, name)}
    return ActorRow(
        **fields,
        permits=None if gate is None else Permits(gate.active, gate.active_limit, gate.waiting, gate.waiting_limit),
        job=getattr(details, "job", ""),
        job_seconds=getattr(details, "job_seconds", 0.0),
    )


def show_actors(rows: list[ActorRow]) -> RenderableType:
    """A line for each; a column that would be empty is left out, so that 80 columns are usually enough."""
    permits = [row.permits for row in rows]
    cells = {
        "ACTOR": [row.name for row in rows],
        "STATE": [row.state for row in rows],
        "MESSAGE": [row.message or row.job for row in rows],
        "FOR": [_busy_for(row) for row in rows],
        "LEFT": [duration(row.deadline_left) for row in rows],
        "INBOX": [f"{row.inbox + row.waiting}/{row.inbox_max}" for row in rows],
        "PEAK": [str(row.inbox_peak) for row in rows],
        "PENDING": [str(row.pending or "") for row in rows],
        "SEATS": ["" if each is None else f"{each.active}/{each.active_limit}" for each in permits],
        "WAITING": ["" if each is None else f"{each.waiting}/{each.waiting_limit}" for each in permits],
        "HANDLED": [str(row.handled) for row in rows],
        "RESTARTS": [str(row.restarts or "") for row in rows],
    }
    return FittedTable(cells=cells, left=WORDS, spare=SPARE, styles=[_style(row.state) for row in rows])


def _busy_for(row: ActorRow) -> str:
    if row.message:
        return duration(row.handling_seconds)
    return duration(row.job_seconds) if row.job else ""


def _style(state: str) -> str:
    return {"failed": "red", "restarting": "yellow", "handling": "bold", "ended": "red"}.get(state, "")


# tree


async def read_tree(subject: Subject, words: Sequence[str]) -> TaskTree:
    """Everything that runs in the loop."""
    if any(word != EVERYTHING for word in words):
        raise InvalidRequest(f"`tree` takes nothing but {EVERYTHING}")
    return await task_tree(subject.runtime.system, everything=EVERYTHING in words)


def show_tree(tree: TaskTree) -> RenderableType:
    """The tree with guides."""
    from rich.text import Text
    from rich.tree import Tree

    shown = Tree(Text(f"{tree.actors} actors, {tree.tasks} tasks", style="bold"))
    for node in tree.roots:
        _add(shown, node)
    return shown


def _add(above: Tree, node: TaskNode) -> None:
    branch = above.add(_label(node))
    for child in node.children:
        _add(branch, child)


def _label(node: TaskNode) -> Text:
    from rich.text import Text

    actor = node.actor
    text = Text(node.name, style="" if actor is None else "bold")
    if actor is not None:
        text.append(f"  {_doing(actor)}", style=_style(actor.state) or "green")
        if actor.inbox:
            text.append(f"  inbox {actor.inbox}/{actor.inbox_max}")
        if actor.restarts:
            text.append(f"  restarts {actor.restarts}", style="yellow")
    if node.asks:
        text.append(f"  asks {node.asks}", style="cyan")
    if node.place and (actor is None or actor.message is not None):
        text.append(f"  {node.place}", style="dim")
    if node.alike:
        text.append(f"  and {node.alike} more like it", style="bold")
    return text


def _doing(actor: ActorBrief) -> str:
    return actor.state if actor.message is None else f"{actor.message} for {duration(actor.handling_seconds)}"


def _names(subject: Subject) -> list[str]:
    return [cell.name for cell in subject.runtime.system.cells()]


VERBS = (
    Verb(
        name="ps",
        summary="the actors: what each does, since when, and what waits for it",
        usage="[ACTOR]",
        run=list_actors,
        answer=list[ActorRow],
        show=show_actors,
        complete=_names,
    ),
    Verb(
        name="tree",
        summary="actors and tasks, each below the one that it ends with; with --all also each of those that are alike, and Trio's own",
        usage=f"[{EVERYTHING}]",
        run=read_tree,
        answer=TaskTree,
        show=show_tree,
        complete=lambda subject: [EVERYTHING],
    ),
)
