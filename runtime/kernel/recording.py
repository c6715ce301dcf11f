"""Where a flight recorder listens: every message of a system, when it is sent and when it is over.

The kernel calls, whoever listens keeps what it wants. All calls are synchronous, on the path of every message, and must not raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tripower.runtime.kernel.envelope import Envelope


class Outcome:
    """What became of a message, besides an actor's own refusals, which are told by their codes."""

    ANSWERED, TAKEN, LATER = "answered", "taken", "later"
    """An ask has its answer, a message that nobody waits for was handled, an ask is answered later."""
    EXPIRED, ABANDONED, GONE, FULL = "deadline_exceeded", "abandoned", "actor_gone", "inbox_full"
    """Why it came to nothing."""
    HANDLED, QUEUED = "handled", "queued"
    """It is not over yet."""


NEVER_STARTED = -1.0
"""In place of the time when a handler began."""


class Recording(Protocol):
    """What listens to a system."""

    readers: int
    """Counts up whenever somebody begins to read along: an actor then soon notes the state that it goes on from."""

    clock: Callable[[], float]
    """What an ask is stamped with in `Envelope.sent`: the asking task is known later, while it waits."""

    def sent(self, envelope: Envelope, way: str) -> None:
        """A message that nobody waits for is sent, by `tell` or `control`. Called in the sender's task; stamps `Envelope.sent` too."""

    def over(self, actor: str, envelope: Envelope, started: float, outcome: str = "") -> None:
        """A handler that began at `started` has come to its end, and with it the message; `outcome` says of any other end which.

        Also without a handler, of an ask that is kept for later, and again when that is over.
        """

    def crashed(self, actor: str, error: BaseException) -> None:
        """An actor's instance ends with an error that it did not expect."""

    def note(self, actor: str, at: float, data: Any, size: int) -> None:
        """Something that an actor itself wants to be remembered with its messages: `size` bytes, about."""
