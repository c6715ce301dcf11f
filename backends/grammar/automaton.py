"""The automaton of one sequence: llguidance's matcher behind the contract's `Constraint`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from tripower.backends.grammar.vocabulary import GrammarVocabulary
from tripower.runtime.engine.constraint import TokenMask

_NOTHING, _TEXT, _END = range(3)


class GrammarConstraint:
    """Implements `runtime.engine.Constraint`: a few microseconds for a token, up to some milliseconds where a string begins.

    It never raises. Where llguidance gives up on a text (its limits for one step are hit), the mask allows the end tokens if the text may
    end there, and nothing otherwise.
    """

    def __init__(self, start: LLMatcher, vocabulary: GrammarVocabulary) -> None:
        self._start = start
        self._matcher = start.deep_copy()
        self._vocabulary = vocabulary
        self._accepted: list[int] = []
        self._words: NDArray[np.uint32] = np.zeros((vocabulary.size + 31) // 32, np.uint32)
        self._address = self._words.ctypes.data
        self._fresh = False
        self._ended = False
        self._told: list[int] = []
        """What each token that `accept` was told of has changed: `_NOTHING`, `_TEXT` or `_END`."""

    def mask(self) -> TokenMask:
        """What may come next. The same array each time; it holds until `accept`."""
        if not self._fresh:
            self._matcher.unsafe_compute_mask_ptr(self._address, self._words.nbytes)
            if self._matcher.is_error():
                self._give_up()
            self._fresh = True
        return self._words

    def accept(self, token: int) -> None:
        """Go on behind `token`. One that ends the text, or that the mask did not allow, changes nothing."""
        if self._ended or not self._allows(token):
            self._told.append(_NOTHING)
            return
        if token in self._vocabulary.ends:
            self._ended = True
            self._told.append(_END)
            return
        self._told.append(_TEXT)
        self._accepted.append(token)
        self._matcher.consume_token(token)
        self._fresh = False

    def valid_prefix(self, tokens: Sequence[int]) -> int:
        """How many of these the text may go on with. Changes nothing."""
        if self._ended or self._matcher.is_error():
            return 0
        return int(self._matcher.validate_tokens(list(tokens)))

    def take_back(self, count: int) -> None:
        """Go back to before the last `count` tokens. After an error of the matcher the text is read anew."""
        told = self._told[len(self._told) - count :]
        del self._told[len(self._told) - count :]
        if _END in told:
            self._ended = False
        text = told.count(_TEXT)
        if not text:
            return
        del self._accepted[len(self._accepted) - text :]
        if self._matcher.is_error() or not self._matcher.rollback(text):
            self._matcher = self._start.deep_copy()
            self._matcher.consume_tokens(self._accepted)
        self._fresh = False

    def _allows(self, token: int) -> bool:
        if not 0 <= token < self._vocabulary.size:
            return False
        return bool(int(self.mask()[token >> 5]) >> (token & 31) & 1)

    def _give_up(self) -> None:
        """After an error the matcher's masks say nothing, so another one is asked whether the text may end here."""
        matcher = self._start.deep_copy()
        self._words[:] = 0
        if matcher.consume_tokens(self._accepted) and matcher.is_accepting():
            for token in self._vocabulary.ends:
                self._words[token >> 5] |= np.uint32(1 << (token & 31))
