"""The engine on a device: pages, static shapes, captures and draws put together into a `StepEngine`.

A step is decided on the host and done on the device: rows are checked, pages reserved, inputs filled and sent in one copy, the model and
the draw launched or replayed, and the tokens read back, which is where the host waits. Logits stay on the device, except those of rows
with penalties, a bias, a ban or a mask: such a row's own are drawn from on the host. So do those that log probabilities are told of.

The kernels are a library's, and they choose by the number of rows: a row's bits depend on its batch, so the engine calls itself
`numeric`. It belongs to the thread that loaded it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import attrs
import numpy as np
import torch
from numpy.typing import NDArray

from tripower.backends.picolm.accelerated.device import Stream
from tripower.backends.picolm.accelerated.graph_cache import Capture, CapturePolicy, CaptureStatistics, GraphCache
from tripower.backends.picolm.accelerated.kv_pool import KvPool
from tripower.backends.picolm.accelerated.model import DeviceModel
from tripower.backends.picolm.accelerated.sampler import draw, needs_host, sampler_class
from tripower.backends.picolm.accelerated.step_inputs import StepInputs
from tripower.backends.picolm.accelerated.step_shape import Segment, ShapeRules, StepShape
from tripower.backends.picolm.paged_engine import PagedEngine
from tripower.backends.row_reports import report_row, wanted_logits
from tripower.backends.sampling import draw_token
from tripower.runtime.engine import EngineInfo, SamplingParameters, StepRow, StepTable, run_steps
from tripower.runtime.engine.step_table import INVALID_LOGITS, NOT_DRAWN
from tripower.runtime.kernel.errors import DeviceFailed, TripowerError

PROMPT = "steps with prompts"
NO_LOGITS = np.zeros(0, np.float32)


@attrs.frozen
class Outputs:
    """Of a launch, on the device: `logits` float32 [drawn, vocabulary], `tokens` int64 [drawn]."""

    logits: torch.Tensor
    tokens: torch.Tensor


CaptureWork = Callable[[Callable[[], Outputs]], Capture[Outputs]]


class AcceleratedEngine(PagedEngine):
    """A `StepEngine`. See `runtime.engine.contract` for what its methods promise."""

    def __init__(
        self,
        model: DeviceModel,
        pool: KvPool,
        stream: Stream,
        info: EngineInfo,
        *,
        weight_bytes_read: int = 0,
        capture: CaptureWork | None = None,
        never: str = "",
        policy: CapturePolicy | None = None,
    ) -> None:
        """`never` says why nothing is to be captured; `capture` replaces the stream's own. Neither model nor pool is copied."""
        super().__init__(pool.table)
        self.info = info
        self.weight_bytes_read = weight_bytes_read
        """Bytes of weights that a step of one row reads."""
        self._model: DeviceModel | None = model
        self._pool, self._stream = pool, stream
        self._rules = ShapeRules(
            windows=model.windows,
            page_positions=pool.page_positions,
            pages_max=-(-info.context_max // pool.page_positions),
            sequences_max=info.sequences_max,
        )
        self._never = self._never_here = never
        self._graphs: GraphCache[Outputs] = GraphCache(capture or stream.capture, _same_bits, policy)
        self._static: dict[StepShape, StepInputs] = {}

    def step(self, rows: Sequence[StepRow]) -> list[int]:
        """Evaluate all rows or none, in one launch. Blocks until the tokens are there.

        Raises as the contract says; `DeviceFailed` may have the codes `state_memory_exhausted`, `invalid_logits` and
        `device_out_of_memory`.
        """
        if not rows:
            return []
        self.check_rows(rows)
        wanted = wanted_logits(rows)
        tokens = [NOT_DRAWN] * len(rows)
        with self._all_or_none(rows), self._stream.entered():
            inputs, ends = self._fill(rows, len(wanted))
            # a decode step has a place for every row, another step for those whose logits are wanted
            places = [each.entry if inputs.shape.decode else place for place, each in enumerate(wanted)]
            on_device = [each.draw and not needs_host(rows[each.entry]) for each in wanted]
            numbers = [ends[each.entry] + 1 - len(rows[each.entry].tokens) + each.offset for each in wanted]
            drawing = [rows[each.entry] if here else None for each, here in zip(wanted, on_device, strict=True)]
            inputs.fill_draws(list(zip(places, numbers, drawing, strict=True)))
            outputs = self._launch(inputs, [row.sampling for row in drawing if row is not None])
            found = outputs.tokens.tolist()
            if any(found[place] == INVALID_LOGITS for place in places):
                raise DeviceFailed("the device returned logits that are not finite", code="invalid_logits")
            for each, place, here in zip(wanted, places, on_device, strict=True):
                row = rows[each.entry]
                values = outputs.logits[place].cpu().numpy() if row.report is not None or not here else NO_LOGITS
                if each.draw:
                    tokens[each.entry] = found[place] if here else draw_token(values, row)
                report_row(values, each, row, tokens[each.entry])
            self._stream.wait()
        return tokens

    def run(self, table: StepTable) -> Iterator[None]:
        return run_steps(self, table)

    def logits(self, sequence: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append `tokens` to a sequence in one step and return the logits of all of them, float32 [tokens, vocabulary].

        For references and tests: a step only computes the logits that it draws from.
        """
        row = StepRow(sequence, self.length(sequence), tuple(tokens), draw=False)
        self.check_rows([row])
        with self._all_or_none([row]), self._stream.entered():
            inputs, _ = self._fill([row], len(tokens))
            inputs.fill_draws([(number, number, None) for number in range(len(tokens))])
            found: NDArray[np.float32] = self._launch(inputs, []).logits[: len(tokens)].cpu().numpy().copy()
            self._stream.wait()
        return found

    def use_graphs(self, wanted: bool) -> None:
        """Give up all captures, and from now on make new ones where that can be, or none: for comparisons."""
        self._forget_captures()
        self._never = self._never_here if wanted else "graphs are off"

    def captures(self) -> CaptureStatistics:
        """How often launches were replayed, by shape."""
        return self._graphs.statistics()

    def close(self) -> None:
        """Drop captures, weights and states. Idempotent."""
        self._forget_captures()
        self._model = None
        self._pool.close()
        self._stream.free_scratch()

    def _fill(self, rows: Sequence[StepRow], drawn: int) -> tuple[StepInputs, list[int]]:
        """Reserve pages and write what is evaluated; inputs, and the last row of each entry. Lengths are not moved."""
        for row in rows:
            self._pool.reserve(row.sequence, len(row.tokens))
        segments = [Segment(row.sequence, row.position, row.tokens) for row in rows]
        shape, members = self._rules.shape(segments, drawn)
        inputs = self._static.get(shape) or StepInputs(shape, self._stream.device)
        if shape.decode:
            self._static[shape] = inputs
        return inputs, inputs.fill(segments, members, self._pool, self._rules)

    def _launch(self, inputs: StepInputs, sampling: list[SamplingParameters]) -> Outputs:
        model, pool, shape = self._model, self._pool, inputs.shape
        assert model is not None, "the engine was closed"
        needed = sampler_class(sampling, self.info.vocabulary_size)

        def work() -> Outputs:
            logits = model.forward(inputs, pool)
            return Outputs(logits, draw(logits, inputs.device, needed))

        inputs.send()
        if not shape.decode:
            return self._graphs.launch(PROMPT, work, never="a prompt has a length of its own")
        return self._graphs.launch(f"{shape}, {needed}", work, never=self._never)

    def _forget_captures(self) -> None:
        self._graphs.invalidate()
        self._static.clear()

    @contextmanager
    def _all_or_none(self, rows: Sequence[StepRow]) -> Iterator[None]:
        """Commit the rows' positions at the end, or give the reserved pages back and map what went wrong to `DeviceFailed`."""
        try:
            yield
        except BaseException as error:
            with suppress(Exception):  # what was queued reads buffers that the next step fills
                self._stream.wait()
            for row in rows:
                self._pages.trim(row.sequence, row.position)
            if isinstance(error, torch.OutOfMemoryError):
                traceback.clear_frames(error.__traceback__)  # they hold what the step had made
                self._forget_captures()
                self._stream.free_scratch()
                raise DeviceFailed(
                    f"{self._stream.device} had no memory left for this step: fewer rows a step (scheduler.prefill_rows) need less",
                    code="device_out_of_memory",
                ) from error
            if isinstance(error, Exception) and not isinstance(error, TripowerError):
                raise DeviceFailed(f"a step failed: {error}") from error
            raise
        for row in rows:
            self._pages.commit(row.sequence, len(row.tokens))


def _same_bits(left: Outputs, right: Outputs) -> bool:
    return torch.equal(left.tokens, right.tokens) and torch.equal(left.logits.view(torch.int32), right.logits.view(torch.int32))
