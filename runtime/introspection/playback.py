"""Step through a flight recording: which actor handled what at a message, and how much waited where. Plain data, no clock, no loop."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator

import msgspec

from tripower.runtime.introspection.recording import ActorPlace, Crashed, FlightRecording, Noted, Passed, Record
from tripower.runtime.kernel.errors import InvalidRequest
from tripower.runtime.kernel.recording import Outcome


class ActorMoment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One actor at one message."""

    name: str
    kind: str = ""
    """Empty where the actor came and went within the recording."""
    parent: str = ""
    handling: str = ""
    """The type of the message in hand; empty when there is none."""
    handling_seconds: float = 0.0
    inbox: int = 0
    control: int = 0
    pending: int = 0
    """Asks that are answered later."""
    crashes: int = 0
    """So far in the recording."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """The instant at which a record was made: what was handled is still in hand."""

    number: int
    first: int
    last: int
    at: float
    """Seconds since the recorder came."""
    record: Record
    waited: float | None = None
    handled: float | None = None
    """Seconds of a message in the inbox and in its handler; None where that is not known, or was not."""
    actors: tuple[ActorMoment, ...] = ()
    """Parents before children."""


class Playback:
    """A recording to step through. Raises nothing but `InvalidRequest` for a number that is not there."""

    def __init__(self, recording: FlightRecording) -> None:
        self.recording = recording
        self.records = recording.records
        self._numbers = [record.number for record in self.records]
        self._messages = [*recording.messages, *recording.ending.held]
        self._places = self._find_places()

    def _find_places(self) -> dict[str, ActorPlace]:
        """Every actor, parents before children."""
        recording = self.recording
        known = {place.name: place for place in (*recording.ending.actors, *recording.beginning.actors)}
        for message in self._messages:
            known.setdefault(message.receiver, ActorPlace(message.receiver, "", "", ""))
        ordered: dict[str, ActorPlace] = {}

        def add(parent: str) -> None:
            for name, place in known.items():
                if name not in ordered and (place.parent == parent or (not parent and place.parent not in known)):
                    ordered[name] = place
                    add(name)

        add("")
        return ordered

    def index_of(self, number: int) -> int:
        """Where the record with this number is. Raises `InvalidRequest`, which says which numbers there are."""
        index = bisect_left(self._numbers, number)
        if index == len(self._numbers) or self._numbers[index] != number:
            what = f"it begins at #{self._numbers[0]} and ends at #{self._numbers[-1]}" if self._numbers else "it is empty"
            raise InvalidRequest(f"#{number} is not in this recording: {what}", code="no_such_record")
        return index

    def matching(self, text: str, start: int, step: int = 1) -> int | None:
        """The index of the next record from `start` on whose words contain a text; None where there is none."""
        index = start
        while 0 <= index < len(self.records):
            if not text or text.casefold() in words_of(self.records[index]).casefold():
                return index
            index += step
        return None

    def moment(self, index: int) -> Moment:
        """What there was when this record was made."""
        record = self.records[index]
        at = time_of(record)
        message = record if isinstance(record, Passed) else None
        return Moment(
            number=record.number,
            first=self._numbers[0],
            last=self._numbers[-1],
            at=at - self.recording.beginning.clock,
            record=record,
            waited=None if message is None or message.sent is None else (message.started or message.ended) - message.sent,
            handled=None if message is None or message.started is None else message.ended - message.started,
            actors=tuple(self._actors(record, at)),
        )

    def _actors(self, record: Record, at: float) -> Iterator[ActorMoment]:
        counts = {name: [0, 0, 0] for name in self._places}
        in_hand: dict[str, Passed] = {}
        for message in self._messages:
            sent = -math.inf if message.sent is None else message.sent
            over = message.number and (message.number < record.number or message.ended < at)
            if sent > at or over:
                continue
            others = isinstance(record, Passed) and message is not record and message.receiver == record.receiver
            if message.started is not None and message.started <= at and not others:
                in_hand[message.receiver] = message
            else:
                kept = message.kind == "answer" or message.outcome == Outcome.LATER
                counts[message.receiver][2 if kept else message.kind == "control"] += 1
        crashes = [each.data for each in self.recording.notes if each.number <= record.number]
        for name, place in self._places.items():
            message_ = in_hand.get(name)
            inbox, control, pending = counts[name]
            yield ActorMoment(
                name=name,
                kind=place.kind,
                parent=place.parent if place.parent in self._places else "",
                handling=message_.message if message_ is not None else "",
                handling_seconds=at - message_.started if message_ is not None and message_.started is not None else 0.0,
                inbox=inbox,
                control=control,
                pending=pending,
                crashes=sum(1 for data in crashes if _crashed(data) == name),
            )


def time_of(record: Record) -> float:
    """When a record was made, on the recorded clock."""
    return record.at if isinstance(record, Noted) else record.ended


def words_of(record: Record) -> str:
    """A record on one line, for people and for a search."""
    if isinstance(record, Noted):
        return f"{record.actor} notes {_kind_of(record.data)}"
    sender = record.sender or "?"
    return f"{sender} -> {record.receiver} {record.kind} {record.message} {record.outcome}"


def _crashed(data: object) -> str:
    if isinstance(data, Crashed):
        return data.actor
    return str(data.get("actor")) if isinstance(data, dict) and data.get("type") == "crashed" else ""


def _kind_of(data: object) -> str:
    if isinstance(data, dict):
        told = data.get("told")
        kind = data.get("type", "something")
        return f"{kind} {told.get('message') or told.get('type')}" if isinstance(told, dict) else str(kind)
    return type(data).__name__.lower()
