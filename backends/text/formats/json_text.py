"""Follows one JSON value through text that comes in pieces.

An automaton with a stack (RFC 8259): each character is looked at once, and what was passed is at every moment the beginning of some
JSON value. So the pieces of a call's arguments can be told as they come. Nothing of the text is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable

DEPTH_MAX = 256
SCALAR_CHARACTERS_MAX = 128
_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_SO_FAR = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?)?")
_WORDS = ("true", "false", "null")


class JsonText:
    """One value, from its first character on. `complete` and `broken` are final; at most one of them becomes true."""

    def __init__(self) -> None:
        self.complete = False
        self.broken = False
        self._state: Callable[[str, int], int] = self._value
        self._closing: list[str] = []
        self._in_key = False
        self._scalar = ""
        self._digits = 0

    def feed(self, text: str, start: int = 0) -> int:
        """Where the value ends in this text: behind its last character, before the one that breaks it, or at the text's end."""
        position = start
        while position < len(text) and not self.complete and not self.broken:
            position = self._state(text, position)
        return position

    def _value(self, text: str, position: int) -> int:
        position = skip_space(text, position)
        match text[position : position + 1]:
            case "":
                return position
            case '"':
                self._in_key, self._state = False, self._string
            case "{":
                self._open("}", self._key_or_end)
            case "[":
                self._open("]", self._value_or_end)
            case _:
                self._scalar, self._state = "", self._word_or_number
                return position
        return position if self.broken else position + 1

    def _open(self, closing: str, state: Callable[[str, int], int]) -> None:
        self.broken = len(self._closing) >= DEPTH_MAX
        self._closing.append(closing)
        self._state = state

    def _key(self, text: str, position: int) -> int:
        position = skip_space(text, position)
        if position == len(text):
            return position
        if text[position] != '"':
            return self._break(position)
        self._in_key, self._state = True, self._string
        return position + 1

    def _key_or_end(self, text: str, position: int) -> int:
        position = skip_space(text, position)
        return self._close(position) if text[position : position + 1] == "}" else self._key(text, position)

    def _value_or_end(self, text: str, position: int) -> int:
        position = skip_space(text, position)
        return self._close(position) if text[position : position + 1] == "]" else self._value(text, position)

    def _colon(self, text: str, position: int) -> int:
        position = skip_space(text, position)
        if position == len(text):
            return position
        if text[position] != ":":
            return self._break(position)
        self._state = self._value
        return position + 1

    def _comma_or_end(self, text: str, position: int) -> int:
        position = skip_space(text, position)
        if position == len(text):
            return position
        if text[position] == self._closing[-1]:
            return self._close(position)
        if text[position] != ",":
            return self._break(position)
        self._state = self._key if self._closing[-1] == "}" else self._value
        return position + 1

    def _string(self, text: str, position: int) -> int:
        found = _PLAIN.match(text, position)
        assert found is not None
        position = found.end()
        match text[position : position + 1]:
            case "":
                return position
            case '"' if self._in_key:
                self._state = self._colon
            case '"':
                self._end_value()
            case "\\":
                self._state = self._escape
            case _:
                return self._break(position)
        return position + 1

    def _escape(self, text: str, position: int) -> int:
        if text[position] == "u":
            self._digits, self._state = 4, self._unicode
        elif text[position] in '"\\/bfnrt':
            self._state = self._string
        else:
            return self._break(position)
        return position + 1

    def _unicode(self, text: str, position: int) -> int:
        if text[position] not in "0123456789abcdefABCDEF":
            return self._break(position)
        self._digits -= 1
        if not self._digits:
            self._state = self._string
        return position + 1

    def _word_or_number(self, text: str, position: int) -> int:
        longer = self._scalar + text[position]
        if len(longer) <= SCALAR_CHARACTERS_MAX and _begins_scalar(longer):
            self._scalar = longer
            return position + 1
        if self._scalar not in _WORDS and not _NUMBER.fullmatch(self._scalar):
            return self._break(position)
        self._end_value()
        return position

    def _close(self, position: int) -> int:
        self._closing.pop()
        self._end_value()
        return position + 1

    def _end_value(self) -> None:
        self.complete = not self._closing
        self._state = self._comma_or_end

    def _break(self, position: int) -> int:
        self.broken = True
        return position


def _begins_scalar(text: str) -> bool:
    return _NUMBER_SO_FAR.fullmatch(text) is not None or any(word.startswith(text) for word in _WORDS)


def skip_space(text: str, position: int) -> int:
    """Behind the white space, as JSON knows it, that begins there."""
    found = _SPACE.match(text, position)
    assert found is not None
    return found.end()
