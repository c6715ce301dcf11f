"""Tables whose layout depends on the width of the screen and on nothing else, so that no column jumps while figures change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import attrs
from rich.text import Text

from tripower.api.overview.words import harmless

Row = TypeVar("Row")
HEAD = "bold dim"
SELECTED = "reverse"
MARK, NO_MARK = "› ", "  "


@attrs.frozen(kw_only=True)
class Column(Generic[Row]):
    """One column. Where not all fit, those with the lowest `keep` are left out; what is left over goes to those that may grow."""

    title: str
    cell: Callable[[Row], str | Text]
    width: int
    width_max: int = 0
    """How far it may grow; 0: not at all."""
    right: bool = True
    keep: int = 9


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int, *, selected: int | None = None) -> list[Text]:
    """The head and one line for each row, each exactly `width` cells. Every line has room in front for the mark of the selected one."""
    fitting = fit(columns, width - len(MARK))
    lines = [_line(NO_MARK, [(column.right, space, column.title) for column, space in fitting], width, HEAD)]
    for number, row in enumerate(rows):
        cells = [(column.right, space, column.cell(row)) for column, space in fitting]
        chosen = number == selected
        lines.append(_line(MARK if chosen else NO_MARK, cells, width, SELECTED if chosen else ""))
    return lines


def fit(columns: Sequence[Column[Row]], width: int) -> list[tuple[Column[Row], int]]:
    """Which columns are shown in so much room, and how wide each is."""
    shown = list(columns)
    while len(shown) > 1 and _room(shown) > width:
        least = min(column.keep for column in shown)
        shown.remove([column for column in shown if column.keep == least][-1])
    left = width - _room(shown)
    spaces = []
    for column in shown:
        more = max(0, min(left, column.width_max - column.width))
        left -= more
        spaces.append((column, column.width + more))
    return spaces


def _room(columns: Sequence[Column[Row]]) -> int:
    return sum(column.width for column in columns) + len(columns) - 1


def _line(mark: str, cells: Sequence[tuple[bool, int, str | Text]], width: int, style: str) -> Text:
    line = Text(mark, style=style, no_wrap=True, end="")
    for number, (right, space, content) in enumerate(cells):
        cell = content.copy() if isinstance(content, Text) else Text(harmless(content))
        cell.truncate(space, overflow="ellipsis")
        missing = space - cell.cell_len
        if number:
            line.append(" ")
        line.append(" " * missing if right else "")
        line.append_text(cell)
        line.append("" if right else " " * missing)
    line.truncate(width, pad=True)
    return line
