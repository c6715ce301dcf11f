"""What the kernel knows about each actor. Metrics, `ps`, health, console and simulation all read this and keep no copy."""

from __future__ import annotations

from typing import Any

import msgspec


class ActorStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One actor at one instant. Times are seconds on Trio's clock."""

    name: str
    kind: str
    parent: str
    state: str
    """`starting`, `idle`, `handling`, `restarting`, `ending`, `ended` or `failed`."""
    message: str | None
    """The type of the message in hand."""
    handling_seconds: float
    deadline_left: float | None = None
    """Of the message in hand; None where nothing is handled, or without a deadline."""
    inbox: int
    inbox_max: int
    inbox_peak: int
    waiting: int
    """Senders that wait for room in the inbox."""
    control: int
    pending: int
    """Asks that are answered later."""
    received: int
    handled: int
    refused: int
    """Answered with an error of ours."""
    expired: int
    """The deadline passed while the message was queued, handled or kept for later."""
    abandoned: int
    """Whoever asked gave up before the deadline."""
    gone: int
    """Answered with `ActorGone`."""
    crashes: int
    restarts: int
    details: Any
    """What the actor itself publishes through `statistics()`: a frozen struct, or None."""
    vital: bool = True
    """Whether the runtime counts as failing while it is down."""
