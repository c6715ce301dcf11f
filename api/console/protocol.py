"""What passes over the console's socket: JSON, one frame a line, in both directions.

A client sends `Call`s; each is answered by frames with its `id`: `Piece`s while a stream lasts, then one `Result` or `Refusal`. Several
calls may be open on one connection. `Stop` ends a stream, whose `Result` follows, or gives up another call, which is refused (`stopped`)
unless it had ended by itself. The first line of all is the server's `Hello`. A server that ends says so with a `Refusal` without a call
(`server_ended`), before the `Result`s of its streams.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

LINE_BYTES_MAX = 1 << 20
"""A client's longest line. A server's may be longer."""
PROTOCOL = 1
CallId = Annotated[int, Meta(ge=1, le=2**53 - 1)]
"""Chosen by the client; one that is open is not used again."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Who answers."""

    protocol: int = PROTOCOL
    version: str
    pid: int
    url: str = ""
    """Where its HTTP service is; empty without one."""
    models: tuple[str, ...] = ()
    """Those that it was started with."""
    verbs: tuple[str, ...]
    streams: tuple[str, ...] = ()
    """Which of them go on until they are stopped."""
    raw: tuple[str, ...] = ()
    """Which of them take the rest of the line as one argument, as it was typed."""


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Run a verb."""

    id: CallId
    verb: str
    arguments: tuple[str, ...] = ()


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End the call. Of one that is not open nothing is said."""

    id: CallId


class Complete(msgspec.Struct, frozen=True, tag="complete"):
    """What could the last of these words become? Answered by a `Result` with a list of words."""

    id: CallId
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
    """The call is over, and this is why it came to nothing. `id` is 0 where a line was no call, or where the connection ends."""

    id: int
    code: str
    message: str


FromClient = Call | Stop | Complete
FromServer = Hello | Piece | Result | Refusal
