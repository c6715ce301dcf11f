"""What the paths of picolm share: sequences in pages, and the checks of a step's rows before anything is touched."""

from __future__ import annotations

from collections.abc import Sequence

from tripower.backends.picolm.page_table import PageTable
from tripower.backends.sampling import check_sampling
from tripower.runtime.engine import EngineInfo, StepRow
from tripower.runtime.kernel.errors import DeviceFailed, InvalidRequest


class PagedEngine:
    """The part of a `StepEngine` that is bookkeeping. Belongs to the thread that loaded it."""

    info: EngineInfo

    def __init__(self, table: PageTable) -> None:
        self._pages = table
        self._retained: set[int] = set()

    @property
    def pages_free(self) -> int:
        """Pages that no sequence holds: all of them once every sequence is closed."""
        return self._pages.pages_free

    def open_sequence(self, sequence: int) -> None:
        if sequence not in self.sequences():
            self._check_place()
        self._retained.discard(sequence)
        self._pages.open(sequence)

    def sequences(self) -> list[int]:
        return self._pages.sequences()

    def close_sequence(self, sequence: int) -> None:
        self._pages.close(sequence)
        self._retained.discard(sequence)

    def trim(self, sequence: int, length: int) -> None:
        """Forget positions from `length` on; any length up to the present one, also behind an attention window."""
        self._pages.trim(sequence, length)

    def fork(self, source: int, sequence: int, length: int) -> None:
        """Share the pages of the first `length` positions; a partly filled one is copied by whoever writes to it first."""
        self._check_place()
        self._pages.fork(source, sequence, length)

    def retain(self, sequence: int, length: int) -> None:
        """Trim to `length` positions, and free the place: the sequence is only forked from now on."""
        self._pages.trim(sequence, length)
        self._retained.add(sequence)

    def length(self, sequence: int) -> int:
        return self._pages.length(sequence)

    def check_rows(self, rows: Sequence[StepRow]) -> None:
        """Raise `InvalidRequest` for rows that break the contract."""
        if len({row.sequence for row in rows}) != len(rows):
            raise InvalidRequest("a sequence appears twice in one step", param="sequence")
        for row in rows:
            self._check_row(row)

    def _check_row(self, row: StepRow) -> None:
        length = self.length(row.sequence)
        if row.position != length:
            raise InvalidRequest(
                f"the sequence {row.sequence} goes on at position {length}, not {row.position}", param="position"
            )
        if not row.tokens:
            raise InvalidRequest(f"the sequence {row.sequence} has no tokens to evaluate", param="tokens")
        if not (min(row.tokens) >= 0 and max(row.tokens) < self.info.vocabulary_size):
            raise InvalidRequest(f"token ids must lie in 0..{self.info.vocabulary_size - 1}", param="tokens")
        end = length + len(row.tokens)
        if end > self.info.context_max:
            raise InvalidRequest(
                f"the sequence {row.sequence} would have {end} positions; the context has {self.info.context_max}",
                code="context_length_exceeded",
                param="tokens",
            )
        if row.draw:
            check_sampling(row.sampling, self.info.vocabulary_size)

    def _check_place(self) -> None:
        if len(self.sequences()) - len(self._retained) >= self.info.sequences_max:
            raise DeviceFailed(
                f"all {self.info.sequences_max} sequences that memory was admitted for are open", code="state_memory_exhausted"
            )
