"""Every task of the Trio loop as one tree, with the actors in it: an actor lives in its supervisor's nursery, so it is one tree already.

It is read while it lives. The walk lets everybody else run every millisecond; a task that has ended meanwhile is left out,
one that came meanwhile may be missing. Tasks that are alike (the same work, at the same line, with the same below them) are told once,
with their number, so that a thousand requests are a few lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import msgspec
import trio

from tripower.runtime.introspection.frames import ended, place_text
from tripower.runtime.introspection.turns import Turns
from tripower.runtime.kernel import ActorStatistics, ActorSystem

ALIKE_MAX = 5
"""More tasks than this that are alike are told as one."""


class ActorBrief(msgspec.Struct, frozen=True, gc=False):
    """What the tree tells of an actor. `ps` has the rest."""

    kind: str
    state: str
    message: str | None
    handling_seconds: float
    inbox: int
    inbox_max: int
    restarts: int


class TaskNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task, or an actor in its task. The collector leaves them alone, so that a look at thousands does not bring it about."""

    name: str
    """Of an actor its name, of its other tasks `ACTOR/WORK`."""
    state: str
    """`waiting`, `ready` (it will run in this turn of the loop), `running` (whoever looks), or `ended` (an actor that failed for good)."""
    place: str = ""
    """Its innermost line that is ours: `actors/device.py:193 in DeviceActor._watch`."""
    asks: str = ""
    """Whose answer it waits for, and the message: `device:cpu0 EncodeRows`."""
    actor: ActorBrief | None = None
    alike: int = 0
    """So many more tasks are like this one, with everything below it, and are not listed."""
    children: tuple[TaskNode, ...] = ()


class TaskTree(msgspec.Struct, frozen=True):
    """What runs in a loop."""

    tasks: int
    actors: int
    roots: tuple[TaskNode, ...]


async def task_tree(system: ActorSystem, *, everything: bool = False, root: trio.lowlevel.Task | None = None) -> TaskTree:
    """The tree below `root`; without one, below the program's main task. Blocks for a few turns of the loop, and never holds it long.

    `everything` lists tasks that are alike one by one, and Trio's own.
    """
    walk = _Walk(system, everything=everything)
    if root is None:
        main = trio.lowlevel.current_root_task()
        assert main is not None, "inside of a Trio run"
        roots = await walk.roots(main)
    else:
        roots = await walk.below(root)
    lost = tuple(_lost(each) for each in walk.actors.values() if each.state == "failed") if root is None else ()
    return TaskTree(walk.tasks, len(walk.actors), roots + lost)


def askers(system: ActorSystem) -> dict[trio.lowlevel.Task, str]:
    """The tasks that wait for an actor's answer: whose, and to what message. Synchronous."""
    return {task: f"{cell.name} {message}" for cell in system.cells() for task, message in cell.askers()}


def state_of(task: trio.lowlevel.Task, looking: trio.lowlevel.Task) -> str:
    """`running`, for the task that is looking; `ready` or `waiting`."""
    if task is looking:
        return "running"
    return "waiting" if getattr(task, "_next_send_fn", None) is None else "ready"


class _Seen(NamedTuple):
    """A task that was looked at. Most of a thousand alike are never told, so that it is little."""

    task: trio.lowlevel.Task
    place: str
    asks: str
    below: Sequence[_Seen]
    kind: Hashable
    """What it is like; None for what has an actor in it, or more below it than a few tasks."""


NOTHING_BELOW: Sequence[_Seen] = ()
_new_seen: Callable[[tuple[trio.lowlevel.Task, str, str, Sequence[_Seen], Hashable]], _Seen] = partial(tuple.__new__, _Seen)
"""As `_Seen(…)`, which takes longer."""


