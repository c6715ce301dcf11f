"""Whether what the clients saw, what the server recorded and what it counted are the same.

Each request has an id. The clients' ledger says how each ended for its client; the audit log, written by the server, says how each ended
there; the queue's counters say how many ended in which way. For a request that was kept to its end all three must agree exactly. Only a
client that left cannot know: its request may have ended in any way, or never have been read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import attrs

from tripower.api.http.observe.audit_chain import AuditEvent
from tripower.bench.overload.client import DEADLINE_CODE, Ending, Outcome
from tripower.bench.overload.requests import Ask

SHOWN = 3
"""Contradictions that a report quotes."""
DISCONNECT = "disconnect"


@attrs.frozen
class Entry:
    """A request of the ledger."""

    key: str
    outcome: Outcome
    code: str


@attrs.define
class Ledger:
    """How all requests ended, as their clients saw it."""

    entries: dict[str, Entry] = attrs.Factory(dict)
    outcomes: Counter[Outcome] = attrs.Factory(Counter)
    refusal_seconds: list[float] = attrs.Factory(list)
    unadvised: int = 0
    """Refusals that did not say when to come back."""
    faults: list[str] = attrs.Factory(list)
    """Of requests that were lost, the first ones."""

    def enter(self, ask: Ask, ending: Ending) -> None:
        """Write down an ending. An id that is there already is a fault of the load itself."""
        assert ask.id not in self.entries, ask.id
        self.entries[ask.id] = Entry(ask.key, ending.outcome, ending.code)
        self.outcomes[ending.outcome] += 1
        if ending.outcome is Outcome.REFUSED and not ending.late:
            self.refusal_seconds.append(ending.first_seconds)
            self.unadvised += not ending.advised
        if ending.outcome is Outcome.LOST and len(self.faults) < SHOWN:
            self.faults.append(ending.fault)


def contradictions(ledger: Ledger, events: Iterable[AuditEvent], counted: Mapping[str, int]) -> list[str]:
    """What does not agree, a line each. `counted` are the queue's counters, of these requests alone."""
    recorded: dict[str, AuditEvent] = {}
    found: list[str] = []
    for event in events:
        if event.request_id in recorded:
            found.append(f"{event.request_id} was answered twice")
        recorded[event.request_id] = event
    found += [f"{id} is nobody's request" for id in recorded if id not in ledger.entries]
    for id, entry in ledger.entries.items():
        if said := _disagreement(id, entry, recorded.get(id)):
            found.append(said)
    return [*found, *_miscounts(recorded.values(), counted)]


def _disagreement(id: str, entry: Entry, event: AuditEvent | None) -> str:
    """Why client and server do not mean the same; empty where they do, or where the client left or is counted as lost."""
    if entry.outcome in (Outcome.LEFT, Outcome.LOST):
        return ""
    if event is None:
        return f"{id} was answered and is not recorded"
    expected = "" if entry.outcome is Outcome.WHOLE else entry.code
    said = "" if event.status == "success" else event.reason
    return (
        ""
        if said == expected
        else f"{id} was {entry.outcome} {expected} for its client and {event.status} {said} for the server"
    )


def _miscounts(events: Iterable[AuditEvent], counted: Mapping[str, int]) -> list[str]:
    """Where the queue's counters and the records differ by more than clients that left can explain.

    What a client that left asked for ends in the queue as the queue saw it last. A deadline may pass before the queue is reached.
    """
    ends = Counter(_counter_of(event) for event in events)
    left = ends["left"]
    bounds = {
        "completed": (ends["completed"], ends["completed"] + left),
        "refused": (ends["refused"], ends["refused"] + left),
        "expired": (0, ends["expired"] + left),
        "cancelled": (0, left + ends["expired"]),
        "failed": (0, 0),
    }
    found = [
        f"the queue counts {counted[name]} {name}, and between {least} and {most} are recorded"
        for name, (least, most) in bounds.items()
        if not least <= counted[name] <= most
    ]
    total, sure = sum(counted.values()), ends["completed"] + ends["refused"]
    if not sure <= total <= sure + ends["expired"] + left:
        found.append(f"the queue counts {total} requests, and {sure} to {sure + ends['expired'] + left} are recorded")
    return found


def _counter_of(event: AuditEvent) -> str:
    """Which counter of the queue an event should be in; `invalid` is in none."""
    if event.status == "success":
        return "completed"
    if event.reason == DISCONNECT or event.status == "cancelled":
        return "left"
    if event.reason == DEADLINE_CODE:
        return "expired"
    return "refused" if event.reason in REFUSAL_CODES else "invalid"


REFUSAL_CODES = frozenset({"queue_full", "share_exceeded", "concurrency_exceeded"})
"""What a queue refuses with."""
