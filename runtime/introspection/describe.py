"""A running system in plain text, for the log: who does what, who waits for what, and where each thread is."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from tripower.runtime.introspection.frames import Frame, thread_frames, thread_names
from tripower.runtime.introspection.task_tree import lines, task_tree
from tripower.runtime.kernel import ActorStatistics, ActorSystem

LINES_MAX = 300
THREADS_MAX = 16
FRAMES_MAX = 12
"""Of one thread, the innermost."""


async def describe(system: ActorSystem) -> str:
    """Actors, tasks and threads, at most `LINES_MAX` lines; no prompt, no key. Blocks for a few turns of the loop."""
    tree = await task_tree(system)
    told = ["actors:", *map(_actor, system.statistics()), f"tasks ({tree.tasks}):", *lines(tree.roots), "threads:", *_threads()]
    if len(told) > LINES_MAX:
        told[LINES_MAX - 1 :] = [f"and {len(told) - LINES_MAX + 1} lines more"]
    return "\n".join(told)


def _actor(actor: ActorStatistics) -> str:
    words = [f"  {actor.name} {actor.state}"]
    if actor.message is not None:
        words.append(f"{actor.message} for {actor.handling_seconds:.3g} s")
    if actor.deadline_left is not None:
        words.append(f"{actor.deadline_left:.3g} s left")
    words.append(f"inbox {actor.inbox}/{actor.inbox_max} (peak {actor.inbox_peak}), {actor.pending} pending")
    if actor.restarts or actor.crashes:
        words.append(f"{actor.crashes} crashes, {actor.restarts} restarts")
    return ", ".join(words)


def _threads() -> Iterator[str]:
    """Every thread but the loop's, which describes itself; a line of ours is marked."""
    names = thread_names()
    names.pop(threading.get_ident(), None)
    for thread_id, name in list(names.items())[:THREADS_MAX]:
        yield f"  {name}"
        yield from map(_frame, thread_frames(thread_id)[:FRAMES_MAX])


def _frame(frame: Frame) -> str:
    return f"  {'>' if frame.own else ' '} {frame}"
