"""Where the last few tokens of a text stood before: the index behind drafts that need no weights (BK §2.3).

For every length from `shortest` to `longest` a dictionary knows, by a hash of that many tokens, the position behind their most recent
occurrence. A suffix is looked up from the longest length down. An occurrence is entered when the token behind it is known, so a
suffix never finds itself, and what is found has a token to go on with. Hashes may collide, so the tokens are compared.

A token costs a few dictionary operations; a prompt is hashed in one go by numpy. Memory is bounded by the text's length: about
100 bytes for each token and length, a hundredth of what the token's state takes in the model.

Prompt lookup is known from LLM inference since 2023 (A. Saxena, "Prompt Lookup Decoding"); hashing each length is the specification's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MULTIPLIER = 0x9E3779B97F4A7C15
"""Odd, with well mixed bits: 2^64 divided by the golden ratio."""
MASK = (1 << 60) - 1
"""Hashes have 60 bits: the widest that Python keeps in two digits."""


class SuffixIndex:
    """A text that grows, and where its suffixes occurred. Positions count from 0; not safe to use from two threads."""

    def __init__(self, tokens: Sequence[int], *, shortest: int, longest: int) -> None:
        """Index a prompt: 8,000 tokens take a few milliseconds."""
        assert 1 <= shortest <= longest
        self.tokens = list(tokens)
        self._shortest, self._longest = shortest, longest
        hashes = hash_suffixes(self.tokens, longest)
        self._hashes = [0] + [int(each[-1]) if len(each) else 0 for each in hashes]
        """By length, of the text's last tokens; 0 at lengths that the text has not reached, and at no length."""
        self._behind: list[dict[int, int]] = [
            dict(zip(hashes[length - 1][:-1].tolist(), range(length, len(self.tokens)), strict=True))
            for length in range(shortest, longest + 1)
        ]

    def push(self, token: int, *, index: bool = True) -> None:
        """Append a token. `index`: what stands before it may be found from now on."""
        tokens, hashes = self.tokens, self._hashes
        position = len(tokens)
        if index:
            for behind, suffix in zip(self._behind, hashes[self._shortest :], strict=True):
                behind[suffix] = (
                    position  # in a text that is shorter still, a hash that stands for nothing and is never confirmed
                )
        value = token + 1
        hashes[1:] = [(shorter * MULTIPLIER + value) & MASK for shorter in hashes[:-1]]
        tokens.append(token)

    def find(self) -> tuple[int, int]:
        """The position behind the most recent occurrence of the longest suffix that has one, and its length; (-1, 0) for none."""
        tokens, end = self.tokens, len(self.tokens)
        for length in range(min(self._longest, end), self._shortest - 1, -1):
            behind = self._behind[length - self._shortest].get(self._hashes[length], -1)
            if behind >= 0 and tokens[behind - length : behind] == tokens[end - length :]:
                return behind, length
        return -1, 0


def hash_suffixes(tokens: Sequence[int], longest: int) -> list[NDArray[np.uint64]]:
    """For each length from 1, hashes of all runs of so many tokens, uint64 [tokens + 1 - length] in text order."""
    values = np.asarray(tokens, np.uint64) + np.uint64(1)
    hashes = [values & np.uint64(MASK)]
    for length in range(2, longest + 1):
        longer = hashes[-1][:-1] * np.uint64(MULTIPLIER) + values[length - 1 :]
        hashes.append(longer & np.uint64(MASK))
    return hashes
