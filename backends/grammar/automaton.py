"""The automaton of one sequence: llguidance's matcher behind the contract's `Constraint`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from tripower.backends.grammar.vocabulary import GrammarVocabulary
from tripower.runtime.engine.constraint import TokenMask

_NOTHING, _TEXT, _END = range(3)
NO_TEXT = "no text of the format goes on from there"
_LIMITS = {
    "NoExtension": NO_TEXT,
    "too many expressions": "its patterns are too large once they are multiplied out",
    "too many states": "its patterns have more states than one answer may make",
    "fuel": "its patterns are too ambiguous for one step",
    "items": "it is too ambiguous for one step: too many readings of the text are open at once",
}
"""What llguidance says when it stops → what that means."""


class GrammarConstraint:
    """Implements `runtime.engine.ExplainedConstraint`: a few microseconds for a token, up to some milliseconds where a string begins.

    It never raises. Where llguidance gives up on a text (a limit of `formats.parser_limits` is hit), the mask allows the end tokens if
    the text may end there, and nothing otherwise; then `exhausted` says why.

    The matcher is this sequence's own and compiled for it. A copy of one would share its lexer: the states that it makes while masks are
    computed would outlive the sequence, and one text that reaches a limit would break every other.
    """

    def __init__(self, new_matcher: Callable[[], LLMatcher], vocabulary: GrammarVocabulary, param: str | None = None) -> None:
        self._new_matcher = new_matcher
        self._matcher = new_matcher()
        self._vocabulary = vocabulary
        self.param = param
        """The field of the request that asked for it."""
        self.exhausted = ""
        """Why the last mask allows nothing; empty if it does allow something."""
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
            broken = self._matcher.is_error()
            if broken:
                self._give_up()
            self.exhausted = "" if self._words.max() else self._reason() if broken else NO_TEXT
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
            self._matcher = self._new_matcher()
            self._matcher.consume_tokens(self._accepted)
        self._fresh = False

    def _allows(self, token: int) -> bool:
        if not 0 <= token < self._vocabulary.size:
            return False
        return bool(int(self.mask()[token >> 5]) >> (token & 31) & 1)

    def _give_up(self) -> None:
        """After an error the matcher's masks say nothing, so another one is asked whether the text may end here."""
        matcher = self._new_matcher()
        self._words[:] = 0
        if matcher.consume_tokens(self._accepted) and matcher.is_accepting():
            for token in self._vocabulary.ends:
                self._words[token >> 5] |= np.uint32(1 << (token & 31))

    def _reason(self) -> str:
        """The limit that was hit, for people."""
        message = self._matcher.get_error()
        return next((what for mark, what in _LIMITS.items() if mark in message), message.split("\n", 1)[0][:200])
