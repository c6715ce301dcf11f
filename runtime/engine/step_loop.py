"""The step loop for engines that need Python in every step: several steps a hop, one commit each."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tripower.runtime.engine.constraint import Constraint, TokenMask
from tripower.runtime.engine.drafts import StepGuesses, masks_along, tell_drafter
from tripower.runtime.engine.logprobs import NO_LOGPROBS, RowReport
from tripower.runtime.engine.step_table import INVALID_LOGITS, NOT_DRAWN, StepTable

if TYPE_CHECKING:
    from tripower.runtime.engine.contract import StepEngine, StepRow

log = logging.getLogger("tripower.steps")

SCORED_ROWS_MAX = 64
"""Rows of a step whose logits are kept to tell of a prompt: a quarter of a million tokens of vocabulary are a megabyte a row."""
NOTHING: TokenMask = np.zeros(1, np.uint32)
"""A mask that allows no token: one that it does not reach is not allowed."""


def plan_rows(pending: list[int], rows_max: int, mixed_rows: int | None = None) -> list[int]:
    """How many rows each slot evaluates in the next step, given how many tokens it has pending (0: finished).

    One row for everybody first, so that a prompt never stalls a stream; what is left of the budget goes to prompts in slot order.
    While somebody has a single token pending, prompts get no more than `mixed_rows` besides their first ones.
    """
    rows = [1 if count else 0 for count in pending]
    left = max(rows_max - sum(rows), 0)
    if mixed_rows is not None and 1 in pending:
        left = min(left, mixed_rows)
    for slot, count in enumerate(pending):
        more = min(left, count - rows[slot])
        rows[slot] += more
        left -= more
    return rows


def run_steps(engine: StepEngine, table: StepTable) -> Iterator[None]:
    """Run `table` on `engine` until nothing is pending, the steps are used up, or a stop is asked for. Yields between steps.

    A constraint is asked only where its slot draws, and told of each committed token that does not end the text. A step that raises
    leaves the table, and every constraint, where the step before it left them. Guesses take rows that nobody else has, and delay
    nobody by more than `row_sharing` says.
    """
    guesses = StepGuesses(table, engine.info)
    while table.steps_done < table.steps_max and not table.stop:
        drafts = _ask_drafts(engine, table, guesses)
        rows_max = table.rows_max - sum(map(len, drafts.values()))
        counts = plan_rows(_plannable(table), rows_max, table.mixed_rows)
        taking = [slot for slot, count in enumerate(counts) if count]
        if not taking:
            return
        rows = [slot_row(table, slot, counts[slot], drafts.get(slot, ())) for slot in taking]
        runs = _evaluate(engine, rows)
        _commit(table, counts, taking, rows, runs)
        _settle(table, guesses, counts, taking, runs)
        if any(table.pending):
            yield


def _ask_drafts(engine: StepEngine, table: StepTable, guesses: StepGuesses) -> Mapping[int, Sequence[int]]:
    """Guesses, by slot, of those that have one drawn token pending."""
    pending, positions = [len(each) for each in table.pending], table.position.tolist()
    asking = [
        slot
        for slot, drafter in enumerate(table.drafter)
        if drafter is not None and pending[slot] == 1 and table.output_index[slot] > 0
    ]
    guesses.drop()
    if asking:

        def most(slot: int) -> int:
            return min(int(table.remaining[slot]) - 1, engine.info.context_max - positions[slot] - 1)

        guesses.ask(asking, pending, positions, rows=table.rows_max, most=most)
    return guesses.proposed


def _evaluate(engine: StepEngine, rows: Sequence[StepRow]) -> list[list[int]]:
    """What each row has drawn. The positions of wrong guesses are forgotten; on an error, all of the step's."""
    tokens = engine.step(rows)
    runs = [[*(row.run or ()), token] if row.draw else [] for row, token in zip(rows, tokens, strict=True)]
    try:
        for row, run in zip(rows, runs, strict=True):
            if row.drafts and len(run) < len(row.tokens):
                engine.trim(row.sequence, row.position + len(run))
    except BaseException:
        for row in rows:
            engine.trim(row.sequence, row.position)
        raise
    return runs


