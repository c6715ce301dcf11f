"""The admission point against its acceptance checks (scheduling and service, §1.7) and against a model."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.runtime.admission import Caller, Gate, places_max
from tripower.runtime.kernel import DeadlineExceeded, Overloaded

FREE = math.inf


def arrive(gate: Gate[str], *tickets: str, now: float = 0.0, deadline: float = FREE) -> list[bool]:
    return [gate.arrive(ticket, now=now, deadline=deadline) for ticket in tickets]


def admitted(gate: Gate[str], now: float = 0.0) -> list[str]:
    return gate.admit_waiting(now=now)[0]


def books_balance(gate: Gate[str]) -> bool:
    s = gate.statistics()
    return s.arrivals == s.admitted + s.rejections + s.cancelled_waiters + s.expirations + s.waiting


def test_the_second_waits_and_the_third_is_refused() -> None:
    gate: Gate[str] = Gate(active_limit=1, waiting_limit=1)
    assert arrive(gate, "a", "b") == [True, False]
    with pytest.raises(Overloaded, match="all 1 places and 1 waiting places are taken") as caught:
        arrive(gate, "c")
    assert caught.value.code == "queue_full" and caught.value.status == 503 and caught.value.retryable
    gate.leave("a")
    assert admitted(gate) == ["b"]
    s = gate.statistics()
    assert (s.waiting, s.peak_waiting, s.admitted, s.rejections, s.active, s.peak_active) == (0, 1, 2, 1, 1, 1)


def test_a_waiter_that_leaves_frees_its_place() -> None:
    gate: Gate[str] = Gate(active_limit=1, waiting_limit=1)
    arrive(gate, "a", "b")
    for number in range(3):
        gate.leave("b")
        gate.leave("b")
        assert gate.waiting == 0 and gate.statistics().cancelled_waiters == number + 1
        assert arrive(gate, "b") == [False]
    assert gate.active == 1


def test_a_waiter_whose_time_is_over_counts_as_expired() -> None:
    gate: Gate[str] = Gate(active_limit=1, waiting_limit=1)
    arrive(gate, "a")
    arrive(gate, "b", deadline=0.02)
    gate.leave("b", expired=True)
    s = gate.statistics()
    assert (s.waiting, s.active, s.expirations, s.cancelled_waiters) == (0, 1, 1, 0)
    gate.leave("a")
    assert arrive(gate, "c", now=0.03) == [True]


def test_a_waiter_is_not_admitted_after_its_deadline() -> None:
    gate: Gate[str] = Gate(active_limit=1, waiting_limit=3)
    arrive(gate, "a")
    arrive(gate, "b", deadline=1.0)
    arrive(gate, "c", deadline=2.0)
    arrive(gate, "d")
    gate.leave("a")
    assert gate.admit_waiting(now=1.0) == (["c"], ["b"])  # at its very deadline it is late
    assert gate.statistics().expirations == 1 and gate.waiting == 1


@pytest.mark.parametrize("deadline", [5.0, 4.9, -math.inf])
def test_who_arrives_too_late_is_refused_even_if_a_place_is_free(deadline: float) -> None:
    gate: Gate[str] = Gate(active_limit=1, waiting_limit=1)
    with pytest.raises(DeadlineExceeded):
        arrive(gate, "a", now=5.0, deadline=deadline)
    s = gate.statistics()
    assert (s.arrivals, s.expirations, s.admitted, s.active, s.waiting) == (1, 1, 0, 0, 0)


def test_expiry_outranks_a_full_room() -> None:
    gate: Gate[str] = Gate(active_limit=1, waiting_limit=0)
    arrive(gate, "a")
    with pytest.raises(DeadlineExceeded):
        arrive(gate, "b", now=1.0, deadline=1.0)
    assert gate.statistics().rejections == 0


def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    gate: Gate[str] = Gate(active_limit=2, waiting_limit=5)
    arrive(gate, "a", "b", "c", "d")
    gate.leave("a")
    assert arrive(gate, "e") == [False]  # a place is free, and it is not for him
    assert [gate.waiting_before(ticket) for ticket in ("c", "d", "e", "a")] == [0, 1, 2, 0]
    assert admitted(gate) == ["c"]
    gate.leave("b")
    gate.leave("c")
    assert admitted(gate) == ["d", "e"]


def test_without_a_waiting_room_a_full_gate_fails_at_once() -> None:
    gate: Gate[str] = Gate(active_limit=1, waiting_limit=0)
    assert arrive(gate, "a") == [True]
    with pytest.raises(Overloaded):
        arrive(gate, "b")
    gate.leave("a")
    assert arrive(gate, "b") == [True]


@pytest.mark.parametrize(("active", "waiting"), [(0, 0), (-1, 0), (65_537, 0), (1, -1), (1, 65_537)])
def test_limits_out_of_range_are_refused(active: int, waiting: int) -> None:
    with pytest.raises(ValueError, match="must be in"):
        Gate(active_limit=active, waiting_limit=waiting)


def test_the_largest_limits_are_valid() -> None:
    Gate(active_limit=65_536, waiting_limit=65_536)


def test_a_refusal_does_not_reveal_who_waits() -> None:
    gate: Gate[str] = Gate(active_limit=1, waiting_limit=3)
    arrive(gate, "alice", "bob", "carol", "dave")
    with pytest.raises(Overloaded) as caught:
        arrive(gate, "eve")
    texts = caught.value.message + repr(gate.statistics()) + repr(gate)
    assert not any(name in texts for name in ("alice", "bob", "carol", "dave", "eve"))


def test_a_thousand_requests_leave_nothing_behind() -> None:
    rng = random.Random(4711)
    gate: Gate[int] = Gate(active_limit=2, waiting_limit=3)
    inside: set[int] = set()
    now = 0.0
    for ticket in range(1000):
        now += rng.random() * 0.1
        try:
            gate.arrive(ticket, now=now, deadline=rng.choice([math.inf, now + 0.3, now - 0.1]))
            inside.add(ticket)
        except (DeadlineExceeded, Overloaded):
            pass
        for other in rng.sample(sorted(inside), min(len(inside), rng.choice([0, 0, 1, 1, 2]))):
            gate.leave(other, expired=rng.random() < 0.2)
            inside.discard(other)
        inside.difference_update(gate.admit_waiting(now=now)[1])
    for other in inside:
        gate.leave(other)
    s = gate.statistics()
    assert (s.active, s.waiting) == (0, 0)
    assert s.arrivals == 1000 == s.admitted + s.rejections + s.cancelled_waiters + s.expirations
    assert min(s.admitted, s.rejections, s.cancelled_waiters, s.expirations) > 0


acts = st.tuples(st.sampled_from(["arrive", "leave", "admit", "pass"]), st.integers(0, 9), st.integers(0, 6))


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(0, 3), st.lists(acts, max_size=40))
def test_the_gate_does_what_a_list_and_a_set_would(limit: int, room: int, plan: list[tuple[str, int, int]]) -> None:
    gate: Gate[str] = Gate(active_limit=limit, waiting_limit=room)
    active: list[str] = []
    waiting: list[tuple[str, float]] = []
    now = 0.0
    for act, number, more in plan:
        ticket = str(number)
        if act == "pass":
            now += more
        elif act == "leave":
            gate.leave(ticket, expired=more > 3)
            active = [other for other in active if other != ticket]
            waiting = [(other, deadline) for other, deadline in waiting if other != ticket]
        elif act == "admit":
            expected: list[str] = []
            while waiting and len(active) + len(expected) < limit:
                other, deadline = waiting.pop(0)
                if deadline > now:
                    expected.append(other)
            assert admitted(gate, now) == expected
            active += expected
        elif ticket not in active and all(ticket != other for other, _ in waiting):
            free = not waiting and len(active) < limit
            try:
                assert gate.arrive(ticket, now=now, deadline=now + more) is free
                assert more > 0
                if free:
                    active.append(ticket)
                else:
                    waiting.append((ticket, now + more))
            except DeadlineExceeded:
                assert more == 0
            except Overloaded:
                assert more > 0 and not free and len(waiting) == room
        assert (gate.active, gate.waiting) == (len(active), len(waiting))
        assert gate.active <= limit and gate.waiting <= room and books_balance(gate)


@pytest.mark.parametrize(
    "caller", [Caller(), Caller(alone=False), Caller(concurrency_max=3), Caller(alone=False, concurrency_max=99)]
)
@pytest.mark.parametrize(("seats", "waiting"), [(1, 0), (1, 2), (2, 0), (4, 0), (5, 3), (16, 8)])
def test_the_places_that_one_identity_can_have_are_known_beforehand(caller: Caller, seats: int, waiting: int) -> None:
    gate: Gate[int] = Gate(active_limit=seats, waiting_limit=waiting)
    places = places_max(caller, seats=seats, waiting=waiting)
    for ticket in range(places):
        gate.arrive(ticket, now=0, deadline=math.inf, caller=caller)
    with pytest.raises(Overloaded):
        gate.arrive(places, now=0, deadline=math.inf, caller=caller)
