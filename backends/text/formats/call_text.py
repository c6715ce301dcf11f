"""Reads one object that may be a call: `{"name": …, "arguments": {…}}`, its keys in any order.

It is taken for a call as soon as it names a tool that was offered and its arguments begin. Until then it may still turn out to be
text, and whoever feeds it keeps that text. Arguments may stand under `parameters` too, may be missing (`{}`), and may be a string
that holds a JSON object, as some models write them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from tripower.backends.text.formats.json_text import JsonText, skip_space

HELD_CHARACTERS_MAX = 65_536
"""An object that is longer before it shows what it calls is text."""
ARGUMENTS = ("arguments", "parameters")
_KEYS = frozenset({"name", "type", "id", *ARGUMENTS})
"""Any other key says that this is somebody's JSON and not a call, as long as no call has begun."""


class CallText:
    """One object. `ready`: this is a call of `name`; `complete`: it was read to its end; `broken`: it is no JSON object, or no call."""

    def __init__(self, names: Collection[str]) -> None:
        self.name = ""
        self.ready = False
        self.complete = False
        self.broken = False
        self._names = names
        self._state: Callable[[str, int], int] = self._begin
        self._json = JsonText()
        self._key = ""
        self._value: list[str] = []
        self._arguments: list[str] = []
        self._has_arguments = False
        self._streams = False
        self._held = 0

    def feed(self, text: str) -> int:
        """Where the object ends in this text: behind it, before what breaks it, or at the text's end."""
        position = 0
        while position < len(text) and not self.complete and not self.broken:
            position = self._state(text, position)
        self._held += position
        if not self.ready and not self.broken and self._held > HELD_CHARACTERS_MAX:
            self.broken = True
        return position

    def take(self) -> str:
        """Text of the arguments that came since the last time; empty unless `ready`."""
        if not self.ready:
            return ""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def _begin(self, text: str, position: int) -> int:
        return self._expect(text, position, {"{": self._first_key})

    def _first_key(self, text: str, position: int) -> int:
        position = skip_space(text, position)
        return self._close(position) if text[position : position + 1] == "}" else self._next_key(text, position)

    def _next_key(self, text: str, position: int) -> int:
        position = skip_space(text, position)
        if position < len(text) and text[position] != '"':
            return self._break(position)
        if position < len(text):
            self._start_value(self._read_key)
        return position

    def _read_key(self, text: str, position: int) -> int:
        end = self._collect(text, position)
        if self._json.complete:
            self._key = json.loads("".join(self._value))
            if self._key not in _KEYS and not self.ready:
                self.broken = True
            self._state = self._colon
        return end

    def _colon(self, text: str, position: int) -> int:
        return self._expect(text, position, {":": self._first_of_value})

    def _first_of_value(self, text: str, position: int) -> int:
        position = skip_space(text, position)
        if position == len(text):
            return position
        is_arguments = self._key in ARGUMENTS and not self._has_arguments
        self._streams = is_arguments and text[position] == "{"
        self._has_arguments |= is_arguments
        if self._streams:
            self.ready = bool(self.name)
        elif not is_arguments:
            self._key = self._key if self._key == "name" and not self.name else ""
        self._start_value(self._read_value)
        return position

    def _read_value(self, text: str, position: int) -> int:
        end = self._collect(text, position)
        if self._json.complete:
            self._state = self._comma_or_end
            self._keep_value()
        return end

    def _keep_value(self) -> None:
        if self._key == "name":
            self._keep_name(json.loads("".join(self._value)))
        elif self._key in ARGUMENTS and not self._streams:
            self._keep_arguments(json.loads("".join(self._value)))

    def _keep_name(self, name: object) -> None:
        if isinstance(name, str) and name in self._names:
            self.name, self.ready = name, self._has_arguments
        else:
            self.broken = True

    def _keep_arguments(self, value: object) -> None:
        text = "{}" if value is None else value.strip() if isinstance(value, str) else ""
        check = JsonText()
        whole = text.startswith("{") and check.feed(text) == len(text) and check.complete
        if whole:
            self._arguments.append(text)
            self.ready = bool(self.name)
        else:
            self.broken = True

    def _comma_or_end(self, text: str, position: int) -> int:
        position = skip_space(text, position)
        if text[position : position + 1] == "}":
            return self._close(position)
        return self._expect(text, position, {",": self._next_key})

    def _close(self, position: int) -> int:
        if not self.name:
            return self._break(position)
        if not self._has_arguments:
            self._arguments.append("{}")
        self.ready = self.complete = True
        return position + 1

    def _start_value(self, state: Callable[[str, int], int]) -> None:
        self._json = JsonText()
        self._value = []
        self._state = state

    def _collect(self, text: str, position: int) -> int:
        end = self._json.feed(text, position)
        if self._state == self._read_value and self._streams:
            self._arguments.append(text[position:end])
        elif self._state == self._read_key or self._key:
            self._value.append(text[position:end])
        self.broken = self._json.broken
        return end

    def _expect(self, text: str, position: int, states: dict[str, Callable[[str, int], int]]) -> int:
        position = skip_space(text, position)
        if position == len(text):
            return position
        if text[position] not in states:
            return self._break(position)
        self._state = states[text[position]]
        return position + 1

    def _break(self, position: int) -> int:
        self.broken = True
        return position
