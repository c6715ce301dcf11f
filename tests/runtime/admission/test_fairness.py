"""The gate between identities: shares, order, displacement, and that nobody starves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.runtime.admission import PRIORITY_MAX, PRIORITY_SECONDS, Caller, Gate
from tripower.runtime.admission.gate import held_free
from tripower.runtime.kernel import DeadlineExceeded, Overloaded

FREE = math.inf
A, B, C = (Caller(identity=name, alone=False) for name in "abc")
Ticket = tuple[str, int]


def arrive(gate: Gate[Ticket], caller: Caller, number: int, *, now: float = 0.0, priority: int = 0, cost: float = 10.0) -> bool:
    ticket = (caller.identity, number)
    return gate.arrive(ticket, now=now, deadline=FREE, caller=caller, priority=priority, cost=cost)


def served(gate: Gate[Ticket], active: Sequence[Ticket], rounds: int, *, tokens: float | None = None) -> list[Ticket]:
    """Who gets the seats of those who have one, one after the other."""
    order: list[Ticket] = []
    seated = list(active)
    for _ in range(rounds):
        gate.leave(seated.pop(0), served=tokens)
        admitted, _ = gate.admit_waiting(now=0.0)
        order += admitted
        seated += admitted
    return order


@pytest.mark.parametrize(("seats", "held"), [(1, 0), (2, 1), (3, 1), (4, 1), (8, 2), (16, 4), (256, 64)])
def test_a_quarter_of_the_seats_is_kept_for_who_holds_few(seats: int, held: int) -> None:
    assert held_free(seats) == held
    gate: Gate[Ticket] = Gate(active_limit=seats, waiting_limit=2 * seats)
    assert sum(arrive(gate, A, number) for number in range(2 * seats)) == seats - held
    assert not gate.can_admit
    assert all(arrive(gate, B, number) for number in range(held))
    assert gate.active == seats


def test_who_is_alone_gets_every_seat() -> None:
    gate: Gate[Ticket] = Gate(active_limit=8, waiting_limit=8)
    assert all(arrive(gate, Caller(identity="a"), number) for number in range(8))


def test_seats_go_in_turns_however_many_one_has_waiting() -> None:
    gate: Gate[Ticket] = Gate(active_limit=1, waiting_limit=100)
    for number in range(20):
        arrive(gate, A, number)
    for number in range(3):
        arrive(gate, B, number)
    order = served(gate, [("a", 0)], 8)
    assert [name for name, _ in order] == ["b", "a", "b", "a", "b", "a", "a", "a"]
    assert [number for name, number in order if name == "a"] == [1, 2, 3, 4, 5]


def test_shares_are_of_tokens_and_by_weight() -> None:
    heavy = Caller(identity="h", weight=3.0, alone=False)
    gate: Gate[Ticket] = Gate(active_limit=1, waiting_limit=200)
    for number in range(80):
        arrive(gate, heavy, number, cost=10)
        arrive(gate, A, number, cost=5)
    counts = Counter(name for name, _ in served(gate, [("h", 0)], 80))
    assert abs(counts["h"] * 10 - 3 * counts["a"] * 5) <= 40  # tokens by 3 to 1


def test_what_was_not_used_is_given_back() -> None:
    gate: Gate[Ticket] = Gate(active_limit=1, waiting_limit=100)
    for number in range(30):
        arrive(gate, A, number, cost=1000)  # asks for much and takes 10
        arrive(gate, B, number, cost=10)
    counts = Counter(name for name, _ in served(gate, [("a", 0)], 40, tokens=10))
    assert abs(counts["a"] - counts["b"]) <= 2


def test_asking_for_little_and_taking_much_is_charged_too() -> None:
    gate: Gate[Ticket] = Gate(active_limit=1, waiting_limit=100)
    for number in range(30):
        arrive(gate, A, number, cost=1)
        arrive(gate, B, number, cost=20)
    order = served(gate, [("a", 0)], 30, tokens=20)
    counts = Counter(name for name, _ in order)
    assert abs(counts["a"] - counts["b"]) <= 2


def test_nobody_saves_up_service_by_staying_away() -> None:
    gate: Gate[Ticket] = Gate(active_limit=1, waiting_limit=100)
    for number in range(40):
        arrive(gate, A, number)
    first = served(gate, [("a", 0)], 20)
    for number in range(10):
        arrive(gate, B, number)
    order = served(gate, [first[-1]], 10)
    assert Counter(name for name, _ in order) == {"a": 5, "b": 5}


def test_a_priority_moves_a_request_in_time_and_only_before_those_of_the_same_identity() -> None:
    gate: Gate[Ticket] = Gate(active_limit=1, waiting_limit=100)
    arrive(gate, C, 0)
    arrive(gate, A, 0, now=1.0)
    arrive(gate, A, 1, now=1.5, priority=4)  # worth 0.4 s: too little
    arrive(gate, A, 2, now=1.5, priority=6)
    arrive(gate, B, 0, now=2.0, priority=-100)
    assert served(gate, [("c", 0)], 4) == [("a", 2), ("b", 0), ("a", 0), ("a", 1)]


@pytest.mark.parametrize("priority", [PRIORITY_MAX, 10**9])
def test_who_waits_longest_is_overtaken_for_a_bounded_time_only(priority: int) -> None:
    bound = 2 * PRIORITY_MAX * PRIORITY_SECONDS
    gate: Gate[Ticket] = Gate(active_limit=1, waiting_limit=100)
    arrive(gate, A, 0)
    arrive(gate, A, 1, priority=-priority)
    arrive(gate, A, 2, now=bound - 0.01, priority=priority)
    arrive(gate, A, 3, now=bound + 0.01, priority=priority)
    assert served(gate, [("a", 0)], 3) == [("a", 2), ("a", 1), ("a", 3)]


def test_a_full_waiting_room_refuses_the_newest_of_who_has_most() -> None:
    gate: Gate[Ticket] = Gate(active_limit=1, waiting_limit=4)
    for number in range(5):
        arrive(gate, A, number)
    assert arrive(gate, B, 0) is False
    assert gate.take_displaced() == [("a", 4)] and gate.take_displaced() == []
    with pytest.raises(Overloaded) as caught:  # a has the most itself
        arrive(gate, A, 5)
    assert (caught.value.code, caught.value.status, caught.value.kind) == ("share_exceeded", 429, "rate_limit_error")
    assert caught.value.retryable
    arrive(gate, B, 1)
    with pytest.raises(Overloaded) as caught:  # two each: nobody has more than its share
        arrive(gate, B, 2)
    figures = gate.statistics()
    assert (figures.waiting, figures.rejections, figures.displaced) == (4, 4, 2)
    assert figures.arrivals == figures.admitted + figures.rejections + figures.waiting


def test_a_full_server_is_503_for_whoever_has_no_more_than_its_share() -> None:
    gate: Gate[Ticket] = Gate(active_limit=1, waiting_limit=2)
    for caller in (A, B, C):
        arrive(gate, caller, 0)
    with pytest.raises(Overloaded) as caught:
        arrive(gate, Caller(identity="d", alone=False), 0)
    assert (caught.value.code, caught.value.status) == ("queue_full", 503)


def test_seats_that_are_kept_for_others_are_a_matter_of_share() -> None:
    gate: Gate[Ticket] = Gate(active_limit=4, waiting_limit=0)
    for number in range(3):
        arrive(gate, A, number)
    with pytest.raises(Overloaded) as caught:
        arrive(gate, A, 3)
    assert caught.value.code == "share_exceeded"
    assert arrive(gate, B, 0)


def test_an_identity_may_have_a_limit_of_its_own() -> None:
    limited = Caller(identity="l", concurrency_max=2, alone=False)
    gate: Gate[Ticket] = Gate(active_limit=1, waiting_limit=10)
    arrive(gate, limited, 0)
    arrive(gate, limited, 1)
    with pytest.raises(Overloaded) as caught:
        arrive(gate, limited, 2)
    assert (caught.value.code, caught.value.status) == ("concurrency_exceeded", 429)
    gate.leave(("l", 1))
    assert arrive(gate, limited, 2) is False


def test_accounts_are_forgotten_when_nothing_is_owed() -> None:
    gate: Gate[Ticket] = Gate(active_limit=2, waiting_limit=10)
    for number in range(5000):
        caller = Caller(identity=f"key-{number}", alone=False)
        assert arrive(gate, caller, number)
        gate.leave((caller.identity, number), served=0.0)
    assert len(gate._accounts) <= 1025


acts = st.tuples(
    st.sampled_from(["arrive", "arrive", "leave", "admit", "pass"]),
    st.sampled_from([A, B, C, Caller(identity="w", weight=4.0, concurrency_max=3, alone=False)]),
    st.integers(0, 12),
    st.integers(-3, 3),
)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 5), st.integers(0, 4), st.lists(acts, max_size=60))
def test_no_permit_is_lost_and_the_counters_add_up(seats: int, room: int, plan: list[tuple[str, Caller, int, int]]) -> None:
    gate: Gate[Ticket] = Gate(active_limit=seats, waiting_limit=room)
    gone: list[Ticket] = []
    gate.on_gone = gone.append
    inside: list[Ticket] = []
    entered, now = 0, 0.0
    for act, caller, number, priority in plan:
        if act == "pass":
            now += number
        elif act == "leave" and inside:
            gate.leave(inside.pop(number % len(inside)), expired=priority > 2, served=float(number))
        elif act == "admit":
            _, expired = gate.admit_waiting(now=now)
            inside = [ticket for ticket in inside if ticket not in expired]
            assert not gate.can_admit
        elif act == "arrive":
            ticket = (caller.identity, 1000 + entered)
            entered += 1
            try:
                gate.arrive(ticket, now=now, deadline=now + number, caller=caller, priority=priority, cost=number)
                inside.append(ticket)
            except (DeadlineExceeded, Overloaded):
                pass
            displaced = gate.take_displaced()
            inside = [ticket for ticket in inside if ticket not in displaced]
        assert sorted(gate.tickets()) == sorted(inside)
        figures = gate.statistics()
        assert figures.active <= seats and figures.waiting <= room
        assert figures.arrivals == (
            figures.admitted + figures.rejections + figures.cancelled_waiters + figures.expirations + figures.waiting
        )
    for ticket in inside:
        gate.leave(ticket)
    assert (gate.active, gate.waiting) == (0, 0) and len(gone) == len(set(gone))


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from([A, B, C]), st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=60),
)
def test_nobody_starves_and_within_one_identity_it_is_first_come_first_served(
    seats: int, requests: list[tuple[Caller, int, int]]
) -> None:
    gate: Gate[Ticket] = Gate(active_limit=seats, waiting_limit=100)
    order: list[Ticket] = []
    seated: list[tuple[Ticket, float]] = []
    used = {}
    for number, (caller, cost, tokens) in enumerate(requests):
        ticket = (caller.identity, number)
        used[ticket] = float(min(tokens, cost))
        if arrive(gate, caller, number, cost=cost):
            order.append(ticket)
            seated.append((ticket, used[ticket]))
    while seated:
        ticket, tokens_used = seated.pop(0)
        gate.leave(ticket, served=tokens_used)
        for other in gate.admit_waiting(now=0.0)[0]:
            order.append(other)
            seated.append((other, used[other]))
    assert len(order) == len(requests) and (gate.active, gate.waiting) == (0, 0)
    for caller in (A, B, C):
        numbers = [number for name, number in order if name == caller.identity]
        assert numbers == sorted(numbers)
