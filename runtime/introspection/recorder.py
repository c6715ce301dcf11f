"""A flight recorder: what has passed lately between the actors of a system, in a bounded ring.

It listens to the kernel (`runtime.kernel.recording`) and keeps an entry of each message that is over: who sent it to whom, when, how
long it waited and was handled, and what became of it. Of its content nothing is kept but an estimate of its size, unless payloads are
asked for. Actors add notes of their own, among them what a queue decided (`actors.replay`).

Messages and notes share one sequence of numbers, so that what is missing shows. Each has a ring of its own, bounded in entries, and
where entries differ in size in bytes too. Nothing is encoded before somebody reads.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from heapq import merge
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import trio

from tripower.runtime.introspection.recording import Crashed, Noted, Passed, Record
from tripower.runtime.kernel import ActorSystem, Message
from tripower.runtime.kernel.envelope import Envelope
from tripower.runtime.kernel.recording import NEVER_STARTED, Handled, Outcome

ENTRIES_MAX = 20_000
NOTE_BYTES_MAX = 16 << 20
PAYLOAD_BYTES_MAX = 64 << 20
FIELD_BYTES = 5
"""Of a number in a message, about."""
ITEM_BYTES = 4
"""Of a text or a list in a message, for each of its items, about."""
SAME_SECONDS = 0.001
ENTRY_BYTES = 140
"""What a message's entry takes, about."""

T = TypeVar("T")

FIELDS = 7
"""Of an entry, which is a `Handled`. The ring holds the fields one after the other: it is several per cent of an ask whether each entry
is an object of its own that stays."""


class _Told(NamedTuple):
    """In the place of `Handled.sent`, of a message that the recorder was told more of."""

    sent: Any
    asks: bool
    outcome: str
    """Empty: as it should."""
    size: int


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
        self.number: Callable[[], int] = itertools.count(1).__next__
        self._ring: deque[Any] = deque(maxlen=FIELDS * entries_max)
        self.keep: Callable[[Handled], None] | None = self._ring.extend
        self._notes: Shelf[tuple[str, float, Any]] = Shelf(entries_max, NOTE_BYTES_MAX)
        self._payloads: Shelf[Message] | None = None
        self._payload_readers = 0

    # What the kernel and the actors tell. On the path of every message.

    def sent(self, envelope: Envelope, way: str) -> None:
        try:
            sender = trio.lowlevel.current_task().name
        except RuntimeError:  # from Trio itself: somebody's cancellation told somebody else
            sender = ""
        envelope.sent = (way, self.clock(), sender)

    def over(self, actor: str, envelope: Envelope, started: float, outcome: str = "") -> None:
        number, ended, message, sent = self.number(), self.clock(), envelope.message, envelope.sent
        size = size_of(message)
        sender = _sender(envelope)
        told = _Told(sent, envelope.asks, outcome, size)
        self._ring.extend((number, told, sender, actor, type(message), started, ended))
        if outcome is Outcome.LATER:  # what is still to come of it is its answer
            envelope.sent = ("answer", ended, sender)
        if self._payloads is not None:
            self._payloads.put(number, size, message)

    def crashed(self, actor: str, error: BaseException) -> None:
        kinds = sorted({type(each).__name__ for each in _leaves(error)})
        self.note(actor, self.clock() + self._offset, Crashed(actor, ", ".join(kinds)), ENTRY_BYTES)

    def note(self, actor: str, at: float, data: Any, size: int) -> None:
        self._notes.put(self.number(), size, (actor, at, data))

    # What readers ask.

    @property
    def last(self) -> int:
        """The number of the latest entry; 0 when there is none."""
        return max(self._ring[-FIELDS] if self._ring else 0, self._notes.last)

    def __len__(self) -> int:
        return len(self._ring) // FIELDS + len(self._notes)

    @property
    def bytes_kept(self) -> int:
        """About what the rings hold."""
        return len(self._ring) // FIELDS * ENTRY_BYTES + self._notes.bytes + (self._payloads.bytes if self._payloads else 0)

    def keep_payloads(self) -> None:
        """Keep whole messages from now on, until as many `drop_payloads` have been called. They are dropped then."""
        self._payload_readers += 1
        if self._payloads is None:
            self._payloads, self.keep = Shelf(self.entries_max, PAYLOAD_BYTES_MAX), None

    def drop_payloads(self) -> None:
        """A reader of whole messages has gone."""
        self._payload_readers -= 1
        if not self._payload_readers:
            self._payloads, self.keep = None, self._ring.extend

    def read(self, after: int = 0, *, payloads: bool = False) -> Iterator[Record]:
        """What has a higher number than `after`, in order, as it is at this moment; encoding is up to the caller, piece by piece."""
        ring = self._ring
        most = FIELDS * (ring[-FIELDS] - after) if ring else 0  # numbers rise, so no more can be newer: readers along ask often
        fields = list(ring) if most >= len(ring) else list(itertools.islice(reversed(ring), max(0, most)))[::-1]
        first = FIELDS * bisect_right(fields[::FIELDS], after)
        kept = self._payloads.after(after) if payloads and self._payloads is not None else []
        contents = {number: message for number, _, message in kept}
        entries = (fields[at : at + FIELDS] for at in range(first, len(fields), FIELDS))
        messages = (self._passed(entry, contents.get(entry[0])) for entry in entries)
        notes = (Noted(number, at, actor, data) for number, _, (actor, at, data) in self._notes.after(after))
        return merge(messages, notes, key=lambda record: record.number)

    def held(self, system: ActorSystem) -> list[Passed]:
        """Messages that are not over at this moment: they wait, or are handled (`started` is set). They have no number. Synchronous."""
        now = self.clock()
        held = []
        for cell in system.cells():
            for envelope, state, started in cell.held():
                told = _Told(envelope.sent, envelope.asks, state, size_of(envelope.message))
                entry = (0, told, _sender(envelope), cell.name, type(envelope.message), started, now)
                held.append(self._passed(entry, None))
        return held

    def _passed(self, entry: Sequence[Any], message: Message | None) -> Passed:
        number, sent, waits, receiver, kind, started, ended = entry
        told = sent if type(sent) is _Told else None
        if told is not None:
            sent = told.sent
        way, sent_at, sender = sent if isinstance(sent, tuple) else ("ask", sent, waits)
        asks, outcome, size = (way == "ask", "", empty_size(kind)) if told is None else told[1:]
        begun = None if started == NEVER_STARTED else started
        return Passed(
            number=number,
            sent=begun if sent_at is None else sent_at + self._offset,
            sender=sender or "",
            receiver=receiver,
            kind=way if asks or way != "ask" else "tell",
            message=kind.__name__,
            started=begun,
            ended=max(ended + self._offset, started),
            outcome=outcome or (Outcome.ANSWERED if asks else Outcome.TAKEN),
            size=size,
            payload=None if message is None else msgspec.to_builtins(message, str_keys=True),
        )


@cache
def empty_size(kind: type[Message]) -> int:
    """Bytes of the JSON of a message of this type, if its texts and lists were empty, about."""
    return len(kind.__name__) + 11 + sum(len(name) + 4 + FIELD_BYTES for name in kind.__struct_fields__)


def size_of(message: Message) -> int:
    """The same of one message, with what it holds."""
    size = empty_size(type(message))
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if hasattr(value, "__len__"):
            size += ITEM_BYTES * len(value)
    return size


def _sender(envelope: Envelope) -> str:
    task = envelope._task if envelope.asks else None
    return getattr(envelope, "sender", "") if task is None else task.name


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
