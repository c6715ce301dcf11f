"""Guesses at what comes next, for one sequence.

A *draft* is a few tokens that may follow the last known one. The engine evaluates them in the same step as everybody's rows, draws at each
of their positions as it would have without them, and keeps what was guessed right and one token more. So a draft changes how many
steps an answer takes, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """Belongs to one sequence; made off the lane, used on the lane from the sequence's first step on. Synchronous, quick."""

    def propose(self, most: int) -> Sequence[int]:
        """At most `most` tokens that may follow what has been accepted so far; none where there is no good guess.

        `most` is what the step has room for; how many are worth their rows is the drafter's own decision.
        """

    def accept(self, tokens: Sequence[int], proposed: int) -> None:
        """These were drawn: the guesses that were right, and one more. `proposed` is how many had been guessed at."""
