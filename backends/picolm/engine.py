"""The engine `picolm`, resident: one decoder in float32, many sequences, one forward pass for all rows of a step.

A step is decided first and done second. Everything that may be wrong with the rows is found before anything is touched; then pages
are reserved, the rows pass the model, tokens are drawn, and only then do the sequences get longer. On any failure before that
point the reserved pages go back, so every sequence is as it was.

The engine belongs to the thread that loaded it. It keeps no state outside itself: inference mode is entered for the length of a
call, and no default of torch is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from tripower.backends.picolm.architectures import Model
from tripower.backends.picolm.attention import Batch, Segment
from tripower.backends.picolm.hyperparameters import Hyperparameters
from tripower.backends.picolm.kv_cache import PAGE_POSITIONS, KvCache, KvShape
from tripower.backends.sampling import check_sampling, draw_rows
from tripower.runtime.engine import EngineInfo, StepRow, StepTable, run_steps
from tripower.runtime.engine.step_table import NOT_DRAWN
from tripower.runtime.kernel.errors import DeviceFailed, InvalidRequest, TripowerError


class PicolmEngine:
    """A `StepEngine`. See `runtime.engine.contract` for what its methods promise."""

    def __init__(
        self,
        model: Model,
        *,
        context_max: int,
        sequences_max: int,
        parameters: int = 0,
        weight_bytes: int = 0,
        page_positions: int = PAGE_POSITIONS,
    ) -> None:
        """Map memory for `sequences_max` sequences of `context_max` positions. The model is not copied."""
        shape = model.shape
        self._model: Model | None = model
        self._windows = frozenset(shape.windows)
        pages = -(-context_max // page_positions)
        state = kv_shape(shape)
        self._cache = KvCache(state, pages_max=pages * sequences_max, page_positions=page_positions)
        self.info = EngineInfo(
            backend="picolm",
            architecture=shape.architecture,
            context_max=context_max,
            vocabulary_size=shape.vocabulary_size,
            sequences_max=sequences_max,
            parameters=parameters,
            weight_bytes=weight_bytes,
            state_bytes_per_token=state.bytes_per_position,
            threads=torch.get_num_threads(),
        )

    @property
    def pages_free(self) -> int:
        """Pages that no sequence holds: all of them once every sequence is closed."""
        return self._cache.table.pages_free

    def open_sequence(self, sequence: int) -> None:
        if sequence not in self.sequences():
            self._check_place()
        self._cache.table.open(sequence)

    def sequences(self) -> list[int]:
        return self._cache.table.sequences()

    def close_sequence(self, sequence: int) -> None:
        self._cache.table.close(sequence)

    def trim(self, sequence: int, length: int) -> None:
        """Forget positions from `length` on; any length up to the present one, also behind an attention window."""
        self._cache.table.trim(sequence, length)

    def fork(self, source: int, sequence: int, length: int) -> None:
        """Share the pages of the first `length` positions; a partly filled one is copied by whoever writes to it first."""
        self._check_place()
        self._cache.table.fork(source, sequence, length)

    def length(self, sequence: int) -> int:
        return self._cache.table.length(sequence)

    def step(self, rows: Sequence[StepRow]) -> list[int]:
        """Evaluate all rows or none, in one pass over the weights.

        Raises as the contract says; `DeviceFailed` may have the codes `state_memory_exhausted` and `invalid_logits`.
        """
        if not rows:
            return []
        self._check(rows)
        drawing = [row for row in rows if row.draw]
        ends = np.cumsum([len(row.tokens) for row in rows]).tolist()
        with self._all_or_none(rows):
            logits = self._evaluate(rows, [end - 1 for row, end in zip(rows, ends, strict=True) if row.draw])
            drawn = iter(draw_rows(logits, drawing))
        return [next(drawn) if row.draw else NOT_DRAWN for row in rows]

    def run(self, table: StepTable) -> Iterator[None]:
        return run_steps(self, table)

    def logits(self, sequence: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append `tokens` to a sequence in one step and return the logits of all of them, float32 [tokens, vocabulary].

        For references and tests: a step only computes the logits that it draws from.
        """
        row = StepRow(sequence, self.length(sequence), tuple(tokens), draw=False)
        self._check([row])
        with self._all_or_none([row]):
            return self._evaluate([row], range(len(tokens)))

    def close(self) -> None:
        """Drop the weights and all states. Idempotent."""
        self._model = None
        self._cache.close()

    def _evaluate(self, rows: Sequence[StepRow], drawn: Sequence[int]) -> NDArray[np.float32]:
        """Logits of the rows numbered `drawn`, float32 [drawn, vocabulary]. Pages are reserved, lengths are not moved."""
        assert self._model is not None, "the engine was closed"
        for row in rows:
            self._cache.reserve(row.sequence, len(row.tokens))
        segments = [Segment(row.sequence, row.position, row.tokens) for row in rows]
        with torch.inference_mode():
            batch = Batch(self._cache, segments, drawn=drawn, windows=self._windows, heads=self._model.shape.heads)
            logits: NDArray[np.float32] = self._model.forward(batch).numpy()
        return logits

    @contextmanager
    def _all_or_none(self, rows: Sequence[StepRow]) -> Iterator[None]:
        """Commit the rows' positions at the end, or give the reserved pages back and map what went wrong to `DeviceFailed`."""
        table = self._cache.table
        try:
            yield
        except BaseException as error:
            for row in rows:
                table.trim(row.sequence, row.position)
            if isinstance(error, Exception) and not isinstance(error, TripowerError):
                raise DeviceFailed(f"a step failed: {error}") from error
            raise
        for row in rows:
            table.commit(row.sequence, len(row.tokens))

    def _check(self, rows: Sequence[StepRow]) -> None:
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
        if len(self.sequences()) >= self.info.sequences_max:
            raise DeviceFailed(
                f"all {self.info.sequences_max} sequences that memory was admitted for are open", code="state_memory_exhausted"
            )


def kv_shape(shape: Hyperparameters) -> KvShape:
    """What one position of a model's state takes."""
    return KvShape(shape.layers, shape.kv_heads, shape.head_size)
