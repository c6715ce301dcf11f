"""How much of something a client may do: at most so much at once, so much each second, and what it earns by real work."""

from __future__ import annotations

from collections.abc import Callable

import trio


class Budget:
    """A bucket of tokens that fills with time. Plain arithmetic; nothing here blocks."""

    __slots__ = ("_clock", "_left", "_most", "_per_second", "_seen")

    def __init__(self, most: float, per_second: float, clock: Callable[[], float] = trio.current_time) -> None:
        self._most = self._left = most
        self._per_second = per_second
        self._clock = clock
        self._seen = clock()

    def spend(self, amount: float = 1.0) -> bool:
        """Take so much. False when it is not there, and then nothing is taken."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._seen) * self._per_second)
        self._seen = now
        if self._left < amount:
            return False
        self._left -= amount
        return True

    def earn(self, amount: float) -> None:
        """Give back; there is never more than the most."""
        self._left = min(self._most, self._left + amount)
