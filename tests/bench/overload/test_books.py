"""The three books: what clients saw, what was recorded, what was counted."""

from __future__ import annotations

from typing import Any

import pytest

from tripower.api.http.observe.audit_chain import AuditEvent
from tripower.bench.overload.books import Ledger, contradictions
from tripower.bench.overload.client import Ending, Outcome
from tripower.bench.overload.requests import Ask, Kind

NOTHING = {"completed": 0, "refused": 0, "cancelled": 0, "expired": 0, "failed": 0}


def ask(id: str) -> Ask:
    return Ask(id=id, key="noisy", kind=Kind.STREAM, request=b"", stream=True, tokens=1)


def event(id: str, status: str = "success", reason: str = "") -> AuditEvent:
    return AuditEvent(
        seq=1, timestamp=0.0, request_id=id, action="completion", status=status, reason=reason, prev_sha256="0" * 64
    )


def ledger(**outcomes: tuple[Outcome, str]) -> Ledger:
    made = Ledger()
    for id, (outcome, code) in outcomes.items():
        made.enter(ask(id), Ending(outcome=outcome, code=code))
    return made


WHOLE = (Outcome.WHOLE, "")
FULL = (Outcome.REFUSED, "queue_full")
LATE = (Outcome.EXPIRED, "deadline_exceeded")
LEFT = (Outcome.LEFT, "")
BAD = (Outcome.INVALID, "invalid_value")
REFUSED = event("b", "failure", "queue_full")
EXPIRED = event("c", "failure", "deadline_exceeded")
GONE = event("d", "cancelled", "disconnect")


@pytest.mark.parametrize(
    ("seen", "events", "counted"),
    [
        ({}, [], {}),
        ({"a": WHOLE, "b": FULL}, [event("a"), REFUSED], {"completed": 1, "refused": 1}),
        ({"c": LATE}, [EXPIRED], {"expired": 1}),
        ({"c": LATE}, [EXPIRED], {"cancelled": 1}),
        ({"c": LATE}, [EXPIRED], {}),
        ({"a": BAD}, [event("a", "failure", "invalid_value")], {}),
        ({"d": LEFT}, [], {}),
        ({"d": LEFT}, [GONE], {"cancelled": 1}),
        ({"d": LEFT}, [GONE], {"completed": 1}),
        ({"d": LEFT}, [GONE], {}),
        ({"d": LEFT}, [event("d")], {"completed": 1}),
    ],
)
def test_books_that_agree(seen: Any, events: list[AuditEvent], counted: dict[str, int]) -> None:
    assert contradictions(ledger(**seen), events, NOTHING | counted) == []


@pytest.mark.parametrize(
    ("seen", "events", "counted", "said"),
    [
        ({"a": WHOLE}, [event("a"), event("a")], {"completed": 1}, "a was answered twice"),
        ({"a": WHOLE}, [], {}, "a was answered and is not recorded"),
        ({}, [event("x")], {"completed": 1}, "x is nobody's request"),
        ({"b": WHOLE}, [REFUSED], {"refused": 1}, "b was whole  for its client and failure queue_full for the server"),
        ({"b": FULL}, [event("b")], {"completed": 1}, "b was refused queue_full for its client and success  for the server"),
        ({"a": WHOLE}, [event("a")], {}, "the queue counts 0 completed, and between 1 and 1 are recorded"),
        ({"a": WHOLE}, [event("a")], {"completed": 2}, "the queue counts 2 completed, and between 1 and 1 are recorded"),
        ({}, [], {"failed": 1}, "the queue counts 1 failed, and between 0 and 0 are recorded"),
        ({}, [], {"cancelled": 1}, "the queue counts 1 cancelled, and between 0 and 0 are recorded"),
        ({"d": LEFT}, [GONE], {"cancelled": 1, "completed": 1}, "the queue counts 2 requests, and 0 to 1 are recorded"),
    ],
)
def test_books_that_do_not(seen: Any, events: list[AuditEvent], counted: dict[str, int], said: str) -> None:
    assert said in contradictions(ledger(**seen), events, NOTHING | counted)


def test_a_ledger_counts_refusals_and_those_without_advice_but_not_late_ones() -> None:
    made = Ledger()
    for number, (advised, late) in enumerate([(True, False), (False, False), (False, True)]):
        made.enter(ask(str(number)), Ending(outcome=Outcome.REFUSED, advised=advised, late=late, first_seconds=0.5))
    assert (made.unadvised, made.refusal_seconds) == (1, [0.5, 0.5])
