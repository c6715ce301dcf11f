"""What following a request tells. On its own, since clients read it and load no runtime."""

from __future__ import annotations

import msgspec


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a request."""

    at: float
    """Seconds since it arrived."""
    event: str
    """`arrived`, `enqueued`, `seated`, `prompt`, `started`, `tokens`, `finished`, `failed`, `left`, `unread`, `read`, `over` or `missed`."""
    message: str = ""
    """The type of the message that passed; empty where none did."""
    request: str = ""
    """MODEL#TICKET, where it concerns one place in a queue."""
    tokens: int = 0
    about: str = ""
    """For people."""
