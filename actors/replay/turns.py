"""What is written down of a model's queue. No prompt, no text and no token is in it: of each token, only whether it ended the text."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tripower.runtime.admission.state import GateState

TOKEN, NOT_DRAWN, INVALID, END = 0, -1, -2, -3
"""What was drawn for a slot in a step: a token, nothing, nothing that could be used, or a token that ends the text."""

Decision = tuple[Any, ...]
"""A word and what it is about; see `WORDS`."""
WORDS = {
    "seat": "TICKET takes part from the next job on",
    "wait": "TICKET has a waiting place",
    "refuse": "the request is refused with CODE",
    "fail": "TICKET is told CODE and is gone",
    "finish": "TICKET is complete for REASON after so many tokens",
    "job": "job NUMBER of so many steps, rows and mixed rows begins with SLOTS: ticket, position, pending, remaining",
    "stop": "the running job is asked to end",
    "unavailable": "the device took no job",
    "crash": "the queue failed with TYPE",
}


class Arrived(msgspec.Struct, frozen=True, tag="arrived", omit_defaults=True):
    """A request came. `invalid`: the code by which it was refused for what it asked."""

    prompt: int
    max_tokens: int
    deadline: float | None = None
    identity: str = ""
    weight: float = 1.0
    concurrency_max: int = 0
    alone: bool = True
    priority: int = 0
    ticket: int | None = None
    """None where it was refused."""
    invalid: str = ""


class Told(msgspec.Struct, frozen=True, tag="told", omit_defaults=True):
    """Another message came, with these fields."""

    message: str
    fields: dict[str, Any] = {}


class Step(msgspec.Struct, frozen=True, array_like=True):
    """So many steps in a row that did the same, by slot: rows evaluated, what was drawn, and tokens drawn where guesses were right."""

    count: int
    evaluated: tuple[int, ...]
    drawn: tuple[int, ...]
    runs: dict[int, int] = {}
    """Tokens before the last, by slot."""


class Stepped(msgspec.Struct, frozen=True, tag="stepped", omit_defaults=True):
    """The device told of steps: so many of the job in all, of which `steps` are new. `done`: the job has ended, with `error` or without."""

    job: int
    total: int
    steps: tuple[Step, ...] = ()
    done: bool = False
    error: str = ""
    stopped: tuple[tuple[int, int], ...] = ()
    """Tickets whose text was ended by a stop string, and with how many tokens."""


class Turn(msgspec.Struct, frozen=True, tag="turn", omit_defaults=True):
    """One message that a queue has handled."""

    index: int
    """Of this instance's turns."""
    told: Arrived | Told | Stepped
    decided: tuple[Decision, ...] = ()
    reuse: tuple[Any, ...] = ()
    """What the prefix cache said, in order."""
    rows_by_rule: bool = True
    """Whether the rows of the job that began follow from what is pending alone: no guesses, and no prompt that is told of."""


class MemberState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A seat."""

    ticket: int
    evaluated: int = 0
    output: int = 0
    reused: int = 0
    held: bool = False
    forking: bool = False


class RequestState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request with a seat or a waiting place."""

    ticket: int
    prompt: int
    max_tokens: int
    deadline: float | None = None
    taken: int = 0


class Checkpoint(msgspec.Struct, frozen=True, tag="checkpoint", omit_defaults=True):
    """A queue between two turns, when no job runs or none of its steps has been told of."""

    index: int
    """Of the turn before it; -1: the instance has just started."""
    model: str
    context_max: int
    members_max: int
    waiting_max: int
    steps_per_job: int
    rows_max: int
    mixed_rows: int
    gate: GateState
    members: tuple[MemberState, ...] = ()
    requests: tuple[RequestState, ...] = ()
    job: int = -1
    """The job that has just begun; -1: none runs."""
    failures: int = 0
    draining: bool = False
    stale: bool = False


Page = Turn | Checkpoint


def finite(deadline: float) -> float | None:
    """A deadline as JSON has it."""
    return None if deadline == math.inf else deadline


def infinite(deadline: float | None) -> float:
    """The way back."""
    return math.inf if deadline is None else deadline
