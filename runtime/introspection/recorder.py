"""A flight recorder: what has passed lately between the actors of a system, in a bounded ring.

It listens to the kernel (`runtime.kernel.recording`) and keeps a tuple for each message that is over: who sent it to whom, when, how
long it waited and was handled, and what became of it. Of its content nothing is kept but an estimate of its size, unless payloads are
asked for. Actors add notes of their own, among them what a queue decided (`actors.replay`).

Messages and notes share one sequence of numbers, so that what is missing shows. Each has a ring of its own, bounded in entries, and
where entries differ in size in bytes too. Nothing is encoded before somebody reads.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from heapq import merge
from operator import itemgetter
from time import perf_counter
from typing import Any, Generic, TypeVar

import msgspec
import trio

from tripower.runtime.introspection.recording import Crashed, Noted, Passed, Record
from tripower.runtime.kernel import ActorSystem, Message
from tripower.runtime.kernel.envelope import Envelope
from tripower.runtime.kernel.recording import NEVER_STARTED, Outcome

ENTRIES_MAX = 20_000
NOTE_BYTES_MAX = 16 << 20
PAYLOAD_BYTES_MAX = 64 << 20
ITEM_BYTES = 4
"""Of a text or a list in a message, for each of its items, about."""
SAME_SECONDS = 0.001
ENTRY_BYTES = 240
"""What a message's entry takes, about."""

T = TypeVar("T")

_Sent = float | tuple[str, float]
"""Of an ask when it was sent; else which way it went, and when. Of an ask that was kept `answer`, and since when."""
_Entry = tuple[int, _Sent | None, str, bool, str, str, float, float, str, int]
"""Number, sent, sender, whether somebody waited, receiver, type, started, ended, outcome (empty: as it should), size (0: its type's)."""


