"""Which models stay in memory: when an idle one has been idle for too long, and which one makes room for another.

Plain synchronous decisions over what each resident model's queue publishes. A model that was named at the start stays for ever; every
other one is unloaded after `keep_alive_seconds` without a request, and makes room when no more than `models_max` may be resident: the
one that has been idle longest, or, when all are busy, the one that was busy least recently; it then ends what it runs and takes no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs


@attrs.frozen
class Use:
    """How one resident model is used."""

    pinned: bool
    busy: bool
    since: float
    """When its last request ended, or when it was loaded, on Trio's clock."""
    fresh: bool = False
    """Whether those whom it was loaded for may still be on their way to it."""


@attrs.frozen(kw_only=True)
class Residency:
    """The rules. `models_max` 0 is no limit."""

    keep_alive_seconds: float = math.inf
    models_max: int = 0

    def due(self, use: Use, now: float) -> float:
        """When a model should be looked at again: the moment from which it may go, or the earliest such moment if it is busy."""
        if use.pinned:
            return math.inf
        return (now if use.busy else use.since) + self.keep_alive_seconds

    def expired(self, use: Use, now: float) -> bool:
        """Whether a model has been idle for long enough to go."""
        return not use.busy and self.due(use, now) <= now

    def full(self, resident: int) -> bool:
        """Whether another model needs one of these to go first."""
        return 0 < self.models_max <= resident

    def victim(self, uses: Mapping[str, Use]) -> str | None:
        """Who makes room, of models that are loaded; None when all of them stay, or are fresh."""
        names = [name for name, use in uses.items() if not use.pinned and not use.fresh]
        return min(names, key=lambda name: (uses[name].busy, uses[name].since), default=None)
