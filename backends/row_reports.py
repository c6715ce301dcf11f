"""Which logits a step needs, and what is told of them: for engines that have a row's logits in Python's reach.

A row's logits are needed where its token is drawn, and where the token of the prompt that comes after it is to be told of. All of them
are one array, in the order of `wanted_logits`; `draw_and_report` turns it into tokens and fills the reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tripower.backends.sampling import draw_rows, row_logprobs
from tripower.runtime.engine.contract import StepRow
from tripower.runtime.engine.logprobs import NO_LOGPROBS


class Wanted(NamedTuple):
    """Logits that are needed: of the position `offset` behind the first of the entry numbered `entry`."""

    entry: int
    offset: int
    following: int
    """The prompt's token that these logits are to tell of; -1: none."""
    draw: bool


def wanted_logits(rows: Sequence[StepRow]) -> list[Wanted]:
    """What a step needs, in the order of entries and positions."""
    return [wanted for entry, row in enumerate(rows) for wanted in wanted_of(entry, row)]


def wanted_of(entry: int, row: StepRow) -> list[Wanted]:
    """The same for one entry."""
    last = len(row.tokens) - 1
    if row.prompt_logprobs == NO_LOGPROBS or row.report is None:
        return [Wanted(entry, last, -1, True)] if row.draw else []
    after = (*row.tokens[1:], row.following)
    found = [Wanted(entry, offset, token, row.draw and offset == last) for offset, token in enumerate(after)]
    return [each for each in found if each.draw or each.following >= 0]


def draw_and_report(logits: NDArray[np.float32], wanted: Sequence[Wanted], rows: Sequence[StepRow]) -> dict[int, int]:
    """The tokens drawn, by entry, for `logits` float32 [wanted, vocabulary]; reports are filled on the way.

    Raises `DeviceFailed` (`invalid_logits`) as `draw_rows` does.
    """
    drawing = [place for place, each in enumerate(wanted) if each.draw]
    chosen = logits if len(drawing) == len(wanted) else logits[drawing]
    entries = [wanted[place].entry for place in drawing]
    tokens = dict(zip(entries, draw_rows(chosen, [rows[entry] for entry in entries]), strict=True)) if entries else {}
    for place, each in enumerate(wanted):
        report_row(logits[place], each, rows[each.entry], tokens.get(each.entry, -1))
    return tokens


def report_row(logits: NDArray[np.float32], wanted: Wanted, row: StepRow, token: int) -> None:
    """Tell what one row of logits, float32 [vocabulary], says of the token drawn from it and of the prompt's next one."""
    if row.report is None:
        return
    if wanted.following >= 0:
        row.report.prompt.append(row_logprobs(logits, wanted.following, row.prompt_logprobs))
    if wanted.draw and token >= 0 and row.logprobs != NO_LOGPROBS:
        row.report.drawn = row_logprobs(logits, token, row.logprobs)
