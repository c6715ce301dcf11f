"""Every task of the Trio loop as one tree, with the actors in it: an actor lives in its supervisor's nursery, so it is one tree already.

It is read while it lives. The walk lets everybody else run every millisecond; a task that has ended meanwhile is left out,
one that came meanwhile may be missing. Tasks that are alike (the same work, at the same line, with the same below them) are told once,
with their number, so that a thousand requests are a few lines.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec
import trio

from tripower.runtime.introspection.frames import PlaceLook, PlaceMemory, ended
from tripower.runtime.introspection.turns import Turns
from tripower.runtime.kernel import ActorStatistics, ActorSystem

ALIKE_MAX = 5
"""More tasks than this that are alike are told as one."""
PLACES = PlaceMemory()
"""Of the last tree of all tasks."""


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
        walk.places.keep()
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
    """A task that was looked at."""

    task: trio.lowlevel.Task
    place: str
    asks: str
    below: _Below
    kind: Hashable
    """What it is like; None for what has an actor in it, or more below it than a few tasks."""


class _Below(NamedTuple):
    """What is below a task: of a thousand that are alike only the first few, and how many there are of each kind."""

    seen: list[_Seen]
    counts: dict[Hashable, int]


NOTHING_BELOW = _Below([], {})


class _Walk:
    def __init__(self, system: ActorSystem, *, everything: bool) -> None:
        self.everything = everything
        self.tasks = 0
        self.actors = {each.name: each for each in system.statistics(details=False)}
        self._names = {cell.task: cell.name for cell in system.cells() if cell.task is not None}
        self._asks = askers(system)
        self.places = PlaceLook(PLACES)
        self._turns = Turns()
        self._looking = trio.lowlevel.current_task()

    async def _visit(self, tasks: Collection[trio.lowlevel.Task]) -> _Below:
        """Tasks of a nursery with what is below them, without those that have ended."""
        found = _Below([], {})
        for task in sorted(tasks, key=attrgetter("name")) if len(tasks) > 1 else tasks:
            if self._turns.due():
                await self._turns.give()
            place = self.places.place(task)
            if not place and ended(task):
                continue
            nurseries = task.child_nurseries
            if not nurseries:
                below = NOTHING_BELOW
            elif (only := _only_child(nurseries)) is None:
                below = await self._below(nurseries)
            else:
                below = _Below([], {})
                its_place = self.places.place(only)
                if its_place or not ended(only):
                    self._add(only, its_place, NOTHING_BELOW, below)
            self._add(task, place, below, found)
        return found

    def _add(self, task: trio.lowlevel.Task, place: str, below: _Below, found: _Below) -> None:
        self.tasks += 1
        asks = self._asks.get(task, "")
        kind = None if task in self._names else self._kind(task, place, asks, below)
        number = found.counts[kind] = found.counts.get(kind, 0) + 1
        if number <= ALIKE_MAX + 1 or kind is None or self.everything:
            found.seen.append(_Seen(task, place, asks, below, kind))

    def _kind(self, task: trio.lowlevel.Task, place: str, asks: str, below: _Below) -> Hashable:
        name = task.name.partition(" ")[0]
        if not below.counts:
            return name, place, asks
        if None in below.counts or len(below.seen) > ALIKE_MAX:
            return None
        return name, place, asks, next(iter(below.counts)) if len(below.seen) == 1 else frozenset(below.counts.items())

    async def _below(self, nurseries: Sequence[trio.Nursery]) -> _Below:
        first, *others = nurseries
        below = await self._visit(first.child_tasks)
        for nursery in others:
            more = await self._visit(nursery.child_tasks)
            below.seen.extend(more.seen)
            for kind, count in more.counts.items():
                below.counts[kind] = below.counts.get(kind, 0) + count
        return below

    async def below(self, root: trio.lowlevel.Task) -> tuple[TaskNode, ...]:
        """A task with all that is below it; nothing when it has ended."""
        return tuple([await self._node(seen) for seen in (await self._visit((root,))).seen])

    async def roots(self, main: trio.lowlevel.Task) -> tuple[TaskNode, ...]:
        """What is below the root task: the program, and Trio's own tasks, which have names in brackets."""
        below = await self._below(main.child_nurseries)
        seen = [seen for seen in below.seen if self.everything or not seen.task.name.startswith("<")]
        return await self._listed(_Below(seen, below.counts))

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
            children=await self._listed(seen.below) if seen.below.seen else (),
        )

    async def _listed(self, below: _Below) -> tuple[TaskNode, ...]:
        """Those that are worth a line each, and of many that are alike the first with the number of the others."""
        listed, told = [], set[Hashable]()
        for seen in below.seen:
            count = below.counts[seen.kind]
            if seen.kind is None or self.everything or count <= ALIKE_MAX:
                listed.append(await self._node(seen))
            elif seen.kind not in told:
                told.add(seen.kind)
                listed.append(await self._node(seen, count - 1))
        return tuple(listed)


def _only_child(nurseries: Sequence[trio.Nursery]) -> trio.lowlevel.Task | None:
    """The task below another one, if it is the only one and has none below it: nearly all are so, or have none."""
    if len(nurseries) > 1:
        return None
    tasks = nurseries[0].child_tasks
    if len(tasks) != 1:
        return None
    (task,) = tasks
    return None if task.child_nurseries else task


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
