"""A view as what a terminal is filled with."""

from __future__ import annotations

from itertools import islice

import attrs
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.segment import Segment

from tripower.api.cli.top.view import Mode, View
from tripower.api.overview.sheet import blank
from tripower.api.overview.words import harmless


@attrs.frozen
class Screen:
    """A view that fills the terminal, whatever its size."""

    view: View

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        if self.view.mode is Mode.TRACE:
            yield from self._trace(console, options, width, height - 1)
        else:
            lines = self.view.lines(width, height - 1)
            for line in lines + [blank(width)] * (height - 1 - len(lines)):
                yield line
                yield Segment.line()
        yield self.view.footer(width)

    def _trace(self, console: Console, options: ConsoleOptions, width: int, height: int) -> RenderResult:
        """The end of the trace, below which the screen is empty."""
        shown = Group(*islice(self.view.traced, max(0, len(self.view.traced) - height), None))
        lines = console.render_lines(shown, options.update(width=width, height=None), pad=True)[-height:]
        for line in lines + [[Segment(" " * width)]] * (height - len(lines)):
            yield from (Segment(harmless(text), style, control) for text, style, control in line)
            yield Segment.line()
