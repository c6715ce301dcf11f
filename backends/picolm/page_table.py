"""Which pages hold which sequence: bookkeeping without memory, so that it can be tested against a plain model.

A page has room for a fixed number of positions, in all layers. A sequence is a list of pages and a length. `fork` shares pages and
counts their owners; a page with several owners is read only, and whoever has to write into it gets a copy first. In practice that
is the last, partly filled page, since positions are only appended.

Two things could go wrong with pages that are used again. Left-over values: attention masks positions that do not exist, but a mask
does not stop a NaN, so a failed step must not leave one where a later step reads around it. Therefore the table remembers how far
each page was ever written, and `reserve` orders what lies beyond the sequence's length to be cleared. And a step that fails half
way: `reserve` only adds pages, lengths move in `commit`, and `trim` to the unchanged length gives the added pages back. Steps that run
ahead reserve what they may need at most; `commit` gives back what they did not reach, as clean as it was.

The lowest free page is always taken first: the memory that was ever touched stays small.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

from tripower.runtime.kernel.errors import DeviceFailed, InvalidRequest

NO_PAGE = -1


class PageChange(msgspec.Struct, frozen=True):
    """What must be done to a page before positions from `keep` on are written into it."""

    page: int
    source: int
    """Copy the first `keep` positions from here, unless it is `NO_PAGE`."""
    keep: int
    dirty: int
    """Positions `keep` to `dirty` hold values of an earlier use and must be zeroed."""


class PageTable:
    """Pages of all sequences. Sequence ids are chosen by the caller. Nothing blocks."""

    def __init__(self, *, pages_max: int, page_positions: int) -> None:
        self.pages_max = pages_max
        self.page_positions = page_positions
        self._free = list(range(pages_max))
        self._owners = [0] * pages_max
        self._written = [0] * pages_max
        self._pages: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._written_before: dict[int, dict[int, int]] = {}
        """For each sequence with a reservation, what its pages' marks were."""

    @property
    def pages_free(self) -> int:
        return len(self._free)

    def sequences(self) -> list[int]:
        """The open ones, in the order in which they were opened."""
        return list(self._pages)

    def length(self, sequence: int) -> int:
        """Committed positions. Raises `InvalidRequest` for an unknown sequence, as all methods but `close` do."""
        return self._lengths[self._known(sequence)]

    def pages(self, sequence: int) -> list[int]:
        """The pages of a sequence in order of position, reserved ones included. The list is the table's own: do not change it."""
        return self._pages[self._known(sequence)]

    def open(self, sequence: int) -> None:
        """Give the sequence an empty list of pages; one that is open is emptied."""
        self.close(sequence)
        self._pages[sequence] = []
        self._lengths[sequence] = 0

    def close(self, sequence: int) -> None:
        """Give all pages of the sequence back; an unknown id is ignored."""
        self._release(self._pages.pop(sequence, ()))
        self._lengths.pop(sequence, None)
        self._written_before.pop(sequence, None)

    def trim(self, sequence: int, length: int) -> None:
        """Forget positions from `length` on, and pages that were reserved beyond it."""
        self._check_length(sequence, length)
        pages = self._pages[sequence]
        keep = self._pages_for(length)
        self._release(pages[keep:])
        del pages[keep:]
        self._lengths[sequence] = length
        self._written_before.pop(sequence, None)

    def fork(self, source: int, sequence: int, length: int) -> None:
        """Open `sequence` as the first `length` positions of `source`; no position is copied now."""
        self._check_length(source, length)
        if sequence in self._pages:
            raise InvalidRequest(f"the sequence {sequence} is open already", param="sequence")
        shared = self._pages[source][: self._pages_for(length)]
        for page in shared:
            self._owners[page] += 1
        self._pages[sequence] = list(shared)
        self._lengths[sequence] = length

    def reserve(self, sequence: int, rows: int) -> list[PageChange]:
        """Make room for `rows` more positions; returns what must be done to the pages before these are written.

        Raises `DeviceFailed` (`state_memory_exhausted`) without any change when the free pages do not suffice.
        """
        length = self.length(sequence)
        pages = self._pages[sequence]
        first, keep = divmod(length, self.page_positions)
        end = self._pages_for(length + rows)
        shared = bool(keep) and self._owners[pages[first]] > 1
        if end - len(pages) + shared > len(self._free):
            raise DeviceFailed("no memory is left for the states of sequences", code="state_memory_exhausted")
        changes = []
        if shared:
            source, pages[first] = pages[first], self._take()
            changes.append(PageChange(pages[first], source, keep, self._written[pages[first]]))
            self._owners[source] -= 1
        elif keep:
            changes.append(PageChange(pages[first], NO_PAGE, keep, self._written[pages[first]]))
        for _ in range(len(pages), end):
            pages.append(self._take())
            changes.append(PageChange(pages[-1], NO_PAGE, 0, self._written[pages[-1]]))
        before = self._written_before[sequence] = {}
        for index in range(first, end):
            before[pages[index]] = self._written[pages[index]]
            self._written[pages[index]] = min(length + rows - index * self.page_positions, self.page_positions)
        return [change for change in changes if change.source != NO_PAGE or change.dirty > change.keep]

    def commit(self, sequence: int, rows: int) -> None:
        """The first `rows` of the reserved positions hold values now, and nothing was written behind them."""
        length = self._lengths[sequence] = self._lengths[sequence] + rows
        pages, keep = self._pages[sequence], self._pages_for(length)
        assert keep <= len(pages)
        before = self._written_before.pop(sequence, {})
        for page in pages[keep:]:
            self._written[page] = before[page]
        if keep and pages[keep - 1] in before:
            last = pages[keep - 1]
            self._written[last] = max(before[last], length - (keep - 1) * self.page_positions)
        self._release(pages[keep:])
        del pages[keep:]

    def _take(self) -> int:
        page = heapq.heappop(self._free)
        self._owners[page] = 1
        return page

    def _release(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._owners[page] -= 1
            if not self._owners[page]:
                heapq.heappush(self._free, page)

    def _pages_for(self, length: int) -> int:
        return -(-length // self.page_positions)

    def _check_length(self, sequence: int, length: int) -> None:
        if not 0 <= length <= self.length(sequence):
            raise InvalidRequest(
                f"the sequence {sequence} has {self._lengths[sequence]} positions, not {length}", param="length"
            )

    def _known(self, sequence: int) -> int:
        if sequence not in self._pages:
            raise InvalidRequest(f"there is no open sequence {sequence}", param="sequence")
        return sequence
