"""An engine and its draft model as one: what is opened, shared, cut or closed in the one is so in the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from tripower.runtime.engine import StepEngine, StepRow, StepTable
from tripower.runtime.speculation.draft_model import DraftModel
from tripower.runtime.speculation.drafter import SourceDrafter
from tripower.runtime.speculation.model_source import ModelSource


class DraftedEngine:
    """A `StepEngine`: the target's, with a draft at its side. Its memory is that of both."""

    def __init__(self, target: StepEngine, draft: DraftModel) -> None:
        self._target, self.draft = target, draft
        ours, theirs = target.info, draft.engine.info
        self.info = msgspec.structs.replace(
            ours,
            weight_bytes=ours.weight_bytes + theirs.weight_bytes,
            state_bytes_per_token=ours.state_bytes_per_token + theirs.state_bytes_per_token,
        )

    def open_sequence(self, sequence: int) -> None:
        """The draft's state is opened when it is first asked."""
        self.draft.forget(sequence)
        self._target.open_sequence(sequence)

    def sequences(self) -> list[int]:
        return self._target.sequences()

    def close_sequence(self, sequence: int) -> None:
        self.draft.forget(sequence)
        self._target.close_sequence(sequence)

    def trim(self, sequence: int, length: int) -> None:
        self._target.trim(sequence, length)
        self.draft.trim(sequence, length)

    def fork(self, source: int, sequence: int, length: int) -> None:
        self._target.fork(source, sequence, length)
        self.draft.fork(source, sequence, length)

    def retain(self, sequence: int, length: int) -> None:
        self._target.retain(sequence, length)
        self.draft.retain(sequence, length)

    def length(self, sequence: int) -> int:
        return self._target.length(sequence)

    def step(self, rows: Sequence[StepRow]) -> list[int]:
        return self._target.step(rows)

    def run(self, table: StepTable) -> Iterator[None]:
        """The target's; drafters that ask the draft learn first whose they are."""
        for sequence, drafter in zip(table.sequence.tolist(), table.drafter, strict=False):
            if isinstance(drafter, SourceDrafter) and isinstance(drafter.source, ModelSource):
                drafter.source.sequence = sequence
        yield from self._target.run(table)

    def close(self) -> None:
        try:
            self.draft.close()
        finally:
            self._target.close()
