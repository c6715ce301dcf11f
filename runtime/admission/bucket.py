"""A token bucket: so much a minute, and at most one minute's worth at once. On whatever clock the caller reads."""

from __future__ import annotations


class TokenBucket:
    """Holds `per_minute` at most and is full at first.

    What a request costs may be known only when it has been served, so a bucket can be taken from beyond its bottom. Nothing is granted
    then until it has filled up again: the debt is paid with waiting.
    """

    __slots__ = ("_at", "_level", "per_minute")

    def __init__(self, per_minute: int, *, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """What is in it; below 0, what is owed."""
        if now > self._at:
            self._level = min(self.per_minute, self._level + (now - self._at) * self.per_minute / 60)
            self._at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        """Take out, whether so much is there or not."""
        self._level = self.level(now) - amount

    def seconds_until(self, amount: float, now: float) -> float:
        """How long until so much is in it; 0 when it is."""
        return max(0.0, (amount - self.level(now)) * 60 / self.per_minute)
