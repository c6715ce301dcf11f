"""Where text is worked on: short texts at once, long ones in a worker thread, so that they do not hold up the streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from tripower.actors.preparation import INLINE_CHARACTERS
from tripower.runtime.kernel import Overloaded

Done = TypeVar("Done")

LONG_TEXTS_AT_ONCE = 2
"""More would only take turns at the interpreter, and leave less of it to the loop."""
LONG_TEXTS_WAITING_MAX = 32


class TextWork:
    """One for each application. A caller that is cancelled waits for nobody; its thread keeps its place until it is done."""

    def __init__(self) -> None:
        self._places = trio.CapacityLimiter(LONG_TEXTS_AT_ONCE)

    async def done(self, size: int, work: Callable[[], Done]) -> Done:
        """What `work` returns; `size` is the number of characters or tokens that it works on.

        Blocks for long texts. Raises `Overloaded` when too many of them wait, and what `work` raises.
        """
        if size <= INLINE_CHARACTERS:
            return work()
        if self._places.statistics().tasks_waiting >= LONG_TEXTS_WAITING_MAX:
            raise Overloaded("too many long texts wait to be tokenised", retry_after=1.0)
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._places)
