"""A message on its way: the payload, and the live things that travel beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from tripower.runtime.kernel.handoff import HandOff
from tripower.runtime.kernel.messages import Message
from tripower.runtime.kernel.recording import Outcome

if TYPE_CHECKING:
    from tripower.runtime.kernel.cell import Cell


class Envelope(HandOff[Any]):
    """A question: `message` with its `deadline` and `live` companion. As a hand-off it carries the answer back."""

    __slots__ = ("_cell", "deadline", "live", "message", "on_abandon", "sender", "sent")

    asks = True
    """Whether somebody waits for an answer."""
    sender: str
    """Who asked, where that is recorded and they have gone; else not there."""

    def __init__(self, message: Message, deadline: float, live: Any, cell: Cell) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._cell = cell
        self.message = message
        self.deadline = deadline
        self.live = live
        self.sent: Any = None
        """When it was sent, as whoever records has it."""
        self.on_abandon: Callable[[], None] | None = None
        """Set by an actor that answers later, to hear that nobody waits any more. Synchronous, must not raise."""

    def answer(self, value: Any) -> bool:
        """Answer an ask that was kept for later. False: nobody waits any more, and `value` still belongs to the actor."""
        self._cell.settle(self, Outcome.ANSWERED)
        return self.give(value)

    def refuse(self, error: BaseException) -> bool:
        """Answer an ask that was kept for later with an error."""
        self._cell.settle(self, getattr(error, "code", "internal_error"))
        return self.fail(error)

    def abandoned(self) -> None:
        self._cell.abandon(self)

    def _abort(self, raise_cancel: Any) -> trio.lowlevel.Abort:
        if self._cell.recording is not None and self._task is not None:
            self.sender = self._task.name
        return super()._abort(raise_cancel)


class Note(Envelope):
    """A message that nobody waits for. As a hand-off it tells a sender that waited for room that there is some."""

    __slots__ = ("on_dropped",)

    asks = False
    deadline = math.inf
    on_abandon = None

    def __init__(self, message: Message, live: Any, cell: Cell, on_dropped: Callable[[], None] | None = None) -> None:
        self._task = None
        self._cell = cell
        self.message = message
        self.live = live
        self.sent = None
        self.on_dropped = on_dropped
        """Called once if the actor ends before it has handled the message. Synchronous, must not raise."""
