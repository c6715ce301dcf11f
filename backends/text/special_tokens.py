"""Finds the texts of special tokens in a string.

A text is cut at special tokens before anything else is done with it. Of several that begin at one place the longest counts, and
matches do not overlap, going from left to right; llama.cpp lets the longest of all go first, which is the same as long as no
special text begins with the end of another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from tripower.runtime.kernel.errors import ModelRefused

LENGTH_MAX = 1024
BRANCHES_MAX = 64
"""A regular expression tries its branches one after the other."""


class SpecialTokens:
    """Cuts strings at the texts of `ids`. The cost is linear in the string, whatever the number of texts."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = dict(ids)
        if any(len(text) > LENGTH_MAX for text in ids):
            raise ModelRefused(
                f"tokenizer.ggml.tokens has a special token of more than {LENGTH_MAX} characters",
                code="limit_exceeded",
                param="tokenizer.ggml.tokens",
            )
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {start: tuple(sorted(found, reverse=True)) for start, found in lengths.items()}
        self._start = _start_pattern(lengths) if lengths else None

    def split(self, text: str) -> Iterator[str | int]:
        """The string as plain stretches (never empty) and token ids, in order."""
        done = 0
        for start, end in self._matches(text):
            if start > done:
                yield text[done:start]
            yield self._ids[text[start:end]]
            done = end
        if done < len(text):
            yield text[done:]

    def find(self, text: str) -> list[tuple[int, int]]:
        """Where special texts are, as (start, end)."""
        return list(self._matches(text))

    def _matches(self, text: str) -> Iterator[tuple[int, int]]:
        if self._start is None:
            return
        position = 0
        while found := self._start.search(text, position):
            start = found.start()
            end = self._longest(text, start)
            if end:
                yield start, end
            position = end or start + 1

    def _longest(self, text: str, start: int) -> int:
        """The end of the longest special text at `start`; 0 if there is none."""
        for prefix in (text[start : start + 2], text[start]):
            for length in self._lengths.get(prefix, ()):
                end = start + length
                if end <= len(text) and text[start:end] in self._ids:
                    return end
        return 0


def _start_pattern(starts: Iterable[str]) -> re.Pattern[str]:
    """Matches wherever one or two characters begin some special text, or may begin one if there are very many."""
    seconds: dict[str, set[str]] = {}
    for start in starts:
        seconds.setdefault(start[0], set()).add(start[1:])
    if len(seconds) > BRANCHES_MAX:
        return re.compile(_one_of(seconds))
    branches = [re.escape(first) + ("" if "" in found else _one_of(found)) for first, found in seconds.items()]
    return re.compile("|".join(branches))


def _one_of(characters: Iterable[str]) -> str:
    return f"[{''.join(map(re.escape, sorted(characters)))}]"
