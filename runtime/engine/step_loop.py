"""The step loop for engines that need Python in every step: several steps a hop, one commit each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tripower.runtime.engine.step_table import INVALID_LOGITS, NOT_DRAWN, StepTable

if TYPE_CHECKING:
    from tripower.runtime.engine.contract import StepEngine


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
    """Run `table` on `engine` until nothing is pending, the steps are used up, or a stop is asked for. Yields between steps."""
    from tripower.runtime.engine.contract import StepRow

    while table.steps_done < table.steps_max and not table.stop:
        counts = plan_rows([len(pending) for pending in table.pending], table.rows_max, table.mixed_rows)
        taking = [slot for slot, count in enumerate(counts) if count]
        if not taking:
            return
        rows = [
            StepRow(
                sequence=int(table.sequence[slot]),
                position=int(table.position[slot]),
                tokens=tuple(table.pending[slot][: counts[slot]]),
                draw=counts[slot] == len(table.pending[slot]) and table.remaining[slot] > 0,
                output_index=int(table.output_index[slot]),
                sampling=table.sampling[slot],
                history=table.history[slot],
                prompt_length=table.prompt_length[slot],
            )
            for slot in taking
        ]
        tokens = engine.step(rows)
        drawn = [NOT_DRAWN] * table.slots
        for slot, row, token in zip(taking, rows, tokens, strict=True):
            _advance(table, slot, len(row.tokens), token)
            drawn[slot] = token
        table.commit(counts, drawn)
        if any(table.pending):
            yield


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
    if table.remaining[slot] and token not in table.ends[slot]:
        table.pending[slot].append(token)
        table.last[slot] = token