class _Walk:
    def __init__(self, system: ActorSystem, *, everything: bool) -> None:
        self.everything = everything
        self.tasks = 0
        self.actors = {each.name: each for each in system.statistics(details=False)}
        self._names = {cell.task: cell.name for cell in system.cells() if cell.task is not None}
        self._asks = askers(system)
        self._turns = Turns()
        self._kinds: dict[Hashable, Hashable] = {}
        self._looking = trio.lowlevel.current_task()

    async def _visit(self, tasks: Collection[trio.lowlevel.Task]) -> list[_Seen]:
        """Tasks of a nursery with what is below them, without those that have ended."""
        visited = []
        for task in sorted(tasks, key=attrgetter("name")) if len(tasks) > 1 else tasks:
            if self._turns.due():
                await self._turns.give()
            place = place_text(task)
            if not place and ended(task):
                continue
            self.tasks += 1
            nurseries = task.child_nurseries
            below = await self._below(nurseries) if nurseries else NOTHING_BELOW
            visited.append(self._seen(task, place, below))
        return visited

    def _seen(self, task: trio.lowlevel.Task, place: str, below: Sequence[_Seen]) -> _Seen:
        asks = self._asks.get(task, "")
        if task in self._names:
            kind: Hashable = None
        elif not below:
            kind = task.name.partition(" ")[0], place, asks
        elif len(below) == 1:
            child = below[0].kind
            kind = None if child is None else (task.name.partition(" ")[0], place, asks, child)
        else:
            kinds = [seen.kind for seen in below] if len(below) <= ALIKE_MAX else [None]
            kind = None if None in kinds else (task.name.partition(" ")[0], place, asks, frozenset(Counter(kinds).items()))
        if kind is not None:
            kind = self._kinds.setdefault(kind, kind)  # a thousand of one kind are one object: the collector counts them
        return _new_seen((task, place, asks, below, kind))

    async def _below(self, nurseries: Sequence[trio.Nursery]) -> list[_Seen]:
        below = await self._visit(nurseries[0].child_tasks)
        for nursery in nurseries[1:]:
            below += await self._visit(nursery.child_tasks)
        return below

    async def below(self, root: trio.lowlevel.Task) -> tuple[TaskNode, ...]:
        """A task with all that is below it; nothing when it has ended."""
        return tuple([await self._node(seen) for seen in await self._visit((root,))])

    async def roots(self, main: trio.lowlevel.Task) -> tuple[TaskNode, ...]:
        """What is below the root task: the program, and Trio's own tasks, which have names in brackets."""
        below = await self._below(main.child_nurseries)
        return await self._listed([seen for seen in below if self.everything or not seen.task.name.startswith("<")])

    async def _node(self, seen: _Seen, alike: int = 0) -> TaskNode:
        """As plain data, with all that is listed below it."""
        if self._turns.due():
            await self._turns.give()
        actor = self._names.get(seen.task)
        return TaskNode(
            name=seen.task.name if actor is None else actor,
            state=state_of(seen.task, self._looking),
            place=seen.place,
            asks=seen.asks,
            actor=None if actor is None else _brief(self.actors.get(actor)),
            alike=alike,
            children=await self._listed(seen.below) if seen.below else (),
        )

    async def _listed(self, visited: Sequence[_Seen]) -> tuple[TaskNode, ...]:
        """Those that are worth a line each, and of many that are alike the first with the number of the others."""
        if self.everything or len(visited) <= ALIKE_MAX:
            return tuple([await self._node(seen) for seen in visited])
        counts = Counter([seen.kind for seen in visited])
        listed, told = [], set[Hashable]()
        for seen in visited:
            if seen.kind is None or counts[seen.kind] <= ALIKE_MAX:
                listed.append(await self._node(seen))
            elif seen.kind not in told:
                told.add(seen.kind)
                listed.append(await self._node(seen, counts[seen.kind] - 1))
        return tuple(listed)


def _brief(actor: ActorStatistics | None) -> ActorBrief | None:
    if actor is None:  # it came while we looked
        return None
    return ActorBrief(
        actor.kind, actor.state, actor.message, actor.handling_seconds, actor.inbox, actor.inbox_max, actor.restarts
    )


def _lost(actor: ActorStatistics) -> TaskNode:
    return TaskNode(name=actor.name, state="ended", actor=_brief(actor))


# In words.


def label(node: TaskNode) -> str:
    """A node as one line, without what is below it."""
    words = [node.name]
    actor = node.actor
    if actor is not None:
        words.append(f"[{actor.state}]" if actor.message is None else f"[{actor.message} for {actor.handling_seconds:.3g} s]")
        if actor.inbox:
            words.append(f"inbox {actor.inbox}/{actor.inbox_max}")
        if actor.restarts:
            words.append(f"restarts {actor.restarts}")
    if node.asks:
        words.append(f"asks {node.asks}")
    if node.place and (actor is None or actor.message is not None):
        words.append(f"at {node.place}")
    if node.alike:
        words.append(f"(and {node.alike} more like it)")
    return "  ".join(words)


def lines(nodes: Sequence[TaskNode], indent: str = "") -> list[str]:
    """A tree as plain text, with guides."""
    told: list[str] = []
    for number, node in enumerate(nodes):
        last = number == len(nodes) - 1
        told.append(f"{indent}{'└─ ' if last else '├─ '}{label(node)}")
        told += lines(node.children, indent + ("   " if last else "│  "))
    return told
