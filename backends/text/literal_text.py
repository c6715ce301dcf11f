"""Keeps what a user typed from becoming control tokens.

In a rendered prompt the template's control tokens and the users' text are one string, and only the former may be recognised. So
each control text inside a message is replaced by a marker before rendering, the rendered string is cut at control tokens, and the
markers between the cuts become text again. A marker has a random number in it, between two copies of a character that no
message contains: it cannot be forged, and a template that cuts one in two is found out.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable

from tripower.backends.text.special_tokens import SpecialTokens
from tripower.runtime.kernel.errors import InvalidRequest

_FENCES = range(0xF0000, 0x110000)  # private-use planes: no case, no width, never trimmed


class LiteralText:
    """Marks for one rendering. `texts` are all that the caller has any part in."""

    def __init__(self, texts: Iterable[str], control: SpecialTokens) -> None:
        self._control = control
        self._fence = _absent_character(texts)
        self._number = secrets.randbits(64)
        self._literal: list[str] = []

    def mark(self, text: str) -> str:
        """The text with a marker for every control text in it."""
        spans = self._control.find(text)
        if not spans:
            return text
        parts = []
        done = 0
        for start, end in spans:
            parts += [text[done:start], f"{self._fence}{self._number}.{len(self._literal)}{self._fence}"]
            self._literal.append(text[start:end])
            done = end
        return "".join([*parts, text[done:]])

    @property
    def end_mark(self) -> str:
        """What can be put behind a text to find again where it ends."""
        return f"{self._fence}{self._number}.end{self._fence}"

    def restore(self, text: str) -> str:
        """The text with its markers replaced by what they stand for. Raises `InvalidRequest` if one is damaged."""
        if str(self._number) not in text and self._fence not in text:
            return text
        fence = f"(?:{self._fence}|{'|'.join(map(re.escape, _escapes(self._fence)))})"
        marker = re.compile(rf"{fence}{self._number}\.(\d+){fence}")
        text = marker.sub(lambda found: self._literal[int(found[1])], text)
        if self._fence in text or str(self._number) in text:
            raise InvalidRequest(
                "the chat template alters the text of messages, and they contain control tokens: remove those from the messages",
                code="template_failed",
                param="messages",
            )
        return text


def _absent_character(texts: Iterable[str]) -> str:
    used = set().union(*map(set, texts))
    return next(chr(code) for code in _FENCES if chr(code) not in used)


def _escapes(character: str) -> tuple[str, str]:
    """What Python's `repr` and JSON in ASCII make of it: some templates write containers so."""
    return ascii(character)[1:-1], json.dumps(character)[1:-1]
