"""A bounded admission point: so many inside, so many waiting, fair between identities, first come first served within one.

Plain synchronous bookkeeping. The owner asks at an arrival, at a departure and before it fills free places; the gate answers at once
and never waits. A ticket is whatever the owner uses to tell its requests apart. `accounts` says who is served next, and why.

The order of the questions at an arrival: is the time over, has the identity as many requests as it may have, is a place free for it and
nobody waiting who could take it, is the waiting room full. Without identities everybody is one, and the gate a plain bounded queue.

**A full waiting room** refuses whoever is most over its share of it, not whoever happens to come: the newest waiting request of the
identity that has most waiting, by weight, makes room for one that has less. It is in `take_displaced` then.

**Seats held free.** Requests are long and are not interrupted, so an identity with every seat would let the next one wait for the first
of them to end, however fair the order is. Where several can ask, the last quarter of the seats therefore goes only to identities that
hold fewer than that. It costs a lone noisy identity a quarter of the batch, and the next one finds a seat.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from tripower.runtime.admission.accounts import PRIORITY_MAX, PRIORITY_SECONDS, Account, Accounts, Waiter
from tripower.runtime.admission.caller import ANYBODY, Caller
from tripower.runtime.kernel import DeadlineExceeded, Overloaded

T = TypeVar("T", bound=Hashable)

LIMIT_MAX = 65_536
SHARE_EXCEEDED = "share_exceeded"
"""The code of a refusal because of what the same identity has already."""
HELD_FREE = 4
"""One seat of so many goes only to who holds few."""
ACCOUNTS_KEPT = 1024
"""More than this, and those that nobody needs are dropped."""


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
    share_rejections: int = 0
    """Of the rejections, those of an identity over its share or its own limit."""
    displaced: int = 0
    """Of those, the ones that had a waiting place before."""


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
        self.held_free = held_free(active_limit)
        self.on_gone: Callable[[T], None] = lambda ticket: None
        """Called with every ticket that has neither a seat nor a waiting place any more. Synchronous, must not raise."""
        self._accounts: Accounts[T] = Accounts()
        self._active: dict[T, tuple[Account[T], float]] = {}
        """With what each was charged."""
        self._waiting: dict[T, tuple[Account[T], Waiter[T]]] = {}
        self._displaced: list[T] = []
        self._peak_active = self._peak_waiting = 0
        self._arrivals = self._admitted = self._rejections = self._cancelled = self._expirations = 0
        self._share_rejections = self._displacements = 0

    def arrive(
        self,
        ticket: T,
        *,
        now: float,
        deadline: float,
        caller: Caller = ANYBODY,
        priority: int = 0,
        cost: float = 1.0,
    ) -> bool:
        """True: admitted. False: waiting. `cost` is the most tokens that the request can take, prompt and answer.

        Raises `DeadlineExceeded`, or `Overloaded`: 503 `queue_full` when the server is full, 429 `share_exceeded` when it is this
        identity that has more than its share, 429 `concurrency_exceeded` when it has as much as it may have.
        """
        assert ticket not in self._active and ticket not in self._waiting
        self._arrivals += 1
        if deadline <= now:
            self._expirations += 1
            raise DeadlineExceeded("the deadline had passed when the request arrived")
        account = self._accounts.open(caller)
        if caller.concurrency_max and account.present >= caller.concurrency_max:
            raise self._over_share(
                f"this key already has the {caller.concurrency_max} requests that it may have at once", "concurrency_exceeded"
            )
        if self._may_seat(account) and not self.can_admit:
            self._seat(ticket, account, cost)
            return True
        if len(self._waiting) >= self.waiting_limit:
            self._make_room(account)
        priority = max(-PRIORITY_MAX, min(priority, PRIORITY_MAX))
        waiter = Waiter(ticket, (now - priority * PRIORITY_SECONDS, self._arrivals), deadline, cost)
        account.add(waiter)
        self._waiting[ticket] = (account, waiter)
        self._peak_waiting = max(self._peak_waiting, len(self._waiting))
        return False

    def admit_waiting(self, *, now: float) -> tuple[list[T], list[T]]:
        """Give free places to whoever is next. Returns who was admitted, and whose deadline had passed instead."""
        admitted: list[T] = []
        expired: list[T] = []
        while (account := self._next()) is not None:
            waiter = account.waiting.pop(0)
            del self._waiting[waiter.ticket]
            if waiter.deadline <= now:
                self._expirations += 1
                expired.append(waiter.ticket)
                self._gone(waiter.ticket, account)
            else:
                self._seat(waiter.ticket, account, waiter.cost)
                admitted.append(waiter.ticket)
        return admitted, expired

    def leave(self, ticket: T, *, expired: bool = False, served: float | None = None) -> None:
        """Give a permit back, or stop waiting (`expired`: because time was up). Synchronous and idempotent.

        `served`: tokens that it really took; None: all that it was charged for.
        """
        if ticket in self._waiting:
            account, waiter = self._waiting.pop(ticket)
            account.waiting.remove(waiter)
            if expired:
                self._expirations += 1
            else:
                self._cancelled += 1
            self._gone(ticket, account)
        elif ticket in self._active:
            account, cost = self._active.pop(ticket)
            account.give_back(0.0 if served is None else cost - served)
            self._gone(ticket, account)

    def take_displaced(self) -> list[T]:
        """Who lost a waiting place to another identity since the last call: the owner tells them `displacement()`."""
        displaced, self._displaced = self._displaced, []
        return displaced

    @property
    def can_admit(self) -> bool:
        """Whether a place is free that somebody who waits may take."""
        return self._next() is not None

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def waiting_of(self, caller: Caller) -> tuple[int, float]:
        """How many requests of an identity wait, and how many of the seats are its share among those who are here."""
        account = self._accounts.open(caller)
        waiting, share = len(account.waiting), self._accounts.share(account, self.active_limit)
        self._accounts.forget(account)
        return waiting, share

    def rank(self, ticket: T) -> int:
        """Of somebody with a seat, where its prompt stands among the prompts that are read at the same time: lower goes first.

        It is how many seats its identity holds, so that prompts of who holds many wait for the prompt of who holds few.
        """
        account, _ = self._active[ticket]
        return 0 if account.caller.alone else account.active

    def tickets(self) -> list[T]:
        """Everybody with a seat or a waiting place."""
        return [*self._active, *self._waiting]

    def identities(self) -> list[tuple[Caller, int, int]]:
        """Whoever is here: how many of its requests have a seat, and how many wait."""
        return [(each.caller, each.active, len(each.waiting)) for each in self._accounts if each.present]

    def waiting_before(self, ticket: T) -> int:
        """How many of the same identity wait in front of a ticket."""
        if ticket not in self._waiting:
            return 0
        account, waiter = self._waiting[ticket]
        return account.waiting.index(waiter)

    def _may_seat(self, account: Account[T]) -> bool:
        free = self.active_limit - len(self._active)
        if free > self.held_free or account.caller.alone:
            return free > 0
        return free > 0 and account.active < self.held_free

    def _next(self) -> Account[T] | None:
        """Whose turn it is: of those who wait and may take a seat, the one that has had the least."""
        if not self._waiting or len(self._active) >= self.active_limit:
            return None
        ready = [account for account in self._accounts if account.waiting and self._may_seat(account)]
        return min(ready, key=lambda account: (account.counter, account.waiting[0].order), default=None)

    def _seat(self, ticket: T, account: Account[T], cost: float) -> None:
        self._accounts.seat(account, cost)
        self._active[ticket] = (account, cost)
        self._admitted += 1
        self._peak_active = max(self._peak_active, len(self._active))

    def _make_room(self, account: Account[T]) -> None:
        """Take the place of whoever has most of the waiting room, if that is more than this account would have. Else raise."""
        waiting = [each for each in self._accounts if each.waiting]
        most = max(waiting, key=lambda each: len(each.waiting) / each.caller.weight, default=account)
        mine = (len(account.waiting) + 1) / account.caller.weight
        if most is not account and len(most.waiting) / most.caller.weight > mine:
            waiter = most.waiting.pop()
            del self._waiting[waiter.ticket]
            self._displaced.append(waiter.ticket)
            self._rejections += 1
            self._share_rejections += 1
            self._displacements += 1
            self._gone(waiter.ticket, most)
            return
        places = self.active_limit + self.waiting_limit
        kept = len(self._active) < self.active_limit  # for others
        share = max(1.0, self._accounts.share(account, places))
        over = self._accounts.others_present(account) and account.present + 1 > share
        if kept or over:
            raise self._over_share("this key has more than its share of a busy server; try again later", SHARE_EXCEEDED)
        self._rejections += 1
        raise Overloaded(f"all {self.active_limit} places and {self.waiting_limit} waiting places are taken; try again later")

    def _over_share(self, message: str, code: str) -> Overloaded:
        self._rejections += 1
        self._share_rejections += 1
        return Overloaded(message, code=code, status=429, kind="rate_limit_error")

    def _gone(self, ticket: T, account: Account[T]) -> None:
        self._accounts.forget(account)
        if len(self._accounts) > ACCOUNTS_KEPT:
            self._accounts.sweep()
        self.on_gone(ticket)

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
            share_rejections=self._share_rejections,
            displaced=self._displacements,
        )


def held_free(seats: int) -> int:
    """Of so many seats, those that are for who holds few; none where there is one seat only."""
    return 0 if seats < 2 else max(1, seats // HELD_FREE)


def places_max(caller: Caller, *, seats: int, waiting: int) -> int:
    """How many requests an identity can have at once, seated and waiting, while nobody else has any."""
    places = waiting + (seats if caller.alone else seats - held_free(seats))
    return min(places, caller.concurrency_max) if caller.concurrency_max else places


def displacement() -> Overloaded:
    """What a request hears that lost its waiting place."""
    return Overloaded(
        "this key has more than its share of a busy server, and its newest request made room for another; try again later",
        code=SHARE_EXCEEDED,
        status=429,
        kind="rate_limit_error",
    )
