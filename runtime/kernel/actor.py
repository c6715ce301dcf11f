"""What an actor is: one task, private state, one message at a time.

Subclass `Actor[Command]`, where `Command` is the union of the messages it understands, and write `on_message` with one total `match`.
The answer to an `Ask` is the handler's return value, or `LATER` when the actor keeps `self.envelope` and answers it afterwards: a
handler never awaits something long, so that cancels, joins and health are heard meanwhile.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Generic, TypeVar, overload

import trio

from tripower.runtime.kernel.envelope import Envelope, Note
from tripower.runtime.kernel.errors import DeadlineExceeded
from tripower.runtime.kernel.messages import Answer, Ask, Message

if typing.TYPE_CHECKING:
    from tripower.runtime.kernel.cell import Cell
    from tripower.runtime.kernel.recording import Recording
    from tripower.runtime.kernel.supervision import Supervision

Command = TypeVar("Command")
Seen = TypeVar("Seen")
AnyActor = TypeVar("AnyActor", bound="Actor[Any]")


class Later:
    """The type of `LATER`."""


LATER = Later()
"""Returned by a handler that has kept `self.envelope` and will `answer` or `refuse` it later."""


def message_types(command: Any) -> frozenset[type[Message]]:
    """The message classes of a command union. Raises `TypeError` for anything else, when the actor's class is made."""
    members = (
        typing.get_args(command)
        if isinstance(command, types.UnionType) or typing.get_origin(command) is typing.Union
        else (command,)
    )
    for member in members:
        if not (isinstance(member, type) and issubclass(member, Message)):
            raise TypeError(f"an actor understands Message classes, not {member!r}")
    return frozenset(members)


class Actor(Generic[Command]):
    """Base of all actors. Override `on_message`; `on_start`, `on_end` and `statistics` when there is something to say."""

    understands: ClassVar[frozenset[type[Message]]] = frozenset()
    inbox_max: ClassVar[int] = 64
    """Requests that may queue; further senders wait for room. Control messages are bounded by what is outstanding."""
    end_seconds: ClassVar[float] = 5.0
    """Budget of `on_end`."""

    _cell: Cell

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in getattr(cls, "__orig_bases__", ()):
            origin = typing.get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Actor):
                argument = typing.get_args(base)[0]
                if not isinstance(argument, TypeVar):
                    cls.understands = message_types(argument)

    async def on_message(self, message: Command) -> Any:
        """Handle one message; return the answer, or `LATER`. A `TripowerError` is an answer too; anything else is a crash."""
        raise TypeError(f"{type(self).__name__} has no on_message")

    async def on_start(self) -> None:
        """Before the first message. An exception here counts as a crash."""

    async def on_end(self) -> None:
        """After the last message, on every way out: stop, crash, cancellation. Shielded for at most `end_seconds`."""

    def on_undelivered(self, message: Any, answer: Any) -> None:
        """Nobody was there to take an answer: what it would have handed over still belongs to this actor. Synchronous."""

    def statistics(self) -> Any:
        """A frozen struct for logs, console, metrics and tests; None when there is nothing. Synchronous, cheap."""
        return None

    # What the kernel gives to an actor.

    @property
    def envelope(self) -> Envelope:
        """The envelope of the message in hand."""
        current = self._cell.current
        assert current is not None, "only while a message is handled"
        return current

    @property
    def taken_at(self) -> float:
        """When the message in hand was taken from the inbox, on Trio's clock: later than its deadline it never is."""
        return self._cell.since

    @property
    def recording(self) -> Recording | None:
        """What remembers the messages that pass, if anything does at this moment."""
        return self._cell.recording

    @property
    def ref(self) -> Ref[Command]:
        """The actor's own address."""
        return Ref(self._cell)

    def spawn(self, factory: Callable[[], AnyActor], *, name: str, supervision: Supervision | None = None) -> Ref[Any]:
        """Start a child actor, supervised here: it ends when this actor ends. Synchronous."""
        return self._cell.spawn(factory, name=name, supervision=supervision)

    def start_soon(self, work: Callable[..., Awaitable[object]], *arguments: Any, name: str) -> None:
        """Run a child task that ends with this actor; an exception in it is a crash of the actor. Synchronous."""
        self._cell.start_soon(work, *arguments, name=name)


class Ref(Generic[Command]):
    """An actor's address. It stays valid over restarts; using it after the actor's end raises `ActorGone`."""

    __slots__ = ("_cell",)

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @property
    def name(self) -> str:
        return self._cell.name

    @property
    def details(self) -> Any:
        """What the actor publishes through `statistics()` at this moment; None while it starts, and after its end."""
        return self._cell.statistics().details

    def look(self, read: Callable[[Any], Seen]) -> Seen | None:
        """What `read` makes of the actor's instance at this moment; None while there is none. It changes nothing. Synchronous."""
        return self._cell.look(read)

    @property
    def ended(self) -> bool:
        """Whether it has ended for good. False while it ends or waits for its restart."""
        return self._cell.ended

    @overload
    async def ask(self, message: Ask[Answer], *, deadline: float = math.inf, live: Any = None) -> Answer: ...
    @overload
    async def ask(self, message: Message, *, deadline: float = math.inf, live: Any = None) -> Any: ...

    async def ask(self, message: Message, *, deadline: float = math.inf, live: Any = None) -> Any:
        """Send and wait for the answer. Blocks.

        Raises the actor's typed error; `ActorGone` when it ends or crashes first; `DeadlineExceeded` at `deadline`, where both sides
        stop. A caller that is cancelled leaves nothing behind: the message is dropped, or its handler cancelled.
        """
        envelope = Envelope(message, deadline, live, self._cell)
        if deadline == math.inf or deadline >= trio.current_effective_deadline():
            self._cell.post(envelope)
            return await envelope.take()
        with trio.CancelScope(deadline=deadline):
            self._cell.post(envelope)
            return await envelope.take()
        raise DeadlineExceeded(f"{self._cell.name} did not answer in time")

    async def tell(self, message: Message, *, live: Any = None) -> None:
        """Send without an answer. Waits while the inbox is full; always a checkpoint. Raises `ActorGone`.

        Cancelled while it waits for room, it has not been sent; cancelled where there was room, it has.
        """
        cell = self._cell
        envelope = Note(message, live, cell)
        if cell.recording is not None:
            cell.recording.sent(envelope, "tell")
        if cell.post_if_room(envelope):
            await trio.lowlevel.checkpoint()
        else:
            cell.wait_for_room(envelope)
            await envelope.take()

    def tell_nowait(self, message: Message, *, live: Any = None) -> None:
        """Send without an answer, or raise `InboxFull`. Synchronous. Raises `ActorGone`."""
        self._cell.post_nowait(Note(message, live, self._cell))

    def control(self, message: Message, *, live: Any = None, on_dropped: Callable[[], None] | None = None) -> bool:
        """Put a message on the control inbox, which is read first and is never full: for releases, cancels and completions.

        False when the actor has gone. `on_dropped` is called if it ends, or crashes over this message, before it has handled it.
        Synchronous, legal in `finally`.
        """
        return self._cell.post_control(Note(message, live, self._cell, on_dropped))

    async def stop(self) -> None:
        """End the actor and wait until it has ended. Blocks; idempotent."""
        await self._cell.stop()
