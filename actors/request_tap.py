"""Hearing what a request hears, while somebody follows it. Nobody else pays for that.

What a queue says to a request goes through the request's outlet. A tap is put in front of that outlet, for this one request, and takes
down each event with its time before it passes it on. It never makes the queue wait: beyond `EVENTS_MAX` that nobody has read, events
are only counted.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import attrs
import trio

from tripower.actors.queueing import Leave
from tripower.runtime.kernel import Outlet

EVENTS_MAX = 4096


@attrs.frozen
class Heard:
    """An event of a request, when it passed on Trio's clock, and the ticket that it was for."""

    at: float
    ticket: int
    event: Any


class Tap:
    """One listener, of any number of tickets."""

    def __init__(self) -> None:
        self._heard: deque[Heard] = deque()
        self._news = trio.Event()
        self._open = True
        self.missed = 0
        """Events that passed while too many had not been read."""

    def hear(self, ticket: int, event: Any) -> None:
        """An event passes. Synchronous; never raises."""
        if not self._open:
            return
        if len(self._heard) < EVENTS_MAX:
            self._heard.append(Heard(trio.current_time(), ticket, event))
            self._news.set()
        else:
            self.missed += 1

    def close(self) -> None:
        """Nobody listens any more. Synchronous, idempotent."""
        self._open = False
        self._heard.clear()

    async def wait(self) -> None:
        """Until something was heard that has not been taken."""
        await self._news.wait()

    def take(self) -> list[Heard]:
        """What was heard since. Synchronous."""
        heard = list(self._heard)
        self._heard.clear()
        self._news = trio.Event()
        return heard


class TappedOutlet(Outlet[Any]):
    """An outlet, with a tap in front of it, for whoever puts events in."""

    __slots__ = ("_deadline", "_outlet", "_tap", "_ticket")

    def __init__(self, outlet: Outlet[Any], tap: Tap, ticket: int, deadline: float) -> None:
        super().__init__(0)
        self._outlet, self._tap, self._ticket, self._deadline = outlet, tap, ticket, deadline

    @property
    def left(self) -> bool:
        """See `Outlet.left`."""
        return self._outlet.left

    def put(self, item: Any) -> None:
        """See `Outlet.put`."""
        self._tap.hear(self._ticket, item)
        self._outlet.put(item)

    def leave(self) -> None:
        """The reader has gone, and the queue has heard of it."""
        self._tap.hear(self._ticket, Leave(self._ticket, expired=trio.current_time() >= self._deadline))
        self._outlet.leave()
