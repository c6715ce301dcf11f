"""Guesses of a draft model for one sequence, and what asking it has cost."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tripower.runtime.engine import SamplingParameters
from tripower.runtime.speculation.draft_model import ROWS_AT_A_TIME, DraftModel

log = logging.getLogger("tripower.steps")

NOWHERE = -1
MATCHED = 3
"""What a draft model's guesses are taken to be worth before any was judged: as much as a lookup's that agrees in so many tokens."""


class ModelSource:
    """A `Source` whose guesses cost steps of a draft model. On the lane; making one costs nothing.

    What was guessed and neither drawn nor refuted yet is kept: it is the beginning of the next guess.
    """

    matched = MATCHED

    def __init__(self, draft: DraftModel, prompt: Sequence[int], sampling: SamplingParameters, *, sure: float = 0.0) -> None:
        """`sure`: a guess ends in front of a token that the draft believes in less than this."""
        self.sequence = NOWHERE
        """Whose states are asked: said by the engine before the first guess."""
        self.spent = 0.0
        self.lost = False
        """Whether the draft has failed: this sequence goes on without."""
        self._draft, self._sampling, self._sure = draft, sampling, sure
        self._text, self._prompt_length = list(prompt), len(prompt)
        self._unpaid = len(prompt)
        """Tokens whose reading is not counted: the prompt, and what is said while a long one is read."""
        self._ahead: list[int] = []
        """Guesses behind the text's end."""

    @property
    def token_cost(self) -> float:
        return self._draft.step_cost

    @property
    def first_cost(self) -> float:
        """What the next guess's first token costs: its step evaluates what was drawn since the last one. The prompt is not counted."""
        known = max(self._draft.length(self.sequence), self._unpaid)
        return self._draft.price(max(len(self._text) - known, 1))

    def guess(self, most: int) -> list[int]:
        """At most `most` tokens; none while the prompt is not evaluated yet, of which each call does a part. Blocks for steps."""
        if len(self._ahead) >= most:
            return self._ahead[:most]
        if self.lost or self.sequence == NOWHERE:
            return []
        try:
            self._ahead = self._ask(most)
        except Exception:
            log.exception("the draft model failed: a sequence goes on without")
            self.lost, self._ahead = True, []
        return list(self._ahead)

    def push(self, token: int) -> None:
        """This token followed: what the draft has evaluated of a wrong guess is forgotten."""
        if self._ahead:
            right = self._ahead[0] == token
            del self._ahead[: 1 if right else None]
            if not right:
                self._draft.trim(self.sequence, len(self._text))
        self._text.append(token)
        self.spent = 0.0

    def _ask(self, most: int) -> list[int]:
        draft, text, sequence = self._draft, self._text, self.sequence
        draft.trim(sequence, len(text) - 1)
        start = draft.length(sequence)
        if start < self._unpaid:
            end = min(start + ROWS_AT_A_TIME, self._unpaid)
            draft.read(sequence, text[start:end])
            if end < self._unpaid:
                self._unpaid = len(text) - 1
                return []
        self.spent += self.first_cost + (most - 1) * self.token_cost
        return draft.guess(sequence, text, most, prompt_length=self._prompt_length, sampling=self._sampling, sure=self._sure)
