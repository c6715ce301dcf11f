"""Server-sent events, read as they come: any split of the bytes gives the same events."""

from __future__ import annotations

import codecs

EVENT_CHARACTERS_MAX = 8 << 20


class EventTooLong(ValueError):
    """An event does not end."""


class EventReader:
    """Feed it bytes, get the `data` of each event that is complete. Comments and other fields are skipped."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line: list[str] = []
        """Pieces of the line that has not ended."""
        self._data: list[str] = []
        self._length = 0
        """Characters since the last event."""

    def feed(self, piece: bytes) -> list[str]:
        """The events that end in this piece. Raises `EventTooLong`."""
        first, *rest = self._decoder.decode(piece).split("\n")
        self._line.append(first)
        self._length += len(first)
        events = []
        for beginning in rest:
            event = self._take("".join(self._line).removesuffix("\r"))
            if event is not None:
                events.append(event)
            self._line = [beginning]
            self._length += len(beginning)
        if self._length > EVENT_CHARACTERS_MAX:
            raise EventTooLong(f"an event is longer than {EVENT_CHARACTERS_MAX} characters")
        return events

    def _take(self, line: str) -> str | None:
        if not line:
            event = "\n".join(self._data) if self._data else None
            self._data, self._length = [], 0
            return event
        field, _, value = line.partition(":")
        if field == "data":
            self._data.append(value.removeprefix(" "))
        return None
