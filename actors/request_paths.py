"""Where each request is and how long it has been in each place on its way: gate, prompt, answer, socket.

A queue remembers of each request when it arrived, got its seat and gave its first token. Nothing more is kept for this: a path is made
of that when somebody asks for it, a few at a time, so that the loop is never held up. What lies before and behind the queue, the
border knows: see `tripower.api.request_paths`.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, runtime_checkable

import attrs
import msgspec

from tripower.runtime.admission import Caller
from tripower.runtime.introspection.turns import Turns
from tripower.runtime.kernel import ActorSystem, Ref

PATHS_AT_ONCE = 10
"""Asked a queue for together: a fraction of a millisecond."""


class RequestPath(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request that waits or runs. Times are seconds; a place that it has not reached has None."""

    id: str
    """The `x-request-id`, or MODEL#TICKET for a request of the program itself."""
    model: str
    label: str = ""
    """Whose it is."""
    route: str = ""
    """Empty for a request of the program itself."""
    place: str
    """`arriving` (read, checked, its model loaded), `waiting` (in the gate), `prompt` (evaluated), `answer`, or `socket` (the client reads too slowly)."""
    age: float
    arriving: float | None = None
    waiting: float | None = None
    prompt: float | None = None
    answer: float | None = None
    socket: float | None = None
    """How long its next bytes have been waiting for the client."""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    tokens_max: int = 0
    tokens_per_second: float | None = None
    """Of the answer so far."""
    deadline_left: float | None = None
    """None where there is none."""
    priority: int = 0
    evaluated_tokens: int = 0
    """Of the prompt, those whose state the engine holds."""


@runtime_checkable
class RemembersRequests(Protocol):
    """A queue, as far as it is asked about its requests. Both are synchronous."""

    def live_tickets(self) -> list[int]:
        """Of everybody who waits or runs, the oldest first."""

    def request_path(self, ticket: int, now: float) -> RequestPath | None:
        """Where a request is at a time; None where it neither waits nor runs. A program's own has an empty id unless it gave one."""


@attrs.frozen
class Queued:
    """A request in a queue, and where to ask for it."""

    queue: Ref[Any]
    ticket: int
    path: RequestPath


def queued_path(
    *,
    model: str,
    request_id: str,
    caller: Caller,
    priority: int,
    deadline: float,
    arrived_at: float,
    seated_at: float | None,
    first_at: float | None,
    now: float,
    prompt_tokens: int = 0,
    evaluated_tokens: int = 0,
    reused_tokens: int = 0,
    generated_tokens: int = 0,
    tokens_max: int = 0,
) -> RequestPath:
    """What a queue's memory of a request comes to. Times are on Trio's clock; None has not happened."""
    waiting = max(0.0, (now if seated_at is None else seated_at) - arrived_at)
    prompt = None if seated_at is None else max(0.0, (now if first_at is None else first_at) - seated_at)
    answer = None if first_at is None else max(0.0, now - first_at)
    return RequestPath(
        id=request_id,
        model=model,
        label=caller.label,
        place="waiting" if prompt is None else "prompt" if answer is None else "answer",
        age=max(0.0, now - arrived_at),
        waiting=waiting,
        prompt=prompt,
        answer=answer,
        prompt_tokens=prompt_tokens,
        evaluated_tokens=evaluated_tokens,
        reused_tokens=reused_tokens,
        generated_tokens=generated_tokens,
        tokens_max=tokens_max,
        tokens_per_second=(generated_tokens - 1) / answer if answer and generated_tokens > 1 else None,
        deadline_left=None if deadline == math.inf else max(0.0, deadline - now),
        priority=priority,
    )


def queues(system: ActorSystem) -> list[Ref[Any]]:
    """Every queue of a loaded model that is there at this moment. Synchronous."""
    return [Ref(cell) for cell in system.cells() if cell.look(lambda actor: isinstance(actor, RemembersRequests))]


async def queued_paths(system: ActorSystem, now: float) -> list[Queued]:
    """Everybody who waits or runs in any queue, each queue's oldest first. Blocks for some turns."""
    found: list[Queued] = []
    turns = Turns()
    for queue in queues(system):
        tickets: list[int] = queue.look(lambda actor: actor.live_tickets()) or []
        for begin in range(0, len(tickets), PATHS_AT_ONCE):
            if turns.due():
                await turns.give()
            found += look_for(queue, tickets[begin : begin + PATHS_AT_ONCE], now)
    return found


def look_for(queue: Ref[Any], tickets: list[int], now: float) -> list[Queued]:
    """Those of these that wait or run in a queue. Synchronous."""
    paths: list[RequestPath | None] = queue.look(lambda actor: [actor.request_path(ticket, now) for ticket in tickets]) or []
    return [Queued(queue, ticket, path) for ticket, path in zip(tickets, paths, strict=False) if path is not None]


def own_id(queued: Queued) -> str:
    """MODEL#TICKET, by which every request in a queue can be named."""
    return f"{queued.path.model}#{queued.ticket}"
