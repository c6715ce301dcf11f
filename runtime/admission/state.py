"""All that a gate's later decisions depend on, as plain data: to write it down, and to go on from there."""

from __future__ import annotations

import math

import msgspec

from tripower.runtime.admission.accounts import Account, Waiter
from tripower.runtime.admission.caller import Caller
from tripower.runtime.admission.gate import Gate


class WaiterState(msgspec.Struct, frozen=True, array_like=True):
    """A ticket with a waiting place."""

    ticket: int
    order: tuple[float, int]
    deadline: float | None
    cost: float


class AccountState(msgspec.Struct, frozen=True, array_like=True):
    """An identity in the gate, without its name."""

    identity: str
    weight: float
    concurrency_max: int
    alone: bool
    counter: float
    floor: float
    waiting: tuple[WaiterState, ...]


class GateState(msgspec.Struct, frozen=True):
    """A gate between two calls. The order of the accounts and of the seats is part of it."""

    active_limit: int
    waiting_limit: int
    virtual_time: float
    arrivals: int
    accounts: tuple[AccountState, ...]
    active: tuple[tuple[int, str, float], ...]
    """Ticket, identity and what it was charged."""


def gate_state(gate: Gate[int]) -> GateState:
    """Synchronous; costs a microsecond for each ticket."""
    return GateState(
        active_limit=gate.active_limit,
        waiting_limit=gate.waiting_limit,
        virtual_time=gate._accounts.virtual_time,
        arrivals=gate._arrivals,
        accounts=tuple(map(_account_state, gate._accounts)),
        active=tuple((ticket, account.caller.identity, float(cost)) for ticket, (account, cost) in gate._active.items()),
    )


def _account_state(account: Account[int]) -> AccountState:
    caller = account.caller
    waiting = tuple(
        WaiterState(each.ticket, each.order, None if each.deadline == math.inf else each.deadline, float(each.cost))
        for each in account.waiting
    )
    return AccountState(
        caller.identity, caller.weight, caller.concurrency_max, caller.alone, account.counter, account.floor, waiting
    )


def restore_gate(gate: Gate[int], state: GateState) -> None:
    """Put a new gate with the same limits where another one was. Its figures begin at zero."""
    accounts = gate._accounts
    accounts.virtual_time = state.virtual_time
    gate._arrivals = state.arrivals
    for each in state.accounts:
        caller = Caller(identity=each.identity, weight=each.weight, concurrency_max=each.concurrency_max, alone=each.alone)
        account: Account[int] = Account(caller, each.counter, each.floor)
        accounts.put(account)
        for waiting in each.waiting:
            deadline = math.inf if waiting.deadline is None else waiting.deadline
            waiter = Waiter(waiting.ticket, waiting.order, deadline, waiting.cost)
            account.waiting.append(waiter)
            gate._waiting[waiting.ticket] = (account, waiter)
    by_identity = {account.caller.identity: account for account in accounts}
    for ticket, identity, cost in state.active:
        account = by_identity[identity]
        account.active += 1
        gate._active[ticket] = (account, cost)
