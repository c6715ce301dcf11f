"""What passes over the console's socket: JSON, one frame a line, in both directions.

A client sends `Call`s; each is answered by frames with its `id`: `Piece`s while a stream lasts, then one `Result` or `Refusal`. Several calls may be open
on one connection. `Stop` ends a stream, whose `Result` follows. The first line of all is the server's `Hello`.
"""

from __future__ import annotations

from typing import Any

import msgspec

LINE_BYTES_MAX = 1 << 20
"""A client's longest line. A server's may be longer."""
PROTOCOL = 1


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Who answers."""

    protocol: int = PROTOCOL
    version: str
    pid: int
    verbs: tuple[str, ...]


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Run a verb."""

    id: int
    verb: str
    arguments: tuple[str, ...] = ()


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End the call's stream."""

    id: int


class Complete(msgspec.Struct, frozen=True, tag="complete"):
    """Which words could come next after these? Answered by a `Result` with a list of them."""

    id: int
    words: tuple[str, ...]


class Piece(msgspec.Struct, frozen=True, tag="piece"):
    """One item of a stream."""

    id: int
    value: Any


class Result(msgspec.Struct, frozen=True, tag="result"):
    """The call is over. `value` is what the verb answers; None after a stream."""

    id: int
    value: Any = None


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """The call is over, and this is why it came to nothing. `id` is 0 where a line was no call at all."""

    id: int
    code: str
    message: str


FromClient = Call | Stop | Complete
FromServer = Hello | Piece | Result | Refusal
