"""Finds the texts of special tokens in a string.

A text is cut at special tokens before anything else is done with it. Of several that begin at one place the longest counts, and
matches do not overlap, going from left to right; llama.cpp lets the longest of all go first, which is the same as long as no
special text begins with the end of another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tripower.runtime.kernel.errors import ModelRefused

LENGTH_MAX = 1024


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
                if text[start : start + length] in self._ids:
                    return start + length
        return 0


def _start_pattern(starts: Mapping[str, object]) -> re.Pattern[str]:
    """Matches wherever one or two characters begin some special text."""
    seconds: dict[str, set[str]] = {}
    for start in starts:
        seconds.setdefault(start[0], set()).add(start[1:])
    branches = []
    for first, found in sorted(seconds.items()):
        alone = "" in found
        branches.append(re.escape(first) if alone else f"{re.escape(first)}[{''.join(map(re.escape, sorted(found)))}]")
    return re.compile("|".join(branches))
