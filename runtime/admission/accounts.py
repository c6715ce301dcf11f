"""What a gate remembers of each identity: who of it waits, in which order, and how much service it has had.

**Between identities** service is measured in tokens. Each account has a counter of tokens by weight; a free seat goes to the account
with the lowest. That is the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), which is
start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) for service whose length nobody knows beforehand. An account that comes
back after a pause begins at the virtual time, which is the counter of whoever was served last: nobody saves up service by staying
away. A request is charged in advance with all that it may cost, prompt and longest answer, and what it did not use is given back when
it leaves. Asking for little is held to it, asking for much is charged for it at once, so there is nothing to gain by either.

**Within one identity** it is first come, first served among equals. A priority moves a request in time: each point counts as
`PRIORITY_SECONDS` of waiting. So a request is overtaken only by what arrives within `PRIORITY_SECONDS` times the difference of
priorities after it, 20 s at the very most, and never waits for ever. Priorities do not act on other identities at all.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Generic, TypeVar

import attrs

from tripower.runtime.admission.caller import Caller

T = TypeVar("T")

PRIORITY_MAX = 100
PRIORITY_SECONDS = 0.1
"""Of waiting that a point of priority is worth."""


@attrs.frozen(eq=False, slots=True)
class Waiter(Generic[T]):
    """A ticket with a waiting place. `order` is when it would have come with priority 0, then its number among the arrivals."""

    ticket: T
    order: tuple[float, int]
    deadline: float
    cost: float


@attrs.define(eq=False, slots=True)
class Account(Generic[T]):
    """One identity in one gate."""

    caller: Caller
    counter: float = 0.0
    """Tokens that were charged, divided by the weight, on the scale of the virtual time."""
    floor: float = 0.0
    """The virtual time at which it began to wait: what is given back does not reach behind it."""
    active: int = 0
    waiting: list[Waiter[T]] = attrs.Factory(list)

    @property
    def present(self) -> int:
        """Requests with a seat or a waiting place."""
        return self.active + len(self.waiting)

    def add(self, waiter: Waiter[T]) -> None:
        """Give a waiting place."""
        bisect.insort(self.waiting, waiter, key=lambda each: each.order)

    def charge(self, cost: float) -> None:
        """A request of this cost has a seat from now on."""
        self.active += 1
        self.counter += cost / self.caller.weight

    def give_back(self, unused: float) -> None:
        """A request has left its seat and has used so much less than it was charged; below 0, so much more.

        It does not reach behind the floor: who comes late in a busy time has no claim on what was served before.
        """
        self.active -= 1
        self.counter = max(self.counter - unused / self.caller.weight, self.floor)


class Accounts(Generic[T]):
    """All accounts of a gate, and its virtual time. An account without requests and without debt is forgotten."""

    def __init__(self) -> None:
        self.virtual_time = 0.0
        self._by_identity: dict[str, Account[T]] = {}

    def __iter__(self) -> Iterator[Account[T]]:
        return iter(self._by_identity.values())

    def __len__(self) -> int:
        return len(self._by_identity)

    def open(self, caller: Caller) -> Account[T]:
        """The account of whoever arrives, not behind the virtual time unless it waits already."""
        account = self._by_identity.get(caller.identity)
        if account is None:
            account = self._by_identity[caller.identity] = Account(caller)
        account.caller = caller  # its share may have changed since
        if not account.waiting:
            account.counter = max(account.counter, self.virtual_time)
            account.floor = self.virtual_time
        return account

    def put(self, account: Account[T]) -> None:
        """Add an account as it is."""
        self._by_identity[account.caller.identity] = account

    def seat(self, account: Account[T], cost: float) -> None:
        """Charge a request, and let the virtual time follow."""
        self.virtual_time = max(self.virtual_time, account.counter)
        account.charge(cost)

    def forget(self, account: Account[T]) -> None:
        """Drop an account that nobody needs any more."""
        if not account.present and account.counter <= self.virtual_time:
            self._by_identity.pop(account.caller.identity, None)

    def sweep(self) -> None:
        """Drop every account that nobody needs any more."""
        for account in list(self):
            self.forget(account)

    def share(self, account: Account[T], places: int) -> float:
        """How many of so many places are this account's, by the weights of those who are here."""
        present = sum(each.caller.weight for each in self if each.present or each is account)
        return places * account.caller.weight / present

    def others_present(self, account: Account[T]) -> bool:
        """Whether anybody else has a seat or a waiting place."""
        return any(each.present for each in self if each is not account)
