"""Asking a slot's drafter, and telling it what came: what every loop over a step table does alike.

A drafter is advice. One that fails is not asked again by this job, and its sequence goes on a token at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from tripower.runtime.engine.constraint import Constraint, TokenMask
from tripower.runtime.engine.contract import EngineInfo
from tripower.runtime.engine.drafting import Beside
from tripower.runtime.engine.row_costs import costs_of
from tripower.runtime.engine.row_sharing import ask_in_turn, draft_room
from tripower.runtime.engine.step_table import StepTable

SPARE_TOKENS = 64
"""See `guesses_left`."""

log = logging.getLogger("tripower.steps")


def reading_cost(info: EngineInfo, positions: Sequence[int]) -> float:
    """What sequences of so many positions add to a step by their number: the bytes of their states over those of the weights.

    In steps with one row. A step reads every weight once and each sequence's keys and values; the table of row costs is of one
    sequence, so one of average length is left out. This is what makes further rows of a sequence cheap beside other sequences.
    """
    if len(positions) < 2 or not info.weight_bytes:
        return 0.0
    beside = sum(positions) * (len(positions) - 1) / len(positions)
    return info.state_bytes_per_token * beside / info.weight_bytes


class StepGuesses:
    """Who guesses what in the steps of one job, by the rule of `row_sharing`. On the lane."""

    def __init__(self, table: StepTable, info: EngineInfo) -> None:
        self._table, self._info, self._costs = table, info, costs_of(info.row_costs)
        self._paces = table.paces()
        self._shared = table.slots > 1 and any(drafter is not None for drafter in table.drafter)
        """Whether somebody's guesses can cost somebody else."""
        self._spent = self._reading = 0.0
        """What the present step's guesses cost to make, and what the sequences' states add to it."""
        self.room = 0
        """Rows of guesses that the present step has room for."""
        self.proposed: dict[int, list[int]] = {}
        """By slot, what the present step evaluates as guesses."""

    def ask(
        self, asking: Sequence[int], pending: Sequence[int], positions: Sequence[int], *, rows: int, most: Callable[[int], int]
    ) -> None:
        """Ask these slots' drafters for a step in which each slot has so many tokens pending, from such a position on.

        Of each slot `most(slot)` guesses at most; a step of the engine takes so many `rows`.
        """
        table = self._table
        waiting = sum(1 for count in pending if count)
        prompts = min(sum(pending) - waiting, table.mixed_rows)
        self._reading = reading_cost(self._info, [place for place, count in zip(positions, pending, strict=False) if count])
        decoding = [pace for pace, count in zip(self._paces, pending, strict=True) if count == 1]
        drafters = [drafter for slot in asking if (drafter := table.drafter[slot]) is not None]
        each = max((drafter.token_cost for drafter in drafters), default=0.0)
        self.room = draft_room(
            self._costs, decoding, waiting + prompts, max(rows - waiting, 0), each=each, reading=self._reading
        )

        def ask(slot: int, room: int, beside: Beside) -> list[int]:
            return ask_draft(table, slot, min(most(slot), room), beside, self._info.vocabulary_size)

        self.proposed = ask_in_turn(asking, self._paces, self.room, Beside(waiting - 1, prompts, self._reading), ask)
        self._spent = sum(drafter.spent for drafter in drafters)

    def settle(self, evaluated: Sequence[int], tokens: Sequence[int]) -> None:
        """The step is committed: rows that are kept, and tokens, of each slot; none of a slot that has only sat by."""
        if not self._shared:
            return
        rows = sum(evaluated) - sum(tokens[slot] - 1 for slot in self.proposed)
        guessed = sum(map(len, self.proposed.values()))
        for pace, count in zip(self._paces, tokens, strict=True):
            if count:
                pace.settle(self._costs, rows, guessed, count, spent=self._spent, reading=self._reading)

    def drop(self) -> None:
        """The step is over, or was not made after all."""
        self.proposed, self._spent = {}, 0.0


def ask_draft(table: StepTable, slot: int, most: int, beside: Beside, vocabulary_size: int) -> list[int]:
    """At most `most` tokens for a step that has so much of others: none that ends the text or that a constraint forbids."""
    drafter = table.drafter[slot]
    if drafter is None or most < 1 or drafter.quiet:
        return []
    tally, began = table.tally, time.perf_counter()
    try:
        tokens = list(drafter.propose(most, beside))[:most]
        ends = table.ends[slot]
        for place, token in enumerate(tokens):
            if not 0 <= token < vocabulary_size or token in ends:
                del tokens[place:]
                break
        constraint = table.constraint[slot]
        if tokens and constraint is not None:
            del tokens[constraint.valid_prefix(tokens) :]
    except Exception:
        log.exception("a drafter failed: its sequence goes on without")
        _give_up(table, slot)
        return []
    finally:
        tally.ready_at = time.perf_counter()
        tally.draft_seconds += tally.ready_at - began
    return tokens


def guesses_left(table: StepTable, slot: int) -> int:
    """How many right guesses a slot may still have in this job: as many as the job has steps, and a few more.

    So a sequence needs room for twice the steps of a job, and not for all that it might say. A job in which somebody has used them up
    ends, and the next one goes on.
    """
    used = sum(len(runs.get(slot, ())) for runs in table.runs.values())
    return table.steps_max + SPARE_TOKENS - used


def tell_drafter(table: StepTable, slot: int, drawn: Sequence[int], proposed: int) -> None:
    """A committed step has drawn these tokens, of `proposed` guesses."""
    drafter = table.drafter[slot]
    if drafter is None or not drawn or drawn[-1] < 0:
        return
    tally, began = table.tally, time.perf_counter()
    try:
        was_quiet = drafter.quiet
        drafter.accept(drawn, proposed)
        tally.fallbacks += bool(drafter.quiet and not was_quiet)
    except Exception:
        log.exception("a drafter failed: its sequence goes on without")
        _give_up(table, slot)
    tally.draft_seconds += time.perf_counter() - began


def _give_up(table: StepTable, slot: int) -> None:
    """Ask a drafter no more in this job."""
    table.drafter[slot] = None
    table.tally.fallbacks += 1


def masks_along(constraint: Constraint, tokens: Sequence[int], first: TokenMask) -> list[TokenMask]:
    """What may be drawn here (`first`, the constraint's mask) and behind each of `tokens`; the constraint stands here afterwards."""
    masks, told = [first.copy()], 0
    try:
        for token in tokens:
            constraint.accept(token)
            told += 1
            masks.append(constraint.mask().copy())
    finally:
        constraint.take_back(told)
    return masks
