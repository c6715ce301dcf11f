"""Constraints for tests: automata over token ids, with a memory of what they were told."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tripower.runtime.engine import TokenMask


def mask_of(tokens: Collection[int], vocabulary: int) -> TokenMask:
    """The mask that allows exactly these."""
    mask = np.zeros(-(-vocabulary // 32), np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


class Script:
    """Allows `steps[n]` at the n-th token, and nothing after the last; the last goes on for ever with `repeat`."""

    def __init__(self, steps: Sequence[Collection[int]], vocabulary: int, *, repeat: bool = False) -> None:
        self._steps, self._vocabulary, self._repeat = steps, vocabulary, repeat
        self.accepted: list[int] = []
        self.asked: list[int] = []
        """How many tokens had been accepted at each question."""

    def mask(self) -> TokenMask:
        index = len(self.accepted)
        self.asked.append(index)
        if self._repeat:
            index = min(index, len(self._steps) - 1)
        return mask_of(self._steps[index] if index < len(self._steps) else (), self._vocabulary)

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def valid_prefix(self, tokens: Sequence[int]) -> int:
        for place, token in enumerate(tokens):
            index = len(self.accepted) + place
            index = min(index, len(self._steps) - 1) if self._repeat else index
            if index >= len(self._steps) or token not in self._steps[index]:
                return place
        return len(tokens)

    def take_back(self, count: int) -> None:
        del self.accepted[len(self.accepted) - count :]


class Broken(Script):
    """Fails whenever it is asked."""

    def __init__(self) -> None:
        super().__init__((), 1)

    def mask(self) -> TokenMask:
        raise RuntimeError("the automaton is lost")
