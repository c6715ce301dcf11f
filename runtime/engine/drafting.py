"""Guesses at what comes next, for one sequence.

A *draft* is a few tokens that may follow the last known one. The engine evaluates them in the same step as everybody's rows, draws at each
of their positions as it would have without them, and keeps what was guessed right and one token more. So a draft changes how many
steps an answer takes, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs


@attrs.frozen
class Beside:
    """What a step has besides one sequence's own rows: it decides what a further row costs, and what a token is worth."""

    rows: int = 0
    """A first row of everybody else, and guesses behind them: about a token each."""
    prompts: int = 0
    """Rows of prompts beyond their first ones, where the engine counts them. They bring nobody a token, and cost what they cost whenever they are evaluated."""
    reading: float = 0.0
    """What others' states add to the step, in steps with one row: see `drafts.reading_cost`."""


ALONE = Beside()


class Drafter(Protocol):
    """Belongs to one sequence; made off the lane, used on the lane from the sequence's first step on. Synchronous.

    Quick, or it says what its guesses cost.
    """

    @property
    def quiet(self) -> int:
        """Tokens to come at which it will propose nothing, whatever they are; 0: ask at the next step.

        A native loop may run so many steps ahead without asking. What they drew is told by `accept` afterwards, in pieces or at once.
        """

    @property
    def token_cost(self) -> float:
        """What making a guess costs, in steps with one row; 0 where it is nearly free."""

    @property
    def spent(self) -> float:
        """What the proposals since the last token cost, in steps with one row."""

    def propose(self, most: int, beside: Beside = ALONE) -> Sequence[int]:
        """At most `most` tokens that may follow what has been accepted so far; none where there is no good guess.

        `most` is what the step has room for; how many are worth their rows is the drafter's own decision: a further row is cheap in a
        small step and may cost its full price in a large one. A step that fails is asked for again: proposing changes nothing that a
        later proposal depends on.
        """

    def accept(self, tokens: Sequence[int], proposed: int) -> None:
        """These were drawn: the guesses that were right, and one more. `proposed` is how many had been evaluated as guesses.

        Called for every drawn token, the first one and those of steps without a proposal (`proposed` = 0) included.
        """


@attrs.define
class DraftTally:
    """What a job's guesses took, for reports only: no decision reads it. Written on the lane, read when the job has ended.

    Times are seconds of a monotonic clock.
    """

    draft_seconds: float = 0.0
    """In drafters: guesses, and learning from what was drawn."""
    verify_seconds: float = 0.0
    """Steps that evaluated guesses, other members' rows included."""
    fallbacks: int = 0
    """Times that a drafter stopped guessing until guesses would have been right again, or failed."""
    ready_at: float = 0.0
    """When the last drafter of the present step had been asked."""

    def take(self) -> DraftTally:
        """What was counted since the last time."""
        taken = DraftTally(self.draft_seconds, self.verify_seconds, self.fallbacks)
        self.draft_seconds = self.verify_seconds = 0.0
        self.fallbacks = 0
        return taken

    def add(self, other: DraftTally) -> None:
        """Count what another one has counted."""
        self.draft_seconds += other.draft_seconds
        self.verify_seconds += other.verify_seconds
        self.fallbacks += other.fallbacks
