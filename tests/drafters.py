"""Drafters for tests: they know what will be said, or think that they do."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tripower.runtime.engine.drafting import ALONE, Beside


class Teller:
    """Proposes what its `answer` has next, with a share of `wrong` guesses, at most `width` at a time; keeps what it was told."""

    token_cost = spent = 0.0

    def __init__(
        self, answer: Sequence[int], *, width: int = 4, wrong: float = 0.0, seed: int = 0, vocabulary: int = 96
    ) -> None:
        self._answer, self._width, self._wrong = list(answer), width, wrong
        self._chance = random.Random(seed)
        self._vocabulary = vocabulary
        self.told: list[int] = []
        self.proposed = 0
        """Guesses that were evaluated."""

    @property
    def quiet(self) -> int:
        return 0

    def propose(self, most: int, beside: Beside = ALONE) -> Sequence[int]:
        assert most >= 1 and beside.rows >= 0 and beside.prompts >= 0 and beside.reading >= 0
        width = self._width if not 0 < self._wrong < 1 else self._chance.randint(0, self._width)
        known = self._answer[len(self.told) : len(self.told) + min(width, most)]
        return [
            (token + 1 + self._chance.randrange(self._vocabulary - 1)) % self._vocabulary
            if self._chance.random() < self._wrong
            else token
            for token in known
        ]

    def accept(self, tokens: Sequence[int], proposed: int) -> None:
        assert len(tokens) <= proposed + 1
        self.told += tokens
        self.proposed += proposed


class Resting(Teller):
    """Proposes nothing for `rest` tokens after each proposal."""

    def __init__(self, answer: Sequence[int], *, rest: int = 5, width: int = 4) -> None:
        super().__init__(answer, width=width)
        self._rest, self._until = rest, 0

    @property
    def quiet(self) -> int:
        return max(self._until - len(self.told), 0)

    def propose(self, most: int, beside: Beside = ALONE) -> Sequence[int]:
        assert not self.quiet, "asked while it rests"
        return super().propose(most, beside)

    def accept(self, tokens: Sequence[int], proposed: int) -> None:
        super().accept(tokens, proposed)
        if proposed:
            self._until = len(self.told) + self._rest


class Failing(Teller):
    """Fails when it is asked, or when it is told."""

    def __init__(self, *, when: str) -> None:
        super().__init__([1, 2, 3] * 20)
        self._when = when

    def propose(self, most: int, beside: Beside = ALONE) -> Sequence[int]:
        if self._when == "asked":
            raise RuntimeError("the drafter is lost")
        return super().propose(most, beside)

    def accept(self, tokens: Sequence[int], proposed: int) -> None:
        if self._when == "told":
            raise RuntimeError("the drafter is lost")
        super().accept(tokens, proposed)
