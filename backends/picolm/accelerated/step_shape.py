"""The shape of a step, and how shapes are kept few.

A step is rows of sequences, in groups that attention serves with one call each. A *decode step*, one row for each sequence, is padded to
a shape class: the number of sequences to the next power of two, and the pages in sight likewise. So a stream that grows by a page, or a
neighbour that leaves, mostly stays in its class, and what was captured for the class serves again. Any other step has the shape that it
has and is launched as it comes: prompts are long enough that launching does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec


class Segment(msgspec.Struct, frozen=True):
    """Rows of one sequence in a step, at positions `position`, `position + 1`, …"""

    sequence: int
    position: int
    tokens: Sequence[int]

    @property
    def end(self) -> int:
        return self.position + len(self.tokens)


class GroupShape(NamedTuple):
    """Sequences that bring the same number of rows."""

    sequences: int
    rows: int
    """Of each sequence."""
    pages: tuple[int, ...]
    """Pages that a sequence sees, for each window of the model."""


class StepShape(NamedTuple):
    """What decides the sizes of everything that a step computes."""

    groups: tuple[GroupShape, ...]
    drawn: int
    """Rows whose logits are computed."""
    decode: bool
    """Padded to a class, hence one of few."""

    @property
    def rows(self) -> int:
        return sum(group.sequences * group.rows for group in self.groups)

    def __str__(self) -> str:
        """A name for people, and as good as the shape itself for those of decode steps."""
        groups = (f"{each.sequences} x {each.rows} rows, {'/'.join(map(str, each.pages))} pages" for each in self.groups)
        return f"{' + '.join(groups)}, {self.drawn} drawn"


class ShapeRules(msgspec.Struct, frozen=True):
    """What shapes follow from, besides the step."""

    windows: tuple[int, ...]
    """The attention windows of the model's layers, each once; 0 sees everything."""
    page_positions: int
    pages_max: int
    """Pages of a sequence that has reached the context."""
    sequences_max: int

    def shape(self, segments: Sequence[Segment], drawn: int) -> tuple[StepShape, list[list[int]]]:
        """The shape of a step, and for each of its groups the numbers of its segments."""
        if all(len(segment.tokens) == 1 for segment in segments):
            return self._decode(segments, drawn), [list(range(len(segments)))]
        single = [index for index, segment in enumerate(segments) if len(segment.tokens) == 1]
        members = ([single] if single else []) + [[i] for i, each in enumerate(segments) if len(each.tokens) > 1]
        groups = tuple(self._group([segments[index] for index in indices]) for indices in members)
        return StepShape(groups, drawn, decode=False), members

    def first_page(self, position: int, window: int) -> int:
        """The first page that a row at this position sees."""
        return max(0, position - window + 1) // self.page_positions if window else 0

    def _decode(self, segments: Sequence[Segment], drawn: int) -> StepShape:
        sequences = padded(len(segments), self.sequences_max)
        pages = padded(max(self._pages_for(segment.end) for segment in segments), self.pages_max)
        seen = tuple(self._in_sight(window, 1, pages) for window in self.windows)
        return StepShape((GroupShape(sequences, 1, seen),), sequences if drawn else 0, decode=True)

    def _group(self, segments: Sequence[Segment]) -> GroupShape:
        pages = max(self._pages_for(segment.end) for segment in segments)
        rows = len(segments[0].tokens)
        return GroupShape(len(segments), rows, tuple(self._in_sight(window, rows, pages) for window in self.windows))

    def _in_sight(self, window: int, rows: int, pages: int) -> int:
        """Pages that `rows` rows one after the other see at most, of so many: a window may begin and end inside a page."""
        return min(pages, (window + rows - 2) // self.page_positions + 2) if window else pages

    def _pages_for(self, positions: int) -> int:
        return -(-positions // self.page_positions)


def padded(count: int, most: int) -> int:
    """The next power of two, or `most` where that is less."""
    return min(most, 1 << (count - 1).bit_length())