def _commit(
    table: StepTable, counts: list[int], taking: Sequence[int], rows: Sequence[StepRow], runs: Sequence[list[int]]
) -> None:
    """Move the slots on, and record the step."""
    drawn = [NOT_DRAWN] * table.slots
    reports: dict[int, RowReport] = {}
    ahead: dict[int, tuple[int, ...]] = {}
    proposed: dict[int, int] = {}
    for slot, row, run in zip(taking, rows, runs, strict=True):
        if row.drafts:
            counts[slot], proposed[slot] = len(run), row.drafts
        _advance(table, slot, counts[slot], run)
        if run:
            drawn[slot] = run[-1]
        if len(run) > 1:
            ahead[slot] = tuple(run[:-1])
        if row.report is not None:
            reports[slot] = row.report
        tell_drafter(table, slot, run, row.drafts)
    step = table.steps_done
    if reports:
        table.reports[step] = reports
    if proposed:
        table.runs[step], table.proposed[step] = ahead, proposed
    table.commit(counts, drawn)


def _settle(
    table: StepTable, guesses: StepGuesses, counts: Sequence[int], taking: Sequence[int], runs: Sequence[list[int]]
) -> None:
    """Account for a committed step: what its guesses have cost everybody, and brought."""
    tokens = [0] * table.slots
    for slot, run in zip(taking, runs, strict=True):
        tokens[slot] = len(run)
    guesses.settle(counts, tokens)


def slot_row(table: StepTable, slot: int, count: int, drafts: Sequence[int] = ()) -> StepRow:
    """What a slot brings to a step that evaluates `count` of its pending tokens, all of them where there are guesses behind."""
    from tripower.runtime.engine.contract import StepRow

    pending, position = table.pending[slot], int(table.position[slot])
    draw = count == len(pending) and int(table.remaining[slot]) > 0
    in_prompt = table.prompt_logprobs[slot] != NO_LOGPROBS and position < table.prompt_length[slot]
    told = in_prompt or (draw and table.logprobs[slot] != NO_LOGPROBS)
    constraint = table.constraint[slot]
    mask = ask_mask(constraint) if draw and constraint is not None else None
    return StepRow(
        sequence=int(table.sequence[slot]),
        position=position,
        tokens=(*pending[:count], *drafts),
        draw=draw,
        output_index=int(table.output_index[slot]),
        sampling=table.sampling[slot],
        history=table.history[slot],
        prompt_length=table.prompt_length[slot],
        mask=mask,
        logprobs=table.logprobs[slot] if draw else NO_LOGPROBS,
        prompt_logprobs=table.prompt_logprobs[slot] if in_prompt else NO_LOGPROBS,
        following=pending[count] if in_prompt and position + count < table.prompt_length[slot] else -1,
        report=RowReport() if told else None,
        drafts=len(drafts),
        masks=masks_along(constraint, drafts, mask) if drafts and constraint is not None and mask is not None else (),
        run=[] if drafts else None,
    )


def _plannable(table: StepTable) -> list[int]:
    """Tokens that each slot may evaluate in the next step: logits of the prompt's rows are kept for a part of it at a time."""
    left, most = SCORED_ROWS_MAX, []
    for pending, position, length, wanted in zip(
        table.pending, table.position.tolist(), table.prompt_length, table.prompt_logprobs, strict=False
    ):
        count = len(pending)
        if count and wanted != NO_LOGPROBS and position < length:
            count = min(count, max(left, 1))
            left -= count
        most.append(count)
    return most


def ask_mask(constraint: Constraint) -> TokenMask:
    """The constraint's mask. One that fails allows nothing, which ends its own slot and no other."""
    try:
        return constraint.mask()
    except Exception:
        log.exception("a constraint failed: its answer ends here")
        return NOTHING


def _advance(table: StepTable, slot: int, evaluated: int, run: Sequence[int]) -> None:
    """So many tokens are evaluated, pending ones and guesses that were right, and these were drawn."""
    del table.pending[slot][:evaluated]
    table.position[slot] += evaluated
    for token in run:
        table.pending[slot].clear()
        _take(table, slot, token)


def _take(table: StepTable, slot: int, token: int) -> None:
    """One more token was drawn."""
    table.output_index[slot] += 1
    table.remaining[slot] -= 1
    if token == INVALID_LOGITS:
        return
    table.history[slot].append(token)
    ended = token in table.ends[slot]
    constraint = table.constraint[slot]
    if constraint is not None and not ended:
        constraint.accept(token)
    if table.remaining[slot] and not ended:
        table.pending[slot].append(token)
        table.last[slot] = token
