"""Drafts from the text itself: what followed the last tokens where they stood before (BK §2.3).

`prompt lookup` searches and copies the prompt only. `ngram context` searches prompt and output, the most recent occurrence first, and a
copy may run on into what it has copied itself, so that a loop of any period is followed as far as a draft reaches.

While a copy goes right it is kept: its occurrence matches more tokens than the index looks up, so it is the longest one. When one
token differs, the copy goes on behind it for want of something better: an edit replaces a word and keeps the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tripower.runtime.speculation.suffix_index import SuffixIndex

NOWHERE = -1


class Source(Protocol):
    """Guesses one sequence's next tokens. Belongs to one thread at a time."""

    @property
    def token_cost(self) -> float:
        """What a guess costs, in the target's steps with one row; 0 where it is free."""

    @property
    def spent(self) -> float:
        """What has been guessed since the last token came cost."""

    @property
    def matched(self) -> int:
        """What speaks for the next guess: the number of last tokens that agree with where it comes from."""

    def guess(self, most: int) -> Sequence[int]:
        """At most `most` tokens that may follow; none for want of a guess. Changes nothing."""

    def push(self, token: int) -> None:
        """This token followed."""


class Lookup:
    """A `Source` that needs no weights. `grows`: output is searched too."""

    token_cost = spent = 0.0

    def __init__(self, prompt: Sequence[int], *, grows: bool, shortest: int = 2, longest: int = 5) -> None:
        """Indexes the prompt; to be made off the loop and off the lane. `shortest` and `longest` are numbers of tokens."""
        self._index = SuffixIndex(prompt, shortest=shortest, longest=longest)
        self._tokens = self._index.tokens
        self._grows = grows
        self._prompt_length = len(prompt)
        self._longest = longest
        self._at, self.matched = self._index.find()

    def guess(self, most: int) -> list[int]:
        """At most `most` tokens from behind the match; the prompt ends a copy that does not grow."""
        at, tokens = self._at, self._tokens
        if at == NOWHERE or most < 1:
            return []
        if not self._grows:
            return tokens[at : min(at + most, self._prompt_length)]
        copied = tokens[at : at + most]
        period = len(copied)
        while len(copied) < most:  # the copy has reached the text's end: it goes on with itself
            copied += copied[: min(period, most - len(copied))]
        return copied

    def push(self, token: int) -> None:
        """Append a token and look for what may follow it. Amortised constant time."""
        at, matched = self._at, self.matched
        going = at != NOWHERE and self._tokens[at] == token
        self._index.push(token, index=self._grows)
        if going and matched >= self._longest and self._reaches(at + 1):
            self._at, self.matched = at + 1, matched + 1
            return
        self._at, self.matched = self._index.find()
        if self._at == NOWHERE and at != NOWHERE and self._reaches(at + 1):
            self._at, self.matched = at + 1, matched + 1 if going else 0

    def _reaches(self, at: int) -> bool:
        """Whether there is a token to copy."""
        return at < (len(self._tokens) if self._grows else self._prompt_length)
