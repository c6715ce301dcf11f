"""How to look at thousands of things without holding the loop: everybody else has a turn whenever a look has taken its millisecond."""

from __future__ import annotations

from time import perf_counter

import trio

HOLD_SECONDS = 0.001
"""Of the loop at once. A turn of everybody else takes its time as well, so that shorter holds make a look longer."""
now = perf_counter


class Turns:
    """For one look. Ask `due` after every little piece of it, and `give` when it says so.

    The first piece is preceded by a turn of everybody else, since whatever came before this look in the same step counts as well.
    """

    def __init__(self) -> None:
        self._until = 0.0

    def due(self) -> bool:
        """Whether this look has held the loop for long enough. Synchronous; a fraction of a microsecond."""
        return now() >= self._until

    async def give(self) -> None:
        """Let everybody else run."""
        await trio.lowlevel.checkpoint()
        self._until = now() + HOLD_SECONDS
