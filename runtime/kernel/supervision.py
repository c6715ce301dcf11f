"""What happens when an actor crashes, as data."""

from __future__ import annotations

import enum

import attrs


class Strategy(enum.Enum):
    """What a supervisor does with a crashed actor."""

    RESTART = "restart"
    """A new instance from the same factory, under the same address."""
    STOP = "stop"
    """The actor stays down; whoever asks gets `ActorGone`."""
    ESCALATE = "escalate"
    """The parent crashes in turn."""


@attrs.frozen(kw_only=True)
class Supervision:
    """A strategy with its budget: more than `restarts_max` crashes within `within_seconds` escalate.

    The pause before restart *n* is `backoff_first * 2**(n - 1)` seconds, at most `backoff_max`.
    """

    strategy: Strategy = Strategy.RESTART
    restarts_max: int = 3
    within_seconds: float = 60.0
    backoff_first: float = 0.05
    backoff_max: float = 5.0
    vital: bool = True
    """Whether the runtime counts as failing while the actor is down."""

    def pause_seconds(self, crash_times: list[float], now: float) -> float | None:
        """The pause before the next start, or None when the budget is spent. Forgets crashes that are too old."""
        crash_times[:] = [time for time in crash_times if now - time < self.within_seconds]
        if len(crash_times) > self.restarts_max:
            return None
        return min(self.backoff_max, self.backoff_first * 2.0 ** (len(crash_times) - 1))
