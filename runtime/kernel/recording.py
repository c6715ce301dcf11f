"""Where a flight recorder listens: every message of a system, when it is sent and when it is over.

The kernel calls, whoever listens keeps what it wants. All calls are synchronous, on the path of every message, and must not raise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from tripower.runtime.kernel.messages import Message

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


Handled = tuple[int, Any, str | None, str, type[Message], float, float]
"""Number, `Envelope.sent`, whose task waits, receiver, type of the message, when its handler began, and when it ended."""
PLAIN = frozenset({int, float, bool, "int", "float", "bool", "int | None", "float | None"})


@cache
def is_long(kind: type[Message]) -> bool:
    """Whether messages of this type differ in size: they have texts or lists."""
    annotations = {name: text for base in reversed(kind.__mro__) for name, text in inspect.get_annotations(base).items()}
    return not all(annotations.get(name) in PLAIN for name in kind.__struct_fields__)


class Recording(Protocol):
    """What listens to a system."""

    readers: int
    """Counts up whenever somebody begins to read along: an actor then soon notes the state that it goes on from."""

    clock: Callable[[], float]
    """What an ask that has to wait is stamped with in `Envelope.sent`. Whoever asks is known later, while they wait."""
    number: Callable[[], int]
    """The next number."""
    keep: Callable[[Handled], None] | None
    """Takes the entry of a message that was handled as it should: almost all messages, so this costs less than `over`. None: call that."""

    def sent(self, envelope: Envelope, way: str) -> None:
        """A message that nobody waits for is sent, by `tell` or `control`: stamp it. Called in the sender's task."""

    def over(self, actor: str, envelope: Envelope, started: float, outcome: str = "") -> None:
        """A handler that began at `started` has come to its end, and with it the message; `outcome` says of any other end which.

        Also without a handler, of an ask that is kept for later, and again when that is over.
        """

    def crashed(self, actor: str, error: BaseException) -> None:
        """An actor's instance ends with an error that it did not expect."""

    def note(self, actor: str, at: float, data: Any, size: int) -> None:
        """Something that an actor itself wants to be remembered with its messages: `size` bytes, about."""
