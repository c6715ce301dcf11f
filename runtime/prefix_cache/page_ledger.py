"""How many pages the states on a device take, reckoned without asking it.

The same rules as in an engine's page table: a sequence has a page for each so many positions; a fork shares its source's pages; whoever
writes into a shared page that is partly filled gets a page of its own first. The queue knows every position of every sequence, so it can
tell before a job starts how many pages the job takes at most, and which states must go for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable


class PageLedger:
    """Pages are numbers that mean nothing. Sequence ids are chosen by the caller. Nothing blocks."""

    def __init__(self, page_positions: int) -> None:
        self.page_positions = page_positions
        self._numbers = itertools.count()
        self._owners: dict[int, int] = {}
        self._pages: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return len(self._owners)

    def pages(self, sequence: int) -> tuple[int, ...]:
        """The pages of a sequence; empty for an unknown one."""
        return tuple(self._pages.get(sequence, ()))

    def fork(self, source: int, sequence: int, length: int) -> None:
        """Open `sequence` as the first `length` positions of `source`."""
        shared = self._pages[source][: self.pages_for(length)]
        for page in shared:
            self._owners[page] += 1
        self._pages[sequence], self._lengths[sequence] = shared, length

    def resize(self, sequence: int, length: int) -> None:
        """The sequence has so many positions now. An unknown one is opened."""
        pages = self._pages.setdefault(sequence, [])
        now = self._lengths.get(sequence, 0)
        if self._copies(sequence, length):
            index = now // self.page_positions
            self._release(pages[index : index + 1])
            pages[index] = self._take()
        keep = self.pages_for(length)
        self._release(pages[keep:])
        del pages[keep:]
        pages += [self._take() for _ in range(keep - len(pages))]
        self._lengths[sequence] = length

    def more(self, sequence: int, length: int) -> int:
        """Pages beyond those in use that it takes to bring the sequence to `length` positions."""
        return max(self.pages_for(length) - len(self._pages.get(sequence, ())), 0) + self._copies(sequence, length)

    def close(self, sequence: int) -> None:
        """The sequence is gone; an unknown one is ignored."""
        self._release(self._pages.pop(sequence, ()))
        self._lengths.pop(sequence, None)

    def pages_for(self, length: int) -> int:
        """Pages of so many positions."""
        return -(-length // self.page_positions)

    def _copies(self, sequence: int, length: int) -> bool:
        """Whether positions up to `length` are written into a page that somebody else reads."""
        now = self._lengths.get(sequence, 0)
        index, partly = divmod(now, self.page_positions)
        return length > now and partly > 0 and self._owners[self._pages[sequence][index]] > 1

    def _take(self) -> int:
        page = next(self._numbers)
        self._owners[page] = 1
        return page

    def _release(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._owners[page] -= 1
            if not self._owners[page]:
                del self._owners[page]
