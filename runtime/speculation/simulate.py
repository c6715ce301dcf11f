"""What a drafter would have made of an answer that is known already: steps and their cost by the table, without a model.

Speculation changes no token, so a recorded greedy answer tells all there is to know of a drafter: at each step the guesses are compared
with what came. That makes claims about any text provable in microseconds, and the same way on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tripower.runtime.engine.drafting import ALONE, Beside, Drafter
from tripower.runtime.engine.row_costs import RowCosts
from tripower.runtime.engine.row_sharing import Pace, ask_in_turn, draft_room


class Simulation(msgspec.Struct, frozen=True):
    """One answer with a drafter. The first token comes from the prompt's own step, which is left out."""

    passes: int
    """Steps that the answer took."""
    cost: float
    """What they cost, in plain steps alone; with rows beside, the drafts' extra cost on top of this sequence's share."""
    baseline_cost: float
    """The same of plain steps."""
    proposed: int
    accepted: int
    tokens: int

    @property
    def tokens_per_pass(self) -> float:
        return (self.tokens - 1) / self.passes if self.passes else 1.0

    @property
    def gain(self) -> float:
        """How many times as fast as without the drafter, by steps and the table."""
        return self.baseline_cost / self.cost if self.cost else 1.0


def simulate(output: Sequence[int], drafter: Drafter, costs: RowCosts, *, beside: Beside = ALONE, most: int = 64) -> Simulation:
    """Let a drafter, made for the answer's prompt, draft its way through `output`. `most` is what steps have room for."""
    passes = proposed = accepted = 0
    cost, share = 0.0, costs.token(beside)
    if output:
        drafter.accept(output[:1], 0)
    at = 1
    while at < len(output):
        left = min(most, len(output) - at - 1)
        draft = drafter.propose(left, beside) if left else ()
        right = _right(draft, output, at)
        cost += share + costs.guesses(beside, len(draft)) + drafter.spent
        drafter.accept(output[at : at + right + 1], len(draft))
        at += right + 1
        passes += 1
        proposed += len(draft)
        accepted += right
    baseline = share * max(len(output) - 1, 0)
    return Simulation(passes, cost, baseline, proposed, accepted, len(output))


class Member(msgspec.Struct):
    """One answer among others in `simulate_together`."""

    output: Sequence[int]
    drafter: Drafter | None
    at: int = 1
    """Tokens that are there."""
    cost: float = 0.0
    """Of all steps up to its last token."""
    plain: float = 0.0
    """Of as many plain steps as it has tokens, each with the members that there were when it came."""
    pace: Pace = msgspec.field(default_factory=Pace)


def simulate_together(members: Sequence[Member], costs: RowCosts, *, rows_max: int = 64) -> float:
    """Let answers share their steps until the last is there; returns the cost of all steps, and leaves the rest in the members."""
    total = 0.0
    for member in members:
        if member.drafter is not None:
            member.drafter.accept(member.output[:1], 0)
    while running := [member for member in members if member.at < len(member.output)]:
        plain_rows = len(running)
        drafters = [member.drafter for member in running if member.drafter is not None]
        each = max((drafter.token_cost for drafter in drafters), default=0.0)
        room = draft_room(costs, [member.pace for member in running], plain_rows, rows_max - plain_rows, each=each)

        def ask(place: int, room: int, beside: Beside, running: Sequence[Member] = running) -> list[int]:
            member = running[place]
            left = min(room, len(member.output) - member.at - 1)
            return list(member.drafter.propose(left, beside)) if member.drafter is not None and left > 0 else []

        found = ask_in_turn(range(plain_rows), [member.pace for member in running], room, Beside(plain_rows - 1), ask)
        drafted, spent = sum(map(len, found.values())), sum(drafter.spent for drafter in drafters)
        total += costs.step(plain_rows + drafted) + spent
        for place, member in enumerate(running):
            wanted = found.get(place, ())
            tokens = _right(wanted, member.output, member.at) + 1
            _take(member, len(wanted), tokens, costs, plain_rows, drafted, spent)
    return total


def _right(draft: Sequence[int], output: Sequence[int], at: int) -> int:
    right = 0
    while right < len(draft) and draft[right] == output[at + right]:
        right += 1
    return right


def _take(member: Member, proposed: int, tokens: int, costs: RowCosts, plain_rows: int, drafted: int, spent: float) -> None:
    if member.drafter is not None:
        member.drafter.accept(member.output[member.at : member.at + tokens], proposed)
    member.at += tokens
    member.cost += costs.step(plain_rows + drafted) + spent
    member.plain += costs.step(plain_rows) * tokens
    member.pace.settle(costs, plain_rows, drafted, tokens, spent=spent)
