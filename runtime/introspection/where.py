"""Where an actor, a task or a thread is: its stack, with our own lines first."""

from __future__ import annotations

import msgspec
import trio

from tripower.runtime.introspection.frames import Frame, await_frames, ended, thread_frames, thread_names, with_text
from tripower.runtime.introspection.task_tree import askers, state_of
from tripower.runtime.introspection.turns import Turns
from tripower.runtime.kernel import ActorSystem, NotFound

STACKS_MAX = 16
"""Of one question. More are counted."""


class Stack(msgspec.Struct, frozen=True):
    """What one task or thread is in. The innermost frame comes first."""

    name: str
    state: str
    """`waiting`, `ready` or `running`; of a thread always `running`."""
    asks: str
    """Whose answer it waits for, and the message."""
    frames: tuple[Frame, ...]


class Stacks(msgspec.Struct, frozen=True):
    """All that go by one name."""

    name: str
    stacks: tuple[Stack, ...]
    more: int = 0
    """So many others are not listed."""


async def where(system: ActorSystem, name: str) -> Stacks:
    """The stacks of an actor and of its own tasks, or of the tasks with this name, or whose name ends with it, as a request's id.

    Raises `NotFound`. Blocks for a few turns of the loop.
    """
    tasks = await _every_task()
    found = _of_actor(system, name) or [task for task in tasks if task.name == name] or [
        task for task in tasks if task.name.endswith((f"/{name}", f" {name}"))
    ]  # fmt: skip
    if not found:
        from tripower.runtime.configuration import nearest  # clients know this module too, and need none of that

        close = nearest(name[:200], [cell.name for cell in system.cells()])
        raise NotFound(
            f"there is no actor, task or request {name[:200]!r}{close}: see `tree` and `requests`", code="task_not_found"
        )
    asks = askers(system)
    stacks: list[Stack] = []
    for task in found[:STACKS_MAX]:
        if ended(task):
            continue
        state, frames = state_of(task, trio.lowlevel.current_task()), await_frames(task)
        stacks.append(Stack(task.name, state, asks.get(task, ""), tuple(await with_text(frames))))
    return Stacks(name, tuple(stacks), max(0, len(found) - STACKS_MAX))


async def where_thread(thread_id: int) -> Stack | None:
    """What a thread of this process executes; None when there is no such thread."""
    frames = thread_frames(thread_id)
    if not frames:
        return None
    return Stack(thread_names().get(thread_id, f"thread {thread_id}"), "running", "", tuple(await with_text(frames)))


async def where_threads() -> Stacks:
    """What every thread of this process executes. The loop's own is at this question."""
    stacks = [await where_thread(thread_id) for thread_id in thread_names()]
    return Stacks("threads", tuple(stack for stack in stacks if stack is not None))


def _of_actor(system: ActorSystem, name: str) -> list[trio.lowlevel.Task]:
    """An actor's task, and those that it started itself; not its children's."""
    actors = {cell.task: cell.name for cell in system.cells() if cell.task is not None}
    for task, each in actors.items():
        if each == name:
            started = [child for nursery in task.child_nurseries for child in nursery.child_tasks if child not in actors]
            return [task, *sorted(started, key=lambda child: child.name)]
    return []


async def _every_task() -> list[trio.lowlevel.Task]:
    """The tasks of this loop; those that end meanwhile may be among them."""
    tasks: list[trio.lowlevel.Task] = []
    root = trio.lowlevel.current_root_task()
    left = [] if root is None else [root]
    turns = Turns()
    while left:
        if turns.due():
            await turns.give()
        task = left.pop()
        if not ended(task):
            tasks.append(task)
            left += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    await trio.lowlevel.checkpoint()
    return tasks