class Shelf(Generic[T]):
    """Numbered things in order of arrival, bounded in number and in bytes; the oldest go first."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        self._entries_max, self._bytes_max = entries_max, bytes_max
        self._things: deque[tuple[int, int, T]] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._things)

    def put(self, number: int, size: int, thing: T) -> None:
        """Keep a thing of about `size` bytes, unless it alone is too large."""
        self._things.append((number, size, thing))
        self.bytes += size
        while self._things and (len(self._things) > self._entries_max or self.bytes > self._bytes_max):
            _, gone, _ = self._things.popleft()
            self.bytes -= gone

    @property
    def last(self) -> int:
        """The highest number; 0 when there is none."""
        return self._things[-1][0] if self._things else 0

    def after(self, number: int) -> list[tuple[int, int, T]]:
        """What has a higher number than this, the oldest first: number, size, thing."""
        if not self._things or self._things[0][0] > number:
            return list(self._things)
        return list(itertools.takewhile(lambda kept: kept[0] > number, reversed(self._things)))[::-1]

    def clear(self) -> None:
        self._things.clear()
        self.bytes = 0


class Recorder:
    """Implements `Recording`. Made in the Trio loop of the system that it is given to: `system.recording = recorder`."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        """Raises `ValueError` for a ring without entries."""
        if entries_max < 1:
            raise ValueError(f"a recorder keeps at least one entry, not {entries_max}")
        self.entries_max = entries_max
        clock = trio.lowlevel.current_clock()
        self.clock, self._offset = _cheapest(clock)
        self.since = clock.current_time()
        """On Trio's clock."""
        self.readers = 0
        self._numbers = itertools.count(1)
        self._ring: deque[_Entry] = deque(maxlen=entries_max)
        self._notes: Shelf[tuple[str, float, Any]] = Shelf(entries_max, NOTE_BYTES_MAX)
        self._payloads: Shelf[Message] | None = None
        self._payload_readers = 0
        self._plain: dict[type[Message], str] = {}
        """The names of types whose messages are all of about the same size, and"""
        self._sizes: dict[str, int] = {}
        """that size, by name."""
        self._long: dict[type[Message], tuple[int, list[str]]] = {}
        """Of the others: the size of an empty one, and the fields that make it longer."""

    # What the kernel and the actors tell. On the path of every message.

    def sent(self, envelope: Envelope, way: str) -> None:
        try:
            envelope.sender = trio.lowlevel.current_task().name
        except RuntimeError:  # from Trio itself: somebody's cancellation told somebody else
            envelope.sender = ""
        envelope.sent = (way, self.clock())

    def over(self, actor: str, envelope: Envelope, started: float, outcome: str = "") -> None:
        ended = self.clock()
        name, size = self._plain.get(type(envelope.message)), 0
        if name is None:
            name, size = self._measure(envelope.message)
        task = envelope._task
        try:
            sender = envelope.sender if task is None or not envelope.asks else task.name
            sent = envelope.sent
        except AttributeError:  # it was on its way when the recorder came
            sender, sent = "" if task is None else task.name, None
        number = next(self._numbers)
        self._ring.append((number, sent, sender, envelope.asks, actor, name, started, ended, outcome, size))
        if outcome is Outcome.LATER:  # what is still to come of it is its answer
            envelope.sent = ("answer", ended)
        if self._payloads is not None:
            self._payloads.put(number, size or ENTRY_BYTES, envelope.message)

    def crashed(self, actor: str, error: BaseException) -> None:
        kinds = sorted({type(each).__name__ for each in _leaves(error)})
        self.note(actor, self.clock() + self._offset, Crashed(actor, ", ".join(kinds)), ENTRY_BYTES)

    def note(self, actor: str, at: float, data: Any, size: int) -> None:
        self._notes.put(next(self._numbers), size, (actor, at, data))

    def _measure(self, message: Message) -> tuple[str, int]:
        """The name of a message's type, and its size, 0 where that is the type's. The first one of a type stands for all."""
        kind = type(message)
        if kind not in self._long:
            fields = [name for name in kind.__struct_fields__ if hasattr(getattr(message, name), "__len__")]
            try:
                size = len(msgspec.json.encode(message)) - sum(ITEM_BYTES * len(getattr(message, name)) for name in fields)
            except (TypeError, ValueError):
                size = ENTRY_BYTES
            if not fields:
                self._plain[kind], self._sizes[kind.__name__] = kind.__name__, size
                return kind.__name__, 0
            self._long[kind] = (max(size, 2), fields)
        size, fields = self._long[kind]
        return kind.__name__, size + sum(ITEM_BYTES * len(getattr(message, name) or ()) for name in fields)

    # What readers ask.

    @property
    def last(self) -> int:
        """The number of the latest entry; 0 when there is none."""
        return max(self._ring[-1][0] if self._ring else 0, self._notes.last)

    def __len__(self) -> int:
        return len(self._ring) + len(self._notes)

    @property
    def bytes_kept(self) -> int:
        """About what the rings hold."""
        return len(self._ring) * ENTRY_BYTES + self._notes.bytes + (self._payloads.bytes if self._payloads else 0)

    def keep_payloads(self) -> None:
        """Keep whole messages from now on, until as many `drop_payloads` have been called. They are dropped then."""
        self._payload_readers += 1
        if self._payloads is None:
            self._payloads = Shelf(self.entries_max, PAYLOAD_BYTES_MAX)

    def drop_payloads(self) -> None:
        """A reader of whole messages has gone."""
        self._payload_readers -= 1
        if not self._payload_readers:
            self._payloads = None

    def read(self, after: int = 0, *, payloads: bool = False) -> Iterator[Record]:
        """What has a higher number than `after`, in order, as it is at this moment; encoding is up to the caller, piece by piece."""
        entries = list(self._ring)
        if entries and entries[0][0] <= after:
            entries = entries[bisect_right(entries, after, key=itemgetter(0)) :]
        kept = self._payloads.after(after) if payloads and self._payloads is not None else []
        contents = {number: message for number, _, message in kept}
        messages = (self._passed(entry, contents.get(entry[0])) for entry in entries)
        notes = (Noted(number, at, actor, data) for number, _, (actor, at, data) in self._notes.after(after))
        return merge(messages, notes, key=lambda record: record.number)

    def held(self, system: ActorSystem) -> list[Passed]:
        """Messages that are not over at this moment: they wait, or are handled (`started` is set). They have no number. Synchronous."""
        now = self.clock()
        held = []
        for cell in system.cells():
            for envelope, state, started in cell.held():
                sent = getattr(envelope, "sent", None)
                task = envelope._task
                sender = getattr(envelope, "sender", "") if task is None or not envelope.asks else task.name
                kind = type(envelope.message).__name__
                held.append(self._passed((0, sent, sender, envelope.asks, cell.name, kind, started, now, state, 0), None))
        return held

    def _passed(self, entry: _Entry, message: Message | None) -> Passed:
        number, sent, sender, asks, receiver, name, started, ended, outcome, size = entry
        way, sent_at = sent if isinstance(sent, tuple) else ("ask" if asks else "tell", sent)
        return Passed(
            number=number,
            sent=None if sent_at is None else sent_at + self._offset,
            sender=sender,
            receiver=receiver,
            kind=way,
            message=name,
            started=None if started == NEVER_STARTED else started,
            ended=max(ended + self._offset, started),
            outcome=outcome or (Outcome.ANSWERED if asks else Outcome.TAKEN),
            size=size or self._sizes.get(name, 0),
            payload=None if message is None else msgspec.to_builtins(message, str_keys=True),
        )


def _cheapest(clock: trio.abc.Clock) -> tuple[Callable[[], float], float]:
    """How to read a clock, and what to add: Trio's own is the system's with an offset, and costs three times as much."""
    offset = getattr(clock, "offset", None)
    if isinstance(offset, float) and abs(clock.current_time() - offset - perf_counter()) < SAME_SECONDS:
        return perf_counter, offset
    return clock.current_time, 0.0


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """What a nursery has put into groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
