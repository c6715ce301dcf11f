"""A bounded admission point: so many inside, so many waiting, first come first served, nobody jumps the queue.

Plain synchronous bookkeeping. The owner asks at an arrival, at a departure and before it fills free places; the gate answers at once
and never waits. A ticket is whatever the owner uses to tell its requests apart.

The order of the questions at an arrival: is the time over, is a place free and nobody waiting, is the waiting room full.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from tripower.runtime.kernel import DeadlineExceeded, Overloaded

T = TypeVar("T", bound=Hashable)

LIMIT_MAX = 65_536


class GateStatistics(msgspec.Struct, frozen=True):
    """Arrivals end up in exactly one of `admitted`, `rejections`, `cancelled_waiters`, `expirations`, or still wait."""

    active_limit: int
    waiting_limit: int
    active: int
    waiting: int
    peak_active: int
    peak_waiting: int
    arrivals: int
    admitted: int
    rejections: int
    cancelled_waiters: int
    expirations: int


class Gate(Generic[T]):
    """`active_limit` (at least 1) permits and room for `waiting_limit` (0: fail at once) waiters.

    Raises `ValueError` for limits out of range: they are never clamped in silence.
    """

    def __init__(self, *, active_limit: int, waiting_limit: int) -> None:
        if not 1 <= active_limit <= LIMIT_MAX:
            raise ValueError(f"active_limit must be in 1..{LIMIT_MAX}, not {active_limit}")
        if not 0 <= waiting_limit <= LIMIT_MAX:
            raise ValueError(f"waiting_limit must be in 0..{LIMIT_MAX}, not {waiting_limit}")
        self.active_limit = active_limit
        self.waiting_limit = waiting_limit
        self._active: set[T] = set()
        self._waiting: OrderedDict[T, float] = OrderedDict()
        self._peak_active = self._peak_waiting = 0
        self._arrivals = self._admitted = self._rejections = self._cancelled = self._expirations = 0

    def arrive(self, ticket: T, *, now: float, deadline: float) -> bool:
        """True: admitted. False: waiting. Raises `DeadlineExceeded` or `Overloaded` (`queue_full`)."""
        assert ticket not in self._active and ticket not in self._waiting
        self._arrivals += 1
        if deadline <= now:
            self._expirations += 1
            raise DeadlineExceeded("the deadline had passed when the request arrived")
        if not self._waiting and len(self._active) < self.active_limit:
            self._admit(ticket)
            return True
        if len(self._waiting) >= self.waiting_limit:
            self._rejections += 1
            raise Overloaded(
                f"all {self.active_limit} places and {self.waiting_limit} waiting places are taken; try again later"
            )
        self._waiting[ticket] = deadline
        self._peak_waiting = max(self._peak_waiting, len(self._waiting))
        return False

    def admit_waiting(self, *, now: float) -> tuple[list[T], list[T]]:
        """Give free places to the longest waiting. Returns who was admitted, and whose deadline had passed instead."""
        admitted: list[T] = []
        expired: list[T] = []
        while self._waiting and len(self._active) < self.active_limit:
            ticket, deadline = self._waiting.popitem(last=False)
            if deadline <= now:
                self._expirations += 1
                expired.append(ticket)
            else:
                self._admit(ticket)
                admitted.append(ticket)
        return admitted, expired

    def leave(self, ticket: T, *, expired: bool = False) -> None:
        """Give a permit back, or stop waiting (`expired`: because time was up). Synchronous and idempotent."""
        if ticket in self._waiting:
            del self._waiting[ticket]
            if expired:
                self._expirations += 1
            else:
                self._cancelled += 1
        else:
            self._active.discard(ticket)

    def waiting_before(self, ticket: T) -> int:
        """How many wait in front of a ticket."""
        for place, other in enumerate(self._waiting):
            if other == ticket:
                return place
        return 0

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _admit(self, ticket: T) -> None:
        self._active.add(ticket)
        self._admitted += 1
        self._peak_active = max(self._peak_active, len(self._active))

    def statistics(self) -> GateStatistics:
        return GateStatistics(
            active_limit=self.active_limit,
            waiting_limit=self.waiting_limit,
            active=len(self._active),
            waiting=len(self._waiting),
            peak_active=self._peak_active,
            peak_waiting=self._peak_waiting,
            arrivals=self._arrivals,
            admitted=self._admitted,
            rejections=self._rejections,
            cancelled_waiters=self._cancelled,
            expirations=self._expirations,
        )
