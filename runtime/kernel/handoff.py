"""The one way in which something owned crosses from one task to another.

A giver calls `give` and learns at once whether the taker has it. There is no third state: either `take` returns the value, even if
its scope is cancelled in the same turn, or `give` returned False and the giver still owns it. A zero-capacity channel with
`send_nowait` makes the same promise; this is that channel for one value, without its two objects and its checkpoints, since every
answer to an `ask` passes here.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import outcome
import trio

T = TypeVar("T")


class HandOff(Generic[T]):
    """One value, given once. The taker must enter `take` with no checkpoint after it made the hand-off known to the giver."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None

    @property
    def waiting(self) -> bool:
        """Whether somebody is there to receive."""
        return self._task is not None

    async def take(self) -> T:
        """Wait for the value, or raise what `fail` was called with. Blocks; always a checkpoint."""
        self._task = trio.lowlevel.current_task()
        value: T = await trio.lowlevel.wait_task_rescheduled(self._abort)
        return value

    def give(self, value: T) -> bool:
        """Hand the value over. False: nobody is waiting (any more), and the caller still owns it. Synchronous."""
        task = self._task
        if task is None:
            return False
        self._task = None
        trio.lowlevel.reschedule(task, outcome.Value(value))
        return True

    def fail(self, error: BaseException) -> bool:
        """Make `take` raise. False as in `give`. Synchronous."""
        task = self._task
        if task is None:
            return False
        self._task = None
        trio.lowlevel.reschedule(task, outcome.Error(error))
        return True

    def abandoned(self) -> None:
        """Called when the taker is cancelled before it was given anything. Must not raise."""

    def _abort(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self._task = None
        self.abandoned()
        return trio.lowlevel.Abort.SUCCEEDED
