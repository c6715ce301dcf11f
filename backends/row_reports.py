"""Which logits a step needs, and what is told of them: for engines that have a row's logits in Python's reach.

A row's logits are needed where its token is drawn, and where the token of the prompt that comes after it is to be told of. All of them
are one array, in the order of `wanted_logits`; `draw_and_report` turns it into tokens and fills the reports.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from tripower.backends.sampling import draw_rows, row_logprobs
from tripower.runtime.engine.contract import StepRow
from tripower.runtime.engine.logprobs import NO_LOGPROBS
from tripower.runtime.engine.step_table import NOT_DRAWN


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
    if row.drafts:
        return [Wanted(entry, offset, -1, True) for offset in range(last - row.drafts, last + 1)]
    if row.prompt_logprobs == NO_LOGPROBS or row.report is None:
        return [Wanted(entry, last, -1, True)] if row.draw else []
    after = (*row.tokens[1:], row.following)
    found = [Wanted(entry, offset, token, row.draw and offset == last) for offset, token in enumerate(after)]
    return [each for each in found if each.draw or each.following >= 0]


def draw_and_report(logits: NDArray[np.float32], wanted: Sequence[Wanted], rows: Sequence[StepRow]) -> dict[int, int]:
    """The tokens drawn, by entry, for `logits` float32 [wanted, vocabulary]; reports are filled on the way.

    Raises `DeviceFailed` (`invalid_logits`) as `draw_rows` does.
    """
    walks = {
        entry: draw_run(logits[first : first + rows[entry].drafts + 1], rows[entry]) for entry, first in _walks(wanted, rows)
    }
    drawing = [place for place, each in enumerate(wanted) if each.draw and each.entry not in walks]
    chosen = logits if len(drawing) == len(wanted) else logits[drawing]
    entries = [wanted[place].entry for place in drawing]
    tokens = dict(zip(entries, draw_rows(chosen, [rows[entry] for entry in entries]), strict=True)) if entries else {}
    for place, each in enumerate(wanted):
        if each.entry not in walks:
            report_row(logits[place], each, rows[each.entry], tokens.get(each.entry, NOT_DRAWN))
    return tokens | walks


def draw_run(logits: NDArray[np.float32], row: StepRow) -> int:
    """Draw from the rows of a sequence with guesses, float32 [drafts + 1, vocabulary], until one differs from its guess.

    The token that ends it is returned, those before it go into `row.run`; rows behind it are not looked at.
    """
    walk = RunWalk(row)
    while walk.take(draw_rows(logits[walk.place : walk.place + 1], [walk.row])[0], lambda: logits[walk.place]):
        pass
    return walk.token


class RunWalk:
    """The walk along a sequence's guesses, from draw to draw."""

    def __init__(self, row: StepRow) -> None:
        self._whole = row
        self._guesses = row.tokens[len(row.tokens) - row.drafts :]
        self.place = 0
        """Guesses that were right so far."""
        self.token = NOT_DRAWN
        """The last one drawn."""

    @property
    def row(self) -> StepRow:
        """What the next draw sees, as if all tokens before it had come in steps of their own."""
        whole, right = self._whole, self._guesses[: self.place]
        return structs.replace(
            whole,
            output_index=whole.output_index + self.place,
            history=[*whole.history, *right] if whole.history else whole.history,
            mask=whole.masks[self.place] if whole.masks else whole.mask,
        )

    def take(self, token: int, logits: Callable[[], NDArray[np.float32]]) -> bool:
        """This was drawn, from logits float32 [vocabulary]; whether it was guessed, so that the next row tells what follows it."""
        whole = self._whole
        assert whole.run is not None
        self.token = token
        if whole.report is not None and token >= 0 and whole.logprobs != NO_LOGPROBS:
            whole.report.run += [whole.report.drawn] if whole.report.drawn is not None else []
            whole.report.drawn = row_logprobs(logits(), token, whole.logprobs)
        if self.place == whole.drafts or token != self._guesses[self.place]:
            return False
        whole.run.append(token)
        self.place += 1
        return True


def _walks(wanted: Sequence[Wanted], rows: Sequence[StepRow]) -> ItemsView[int, int]:
    """Entries with guesses, and the place of their first row of logits."""
    found: dict[int, int] = {}
    for place, each in enumerate(wanted):
        if rows[each.entry].drafts:
            found.setdefault(each.entry, place)
    return found.items()


def report_row(logits: NDArray[np.float32], wanted: Wanted, row: StepRow, token: int) -> None:
    """Tell what one row of logits, float32 [vocabulary], says of the token drawn from it and of the prompt's next one."""
    if row.report is None:
        return
    if wanted.following >= 0:
        row.report.prompt.append(row_logprobs(logits, wanted.following, row.prompt_logprobs))
    if wanted.draw and token >= 0 and row.logprobs != NO_LOGPROBS:
        row.report.drawn = row_logprobs(logits, token, row.logprobs)
