"""Where each request is and how long it has been in each place on its way: gate, prompt, answer, socket."""

from __future__ import annotations

import msgspec


class RequestPath(msgspec.Struct, frozen=True, kw_only=True):
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
