"""Patterns of a JSON Schema, from ECMA-262's syntax to the part of it that Rust's `regex` reads in the same way.

Both notations share most of their spellings and differ where nobody looks: `\\s`, `.`, `$`, `[[:alpha:]]`, `[a&&b]`, `\\A`. So every
character and class is read as ECMA-262 reads it (with its flag `u`) and written out as code points, `[^"]` as
`[\\u{8}-\\u{a}…]`. What the two read differently, or what no automaton does, is refused.

A string in an answer has one spelling (see `lark.JSON_STYLE`): control characters other than `\\b`, `\\t`, `\\n`, `\\f` and `\\r` have none,
so no class holds them. That is also what makes a pattern exact: where a class holds every character below U+0020, or all but the line
feed, the compiler lets `\\"` and `\\\\` pass for it.
"""

from __future__ import annotations

import re
from functools import lru_cache

import attrs

Ranges = tuple[tuple[int, int], ...]
"""Code points, both ends included; sorted and apart."""

UNSPELT: Ranges = ((0, 7), (11, 11), (14, 31), (127, 127))
"""Control characters that only `\\u00…` could spell."""
_LAST = 0x10FFFF
_NEVER: Ranges = (*UNSPELT, (0xD800, 0xDFFF))
_DIGITS: Ranges = ((0x30, 0x39),)
_WORDS: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACES: Ranges = (
    (9, 13), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F),
    (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
_CLASSES = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")
_LOW_HALF = re.compile(r"\\u(D[C-F][0-9A-F]{2})", re.IGNORECASE)
_PROPERTY = re.compile(r"([pP])\{((?:(?:gc|General_Category|sc|Script|scx|Script_Extensions)=)?[A-Za-z_]+)\}")
_REPEATED = re.compile(r"[*+?]|\{[0-9]+(?:,[0-9]*)?\}")
_GROUP = re.compile(r"\((?:\?(?::|<[A-Za-z_]\w*>))?")
_BACK_REFERENCE = re.compile(r"[1-9]|k<")
_POSIX = re.compile(r"\[[:.=]")
_SET_OPERATIONS = ("&&", "--", "~~")


class PatternRefused(ValueError):
    """Why a pattern cannot be enforced, to be read behind "keyword `pattern`"."""


@lru_cache(maxsize=256)
def portable_pattern(pattern: str) -> str:
    """The same pattern in the common part of both syntaxes. Raises `PatternRefused`. What it gives is a pattern that it gives back."""
    return _Reader(pattern).read()


def unspelt(text: str) -> bool:
    """Whether a text holds a character that has no spelling here."""
    return any(_holds(UNSPELT, ord(letter)) for letter in text)


def united(*parts: Ranges) -> Ranges:
    """Everything that is in one of these."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(each for part in parts for each in part):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def inverted(ranges: Ranges) -> Ranges:
    """Every code point that is in none of these."""
    found, begin = [], 0
    for low, high in united(ranges):
        if begin < low:
            found.append((begin, low - 1))
        begin = high + 1
    return (*found, (begin, _LAST)) if begin <= _LAST else tuple(found)


def _holds(ranges: Ranges, point: int) -> bool:
    return any(low <= point <= high for low, high in ranges)


@attrs.frozen
class _Item:
    """One atom or member of a class: code points, or a property of Unicode by the spelling of `\\p{…}`."""

    ranges: Ranges = ()
    unicode: str = ""

    @property
    def single(self) -> int | None:
        """Its only code point, if it has just one."""
        return self.ranges[0][0] if len(self.ranges) == 1 and self.ranges[0][0] == self.ranges[0][1] else None


class _Reader:
    """One pass from left to right, without recursion: brackets are counted."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._out: list[str] = []

    def read(self) -> str:
        """The whole pattern."""
        open_groups, repeatable = 0, False
        while self._at < len(self._pattern):
            letter = self._pattern[self._at]
            if repeated := self._take(_REPEATED):
                if not repeatable:
                    raise PatternRefused(f"has nothing to repeat before `{repeated[0]}`")
                self._out.append(repeated[0])
                self._at += self._pattern.startswith("?", self._at)  # how eagerly it repeats changes no match
                repeatable = False
            elif letter == "(":
                open_groups, repeatable = open_groups + 1, False
                self._open_group()
            elif letter in ")|^$":
                open_groups -= letter == ")"
                if open_groups < 0:
                    raise PatternRefused("closes a bracket that is not open")
                repeatable = letter == ")"
                self._out.append(letter)
                self._at += 1
            else:
                self._out.append(self._atom(letter))
                repeatable = True
        if open_groups:
            raise PatternRefused("has a bracket that is not closed")
        return "".join(self._out)

    def _take(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        found = expression.match(self._pattern, self._at)
        self._at = found.end() if found else self._at
        return found

    def _open_group(self) -> None:
        found = self._take(_GROUP)
        assert found is not None, "a bracket is here"
        if found[0] == "(" and self._pattern.startswith("?", self._at):
            raise PatternRefused(f"has a look-around or flags (`{self._pattern[self._at - 1 : self._at + 3]}`)")
        self._out.append("(?:")

    def _atom(self, letter: str) -> str:
        if letter == "[":
            return self._class()
        if letter == "{":
            raise PatternRefused("has a `{` that begins no repetition: write `\\{`")
        if letter == ".":
            self._at += 1
            return self._written(_Item(inverted(_LINE_ENDS)))
        return self._written(self._letter(in_class=False))

    def _letter(self, *, in_class: bool) -> _Item:
        """A character, or an escape."""
        letter = self._pattern[self._at]
        self._at += 1
        if letter != "\\":
            return _Item(((ord(letter), ord(letter)),))
        return self._escape(in_class)

    def _escape(self, in_class: bool) -> _Item:
        if found := self._take(_HEX):
            return _point(self._joined(int(found[1] or found[2] or found[3], 16)))
        if found := self._take(_PROPERTY):
            return _Item(unicode=f"\\{found[1]}{{{found[2]}}}")
        if self._take(_BACK_REFERENCE):
            raise PatternRefused("has a back reference, which no automaton follows")
        letter = self._pattern[self._at : self._at + 1]
        self._at += 1
        if letter.lower() in _CLASSES:
            ranges = _CLASSES[letter.lower()]
            return _Item(ranges if letter.islower() else inverted(ranges))
        if letter in _CONTROLS:
            return _point(_CONTROLS[letter])
        if letter == "b" and in_class:
            return _point(8)
        if letter == "0" and not self._pattern[self._at : self._at + 1].isdigit():
            return _point(0)
        if letter == "c" and re.match("[A-Za-z]", self._pattern[self._at : self._at + 1]):
            self._at += 1
            return _point(ord(self._pattern[self._at - 1]) % 32)
        if not letter or letter.isalnum() or letter == "_":
            raise PatternRefused(f"has the escape `\\{letter}`, an unrecognized escape or one that cannot be enforced")
        return _point(ord(letter))

    def _joined(self, point: int) -> int:
        """Two halves of a character that are escaped one by one."""
        if 0xD800 <= point <= 0xDBFF and (low := self._take(_LOW_HALF)):
            return 0x10000 + ((point - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        if point > _LAST:
            raise PatternRefused("names a character that does not exist")
        return point

    def _class(self) -> str:
        self._at += 1
        negated = self._pattern.startswith("^", self._at)
        self._at += negated
        items: list[_Item] = []
        while not self._pattern.startswith("]", self._at):
            items.append(self._member())
        self._at += 1
        ranges = united(*(item.ranges for item in items))
        properties = [item.unicode for item in items if item.unicode]
        if not properties:
            return self._written(_Item(inverted(ranges) if negated else ranges))
        if negated:
            return f"[^{''.join(properties)}{_spelt(united(ranges, UNSPELT))}]"
        parts = [self._written(item) for item in items if item.unicode]
        return f"(?:{'|'.join([*parts, self._written(_Item(ranges))] if ranges else parts)})"

    def _member(self) -> _Item:
        """A character, a class or a range inside square brackets."""
        if self._at >= len(self._pattern):
            raise PatternRefused("has an unclosed character class")
        rest = self._pattern[self._at : self._at + 2]
        if rest in _SET_OPERATIONS or _POSIX.match(rest):
            raise PatternRefused(f"has `{rest}` in a character class, which other languages read differently: escape it")
        first = self._letter(in_class=True)
        following = self._pattern[self._at : self._at + 2]
        if not following.startswith("-") or following in ("-", "-]"):
            return first
        if following == "--":
            raise PatternRefused("has `--` in a character class, which other languages read differently: escape it")
        self._at += 1
        last = self._letter(in_class=True)
        if first.single is None or last.single is None or first.single > last.single:
            raise PatternRefused("has a range in a character class that does not go up from one character to another")
        return _Item(((first.single, last.single),))

    def _written(self, item: _Item) -> str:
        """As code points, without what has no spelling."""
        if item.unicode:
            other = "P" if item.unicode[1] == "p" else "p"
            return f"[^\\{other}{item.unicode[2:]}{_spelt(UNSPELT)}]"
        ranges = inverted(united(inverted(item.ranges), _NEVER))
        if not ranges:
            raise PatternRefused("asks for a character that an answer cannot hold: a control character, or none at all")
        single = _Item(ranges).single
        if single is not None and chr(single).isalnum():
            return chr(single)
        return f"[{_spelt(ranges)}]"


def _point(point: int) -> _Item:
    return _Item(((point, point),))


def _spelt(ranges: Ranges) -> str:
    return "".join(f"\\u{{{low:x}}}" if low == high else f"\\u{{{low:x}}}-\\u{{{high:x}}}" for low, high in ranges)
