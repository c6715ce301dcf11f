"""A stream from one actor to one reader that never makes the actor wait.

The room is agreed beforehand: whoever opens an outlet says how many items it may carry at most, so `put` always fits. The reader
takes everything that has queued in one go, which is how several events become one write on a socket.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

import outcome
import trio

T = TypeVar("T")


class Outlet(Generic[T]):
    """One writer, one reader. `put` and `leave` are synchronous; `receive` blocks."""

    __slots__ = ("_items", "_left", "_reader", "_room")

    def __init__(self, room: int) -> None:
        self._items: deque[T] = deque()
        self._room = room
        self._reader: trio.lowlevel.Task | None = None
        self._left = False

    @property
    def left(self) -> bool:
        """Whether the reader has gone: further items are dropped."""
        return self._left

    @property
    def newest(self) -> T | None:
        """The last item that nobody has received; None where there is none."""
        return self._items[-1] if self._items else None

    def put(self, item: T) -> None:
        """Append an item and wake the reader. More items than agreed is a programming error."""
        if self._left:
            return
        assert self._room > 0, "an outlet carries no more than was agreed"
        self._room -= 1
        self._items.append(item)
        if self._reader is not None:
            reader, self._reader = self._reader, None
            trio.lowlevel.reschedule(reader)

    async def receive(self) -> list[T]:
        """Everything that has queued, at least one item. Blocks until there is one; always a checkpoint."""
        if self._items:
            await trio.lowlevel.checkpoint()
        else:
            assert self._reader is None, "an outlet has one reader"
            self._reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        items = list(self._items)
        self._items.clear()
        return items

    def leave(self) -> None:
        """The reader wants nothing more. Idempotent. A `receive` that is under way in another task ends with `ClosedResourceError`."""
        self._left = True
        self._items.clear()
        if self._reader is not None:
            reader, self._reader = self._reader, None
            trio.lowlevel.reschedule(reader, outcome.Error(trio.ClosedResourceError("the reader has left")))

    def _abort(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED
