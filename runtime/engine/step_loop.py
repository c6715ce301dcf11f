"""The step loop for engines that need Python in every step: several steps a hop, one commit each."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tripower.runtime.engine.constraint import Constraint, TokenMask
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
    leaves the table, and every constraint, where the step before it left them.
    """
    while table.steps_done < table.steps_max and not table.stop:
        counts = plan_rows(_plannable(table), table.rows_max, table.mixed_rows)
        taking = [slot for slot, count in enumerate(counts) if count]
        if not taking:
            return
        rows = [slot_row(table, slot, counts[slot]) for slot in taking]
        tokens = engine.step(rows)
        drawn = [NOT_DRAWN] * table.slots
        reports: dict[int, RowReport] = {}
        for slot, row, token in zip(taking, rows, tokens, strict=True):
            _advance(table, slot, len(row.tokens), token)
            drawn[slot] = token
            if row.report is not None:
                reports[slot] = row.report
        if reports:
            table.reports[table.steps_done] = reports
        table.commit(counts, drawn)
        if any(table.pending):
            yield


def slot_row(table: StepTable, slot: int, count: int) -> StepRow:
    """What a slot brings to a step that evaluates `count` of its pending tokens."""
    from tripower.runtime.engine.contract import StepRow

    pending, position = table.pending[slot], int(table.position[slot])
    draw = count == len(pending) and int(table.remaining[slot]) > 0
    in_prompt = table.prompt_logprobs[slot] != NO_LOGPROBS and position < table.prompt_length[slot]
    told = in_prompt or (draw and table.logprobs[slot] != NO_LOGPROBS)
    constraint = table.constraint[slot]
    return StepRow(
        sequence=int(table.sequence[slot]),
        position=position,
        tokens=tuple(pending[:count]),
        draw=draw,
        output_index=int(table.output_index[slot]),
        sampling=table.sampling[slot],
        history=table.history[slot],
        prompt_length=table.prompt_length[slot],
        mask=ask_mask(constraint) if draw and constraint is not None else None,
        logprobs=table.logprobs[slot] if draw else NO_LOGPROBS,
        prompt_logprobs=table.prompt_logprobs[slot] if in_prompt else NO_LOGPROBS,
        following=pending[count] if in_prompt and position + count < table.prompt_length[slot] else -1,
        report=RowReport() if told else None,
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


def _advance(table: StepTable, slot: int, evaluated: int, token: int) -> None:
    del table.pending[slot][:evaluated]
    table.position[slot] += evaluated
    if token == NOT_DRAWN:
        return
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
