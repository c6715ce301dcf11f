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

from tripower.backends.picolm.attention import Batch, Segment
from tripower.backends.picolm.decoder import Decoder
from tripower.backends.picolm.kv_cache import PAGE_POSITIONS, KvCache, KvShape
from tripower.backends.picolm.paged_engine import PagedEngine
from tripower.backends.picolm.torch_model import TorchModel
from tripower.backends.row_reports import draw_and_report, wanted_logits
from tripower.runtime.engine import EngineInfo, StepRow, StepTable, run_steps
from tripower.runtime.engine.step_table import NOT_DRAWN
from tripower.runtime.kernel.errors import DeviceFailed, TripowerError


class PicolmEngine(PagedEngine):
    """A `StepEngine`. See `runtime.engine.contract` for what its methods promise."""

    def __init__(
        self,
        model: TorchModel,
        *,
        context_max: int,
        sequences_max: int,
        parameters: int = 0,
        weight_bytes: int = 0,
        page_positions: int = PAGE_POSITIONS,
        kernels: str = "torch float32",
    ) -> None:
        """Map memory for `sequences_max` sequences of `context_max` positions. The model is not copied."""
        shape = model.decoder
        self._model: TorchModel | None = model
        self._windows = frozenset(shape.windows)
        pages = -(-context_max // page_positions)
        state = kv_shape(shape)
        self._cache = KvCache(state, pages_max=pages * sequences_max, page_positions=page_positions)
        super().__init__(self._cache.table)
        self.info = EngineInfo(
            backend="picolm",
            architecture=shape.architecture,
            context_max=context_max,
            vocabulary_size=shape.vocabulary_size,
            sequences_max=sequences_max,
            parameters=parameters,
            weight_bytes=weight_bytes,
            state_bytes_per_token=state.bytes_per_position,
            page_positions=page_positions,
            pages_max=pages * sequences_max,
            threads=torch.get_num_threads(),
            kernels=kernels,
        )

    def step(self, rows: Sequence[StepRow]) -> list[int]:
        """Evaluate all rows or none, in one pass over the weights.

        Raises as the contract says; `DeviceFailed` may have the codes `state_memory_exhausted` and `invalid_logits`.
        """
        if not rows:
            return []
        self.check_rows(rows)
        wanted = wanted_logits(rows)
        starts = np.cumsum([0, *(len(row.tokens) for row in rows)]).tolist()
        with self._all_or_none(rows):
            logits = self._evaluate(rows, [starts[each.entry] + each.offset for each in wanted])
            drawn = draw_and_report(logits, wanted, rows)
        return [drawn.get(entry, NOT_DRAWN) for entry in range(len(rows))]

    def run(self, table: StepTable) -> Iterator[None]:
        return run_steps(self, table)

    def logits(self, sequence: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append `tokens` to a sequence in one step and return the logits of all of them, float32 [tokens, vocabulary].

        For references and tests: a step only computes the logits that it draws from.
        """
        row = StepRow(sequence, self.length(sequence), tuple(tokens), draw=False)
        self.check_rows([row])
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
            batch = Batch(self._cache, segments, drawn=drawn, windows=self._windows, heads=self._model.decoder.heads)
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


def kv_shape(shape: Decoder) -> KvShape:
    """What one position of a model's state takes."""
    return KvShape(shape.layers, shape.kv_heads, shape.head_size)
