"""What the console counts."""

from __future__ import annotations

import attrs
import msgspec


@attrs.define(eq=False)
class ConsoleFigures:
    """What has happened at the console since it was opened. Outlives a restart of the actor."""

    attached: int = 0
    answered: int = 0
    refused: int = 0
    cut_off: int = 0
    rejected: int = 0


class ConsoleStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Who looks. The last five are counts since the console was opened."""

    socket: str
    connections: int
    open_calls: int
    attached: int
    answered: int
    refused: int
    cut_off: int
    """Connections of clients that sent garbage or did not read."""
    rejected: int
    """Connections of other users, or beyond the limit."""
