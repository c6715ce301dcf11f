"""How many guessed rows a shared step may have, so that nobody's tokens come later for somebody else's drafts.

A member of a batch sits through whole steps. Guessed rows make a step dearer for all of them, and those whose guesses are right get more
tokens out of it. So each member has a pace: what the steps of late have cost it, beside what plain steps would have for as many tokens. A
step gets only as many guessed rows as leave every member within 5 % of its plain pace even if all guesses are wrong. Members whose own guesses are
right build up a margin; with a plain neighbour, or a chat, drafts get rows once in a while at most.

Whoever is furthest behind its plain pace is asked first and may have all the room, since the margin of the last one is everybody's room in the
next step. In equal parts, those who need none get as much as the one that everybody waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from tripower.runtime.engine.drafting import Beside
from tripower.runtime.engine.row_costs import RowCosts

LATER_MAX = 1.05
"""How much longer a token may take than in steps without guesses."""
KEPT = 0.98
"""What is left of a step's weight after each further one: some 50 steps make a pace, so that an old margin is no licence."""


Ask: TypeAlias = Callable[[int, int, Beside], list[int]]
"""Of a slot: its guesses, at most so many, for a step that has so much besides its own rows."""


class Pace:
    """What one member's tokens cost it lately: `cost` of the steps it sat through, `plain` of as many tokens in plain steps."""

    __slots__ = ("cost", "plain")

    def __init__(self) -> None:
        self.cost = 0.0
        self.plain = 0.0

    def settle(
        self,
        costs: RowCosts,
        plain_rows: int,
        drafted_rows: int,
        tokens: int,
        *,
        spent: float = 0.0,
        reading: float = 0.0,
    ) -> None:
        """A step with so many plain and guessed rows of everybody, made for `spent`, brought this member `tokens`.

        `reading`: what the sequences' states added to it.
        """
        self.cost = self.cost * KEPT + costs.step(plain_rows + drafted_rows) + reading + spent
        self.plain = self.plain * KEPT + (costs.step(plain_rows) + reading) * tokens

    @property
    def lag(self) -> float:
        """How long its tokens take lately, in times of plain ones: below 1 for a member whose guesses are right."""
        return self.cost / self.plain if self.plain else 1.0


def draft_room(
    costs: RowCosts, paces: Iterable[Pace], plain_rows: int, most: int, *, each: float = 0.0, reading: float = 0.0
) -> int:
    """How many guessed rows a step with `plain_rows` may have, at most `most`. `paces` are of all members that decode.

    `each` is what making a guess costs, in steps with one row: everybody waits for that as well. `reading` is what the sequences'
    states add to the step.
    A member alone in its step has no neighbours, and its own drafter's ledger looks after it.
    """
    members = list(paces)
    if len(members) < 2:
        return most
    plain = costs.step(plain_rows) + reading
    bound = min(LATER_MAX * (pace.plain * KEPT + plain) - pace.cost * KEPT for pace in members)
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if costs.step(plain_rows + middle) + reading + each * middle <= bound:
            low = middle
        else:
            high = middle - 1
    return low


def ask_in_turn(asking: Iterable[int], paces: Sequence[Pace], room: int, beside: Beside, ask: Ask) -> dict[int, list[int]]:
    """The guesses of those slots that have some, `room` of them at most: whoever is furthest behind is asked first. `paces` are of all slots."""
    found: dict[int, list[int]] = {}
    for slot in sorted(asking, key=lambda slot: -paces[slot].lag):
        if guesses := ask(slot, room, beside):
            found[slot] = guesses
            room -= len(guesses)
            beside = Beside(beside.rows + len(guesses), beside.prompts, beside.reading)
    return found
