"""Reads a call that is no object: its name, a marker, and the object of its arguments (`clock[ARGS]{}`).

Between name and marker newer Mistral models may write an id behind `[CALL_ID]`; calls get ids of ours, so it is passed over.
"""

from __future__ import annotations

from collections.abc import Collection

from tripower.backends.text.formats.json_text import JsonText, skip_space

HEAD_CHARACTERS_MAX = 256
"""What is longer than this before the marker is text."""
_ID = "[CALL_ID]"


class NamedCall:
    """One call. Its fields and methods are those of `CallText`; it is `ready` with the first character of its arguments."""

    def __init__(self, names: Collection[str], marker: str) -> None:
        self.name = ""
        self.ready = False
        self.complete = False
        self.broken = False
        self._names = names
        self._marker = marker
        self._head = ""
        self._json: JsonText | None = None
        self._arguments: list[str] = []

    def feed(self, text: str) -> int:
        """See `CallText.feed`."""
        position = self._read_head(text) if self._json is None else 0
        if self._json is None or self.broken:
            return position
        if not self.ready:
            position = skip_space(text, position)
            if position == len(text):
                return position
            self.ready = text[position] == "{"
            self.broken = not self.ready
        if self.ready:
            end = self._json.feed(text, position)
            self._arguments.append(text[position:end])
            position, self.complete, self.broken = end, self._json.complete, self._json.broken
        return position

    def take(self) -> str:
        """See `CallText.take`."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def _read_head(self, text: str) -> int:
        """Where the marker ends in this text; its end if it has not come yet."""
        before = len(self._head)
        self._head += text[: HEAD_CHARACTERS_MAX - before]
        head, found, _ = self._head.partition(self._marker)
        if not found:
            self.broken = len(self._head) == HEAD_CHARACTERS_MAX
            return len(text)
        self.name = head.partition(_ID)[0].strip()
        self.broken = self.name not in self._names
        self._json = JsonText()
        return len(head) + len(found) - before
