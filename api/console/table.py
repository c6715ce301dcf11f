"""Tables of the console: a terminal too narrow for all columns shows fewer of them, and says which are missing, rather than half of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

GAP = 2
"""Between two columns."""


@attrs.frozen(kw_only=True)
class FittedTable:
    """Implements rich's `ConsoleRenderable`. Columns that are empty throughout are left out."""

    cells: Mapping[str, Sequence[str]]
    """By title, from left to right: a cell for each line."""
    left: Sequence[str]
    """Columns of words; those with figures are aligned at their ends."""
    spare: Sequence[str]
    """Columns that a reader can do without, the one that goes first at the beginning."""
    styles: Sequence[str] = ()
    """Of each line; none: all plain."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.table import Table
        from rich.text import Text

        shown = {title: column for title, column in self.cells.items() if any(column)}
        missing = []
        for title in self.spare:
            if width_of(shown) <= options.max_width:
                break
            if shown.pop(title, None) is not None:
                missing.append(title)
        table = Table(box=None, padding=(0, GAP, 0, 0), header_style="bold")
        for number, title in enumerate(shown):
            words = title in self.left  # they may go on in the next line; the first column last of all
            whole = 0 if number else min(width_of({title: shown[title]}) - GAP, options.max_width // 2)
            table.add_column(title, justify="left" if words else "right", no_wrap=not words, overflow="fold", min_width=whole)
        for number, line in enumerate(zip(*shown.values(), strict=True)):
            table.add_row(*map(Text, line), style=self.styles[number] if self.styles else "")
        yield table
        if missing:
            yield Text(f"no room for {', '.join(missing)}", style="dim")


def width_of(cells: Mapping[str, Sequence[str]]) -> int:
    """What such columns take, in characters of the terminal."""
    from rich.cells import cell_len

    return sum(max(map(cell_len, (title, *column))) + GAP for title, column in cells.items())
