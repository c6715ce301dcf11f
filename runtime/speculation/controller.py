"""How many guessed tokens are worth their rows.

A step with w guesses costs what the table says for its rows, and yields one token and the guesses that were right. From the rates at
which this request's guesses were right so far follows what each width is expected to yield, and the width is taken that yields most
for its cost. Rates are kept apart by what speaks for a guess (how long a suffix matched) and for the first guess of a draft and those behind it.

Guesses are judged whether or not they were evaluated: what was drawn tells in hindsight, and costs no row. So a request that stopped
drafting finds out without risk that drafting would pay again.

Rates can be wrong, and somebody may want them to be. So there is a ledger. Before a step takes guesses, it is asked what all of them
being wrong would do to the request's whole account, and only widths are allowed that leave it within 2 % of what plain steps would
have cost. The bound therefore holds at every token of every text, by construction and not by luck.

The idea of a width by expected tokens for their cost is that of Leviathan et al. 2023, "Fast Inference from Transformers via
Speculative Decoding", section 3.4; measured rates and the ledger are ours. Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from tripower.runtime.engine.drafting import Beside
from tripower.runtime.engine.row_costs import RowCosts
from tripower.runtime.speculation.settings import DRAFT_ADAPTIVE

SLOWEST = 0.98
"""No request is slower than this, by steps and the table, against itself without speculation."""
HOT_WIDTHS = (1, 2, 3, 4, 5, 7, 8, 11, 15, 23, 31, 47, 63, 64)
"""Widths that are considered, besides none: few, so that an engine with a shape for each needs few shapes."""
GRADES = (1, 2, 3, 5, 10)
"""Matched tokens from which a guess belongs to the next grade."""
GRADE_OF = tuple(sum(length <= matched for length in GRADES) for matched in range(GRADES[-1]))
FIRST_RATES = (0.1, 0.27, 0.5, 0.66, 0.86, 0.96)
"""By grade, how often the first guess of a draft is right before anything is known of this request."""
NEXT_RATES = (0.5, 0.55, 0.65, 0.8, 0.89, 0.97)
"""The same of a guess behind a right one."""
PRIOR_WEIGHT = 3.0
"""Guesses that the numbers above count for."""
KEPT = 0.94
"""What is left of a guess's weight with each further guess of its kind: the last 17 or so decide."""
FADING = 0.01
"""How much of what was learnt is forgotten with each token that passes without a guess, where guesses are not free."""


class Rate:
    """How often guesses of one kind were right lately, between 0 and 1."""

    __slots__ = ("_prior", "_right", "_seen")

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._seen = PRIOR_WEIGHT
        self._right = PRIOR_WEIGHT * prior

    @property
    def value(self) -> float:
        return self._right / self._seen

    def count(self, right: bool) -> None:
        """One more guess of this kind was right or wrong."""
        self._seen = self._seen * KEPT + 1.0
        self._right = self._right * KEPT + right

    def fade(self) -> None:
        """Nothing was seen for a token: go a hundredth of the way back to what was believed at the beginning."""
        self._right += (self._prior * self._seen - self._right) * FADING


class Ledger:
    """What a request's steps have cost, and what plain steps would have; in units of a plain step alone."""

    __slots__ = ("cost", "loan", "plain")

    def __init__(self, loan: float = 0.0) -> None:
        self.cost = 0.0
        self.plain = 0.0
        self.loan = loan
        """What may be lost at the beginning, before 2 % come to as much."""

    def affords(self, extra: float, price: float) -> bool:
        """Whether a step may cost `extra` more than the `price` of its one certain token, and nothing come of it."""
        cost, plain = self.cost + price + extra, self.plain + price
        return cost * SLOWEST <= plain or cost <= plain + self.loan

    def enter(self, extra: float, price: float, tokens: int) -> None:
        """A step cost `price` and `extra`, and brought `tokens`, each of which costs `price` in a plain step."""
        self.cost += price + extra
        self.plain += price * tokens


class Controller:
    """Chooses the widths of one request's drafts by counts and by a table. Belongs to one thread at a time."""

    def __init__(self, costs: RowCosts, *, width_max: int = DRAFT_ADAPTIVE, loan: float = 0.0) -> None:
        self._costs = costs
        self._widths = tuple(width for width in HOT_WIDTHS if width < width_max) + (width_max,)
        self._first = [Rate(prior) for prior in FIRST_RATES]
        self._next = [Rate(prior) for prior in NEXT_RATES]
        self.ledger = Ledger(loan)

    def choose(self, most: int, matched: int, beside: Beside, *, first: float = 0.0, each: float = 0.0) -> int:
        """How many of `most` guesses to evaluate in a step that has so much of others; 0 for none.

        Others' rows are taken to bring a token each: what counts is tokens for their cost. `first` and `each` are what making the first
        guess and a further one costs, in steps with one row.
        """
        costs, rows = self._costs, beside.rows + 1
        grade = grade_of(matched)
        reach, following = self._first[grade].value, self._next[grade].value
        price = costs.token(beside)
        best, best_yield = 0, 1 / price
        expected, counted = float(rows), 0
        for width in self._widths:
            width = min(width, most)
            while counted < width:
                expected += reach
                reach *= following
                counted += 1
            extra = costs.guesses(beside, width) + first + each * (width - 1)
            cost = price * rows + extra
            if expected > best_yield * cost and self.ledger.affords(extra, price):
                best, best_yield = width, expected / cost
            if width == most:
                break
        return best

    def judge(self, guesses: Sequence[int], drawn: Sequence[int], matched: int) -> int:
        """Learn from what was drawn where these were the guesses; how many were right."""
        grade, right = grade_of(matched), 0
        for guess, token in zip(guesses, drawn, strict=False):
            rate = self._next[grade] if right else self._first[grade]
            rate.count(guess == token)
            if guess != token:
                break
            right += 1
        return right

    def judge_first(self, right: bool, matched: int) -> None:
        """Learn from a guess that was not evaluated, by what was drawn in its place."""
        self._first[grade_of(matched)].count(right)

    def judge_next(self, right: bool, matched: int) -> None:
        """Learn from a guess behind a right one, where neither was evaluated."""
        self._next[grade_of(matched)].count(right)

    def fade(self, matched: int) -> None:
        """A token passed without a guess of this kind: what was learnt of them counts for less."""
        grade = grade_of(matched)
        self._first[grade].fade()
        self._next[grade].fade()

    def settle(self, proposed: int, tokens: int, beside: Beside, spent: float = 0.0) -> float:
        """A step with `proposed` guesses, made for `spent`, brought `tokens`; how many plain steps that saved, below 0 if it cost more."""
        extra, price = self._costs.guesses(beside, proposed) + spent, self._costs.token(beside)
        self.ledger.enter(extra, price, tokens)
        return tokens - 1 - extra / price


def grade_of(matched: int) -> int:
    """The kind of guess that a match of so many tokens makes."""
    return GRADE_OF[matched] if matched < len(GRADE_OF) else len(GRADES)
