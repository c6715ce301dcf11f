"""A model's step, compiled and linked to its memory: what the engine runs."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tripower.backends.picolm.decoder import ROPE_FACTORS
from tripower.backends.picolm.native import executor
from tripower.backends.picolm.native.boundary import WORDS
from tripower.backends.picolm.native.buffers import StepBuffers
from tripower.backends.picolm.native.kernel_set import ITEM_ROWS_MAX, KernelSet
from tripower.backends.picolm.native.kernels.attention.kv import PAGE_POSITIONS, KvElement
from tripower.backends.picolm.native.kernels.attention.rope import make_turns
from tripower.backends.picolm.native.kernels.sampler.settings import SamplingSettings
from tripower.backends.picolm.native.kv_pool import KvPool, KvPoolShape
from tripower.backends.picolm.native.layout import Places, RopeTable, StepLayout
from tripower.backends.picolm.native.memory import address, zeros
from tripower.backends.picolm.native.model import NativeModel
from tripower.backends.picolm.native.slots import Slots
from tripower.backends.picolm.native.tiles import TileTable
from tripower.backends.picolm.native.workers import Workers
from tripower.runtime.engine import StepTable
from tripower.runtime.engine.drafts import guesses_left

LOGITS_MORE = 16
"""Rows of logits in a step beyond one for each slot: for slots that want them at every row."""
POSITIONS_AT_A_TIME = 1024
"""Angles are computed for so many positions at once, as sequences get longer."""


class Program:
    """See the module. Made and used on one thread."""

    def __init__(
        self,
        model: NativeModel,
        tiles: TileTable,
        kernels: KernelSet,
        *,
        context_max: int,
        sequences_max: int,
        slots_max: int,
        rows_max: int,
        threads: int,
        element: KvElement = "f32",
    ) -> None:
        assert slots_max <= rows_max, "every slot has a row in each step"
        decoder = model.decoder
        self.model, self.context_max, self.slots_max, self.rows_max = model, context_max, slots_max, rows_max
        self.drawn_max = min(slots_max + LOGITS_MORE, rows_max)
        pages_per_slot = -(-context_max // PAGE_POSITIONS)
        shape = KvPoolShape(layers=decoder.layers, kv_heads=decoder.kv_heads, head_size=decoder.head_size, element=element)
        self.pool = KvPool(shape, pages_max=pages_per_slot * sequences_max)
        self.step = StepBuffers(rows_max=rows_max, slots_max=slots_max, drawn_max=self.drawn_max, pages_per_slot=pages_per_slot)
        self.slots = Slots(slots_max, decoder.vocabulary_size)
        self.sampling = SamplingSettings(slots_max, decoder.vocabulary_size)
        self.logits = zeros((self.drawn_max, decoder.vocabulary_size), np.float32)
        self._ropes = [RopeTable(context_max, rope.dimensions // 2) for rope in decoder.ropes]
        self._positions_ready = 0
        self.key = (*kernels.key, tuple(sorted(tiles.items())))
        self._workers = Workers(kernels, threads=threads)
        self._plan = kernels.function("plan_step", ctypes.c_int64, ctypes.c_void_p)
        self._draw = kernels.function("draw", None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
        self._words = zeros(len(WORDS), np.int64)
        self._words_at = address(self._words)
        self._fill_words()
        row_words = self._row_words()
        draw_words = (*row_words, self.sampling.address, *(address(each) for each in self._draw_arrays()))
        self._draw_words = np.array(draw_words, np.int64)
        places = Places(
            self.step,
            self.pool,
            self._ropes,
            self.logits,
            draw_words,
            (*row_words, *(address(each) for each in self._report_arrays())),
            rows_max,
            self.drawn_max,
            threads,
        )
        self._layout = StepLayout(model, places, tiles, kernels)
        self.stages = self._layout.stages
        """What a step does, in order."""
        self._linked = self.stages.link(kernels.address, self.step.counts, self._words)
        self._workers.start(self._linked.stages, self._linked.parts, self._words)

    def begin(self, table: StepTable, pages: Sequence[Sequence[int]]) -> None:
        """Fill the slots from the table; `pages` of each slot's sequence, as far as the job may run."""
        self.slots.clear()
        ahead = 0
        for slot in range(table.slots):
            pending, position = table.pending[slot], int(table.position[slot])
            remaining = min(int(table.remaining[slot]), self.context_max - position - len(pending) + 1)
            self.slots.add(
                position=position,
                pending=pending,
                remaining=remaining,
                output_index=int(table.output_index[slot]),
                ends=table.ends[slot],
            )
            remaining = min(remaining, self.tokens_ahead(table, slot) + 1)
            self.sampling.fill(
                slot,
                table.sampling[slot],
                history=table.history[slot],
                prompt_length=table.prompt_length[slot],
                tokens_more=remaining,
            )
            ahead = max(ahead, position + len(pending) + remaining)
            self.step.pages[slot, : len(pages[slot])] = pages[slot]
        self._prepare_angles(ahead)

    def tokens_ahead(self, table: StepTable, slot: int) -> int:
        """Tokens that a slot can draw at most in the steps to come."""
        steps = table.steps_max - table.steps_done
        return steps if table.drafter[slot] is None else steps + guesses_left(table, slot)

    def run(self, table: StepTable) -> None:
        """One native call: steps until the boundary halts."""
        self.enter(table)
        self.go()

    def go(self) -> None:
        """`run`, with the table that was entered last."""
        self._workers.run()

    def plan(self) -> None:
        """Choose the rows of the next step, as `go` would at first; the slots' `step_rows` and `draw_at` tell of them."""
        self._plan(self._words_at)

    def draw(self, row: int, ahead: int) -> int:
        """Draw from a row of logits of the last step, as the token `ahead` behind its slot's output index. Between steps only."""
        self.step.row_draw[row] = ahead
        self._draw(self._draw_words.ctypes.data, row, self._workers.lane_scratch)
        return int(self.step.token_out[row])

    def enter(self, table: StepTable) -> None:
        """State where native code reads and writes; after the slots' own wishes are stated."""
        words = self._words
        words[WORDS.index("control")] = address(table.control)
        words[WORDS.index("drawn")], words[WORDS.index("evaluated")] = address(table.drawn), address(table.evaluated)
        words[WORDS.index("slots_max")] = table.slots_max
        words[WORDS.index("rows_max")] = min(table.rows_max, self.rows_max)
        words[WORDS.index("mixed_rows")] = min(table.mixed_rows, self.rows_max)
        words[WORDS.index("reporting")] = int((self.slots.report_top >= 0).any())

    def end(self, table: StepTable) -> None:
        """Take over into the table's own columns what the job did."""
        for slot in range(table.slots):
            table.pending[slot][:] = self.slots.pending(slot)
            if table.history[slot]:
                table.history[slot] = self.sampling.history(slot) or table.history[slot]
            table.position[slot] = self.slots.position[slot]
            table.remaining[slot] -= self.slots.output_index[slot] - table.output_index[slot]
            table.output_index[slot] = self.slots.output_index[slot]

    def close(self) -> None:
        """End the threads and drop the memory of states. Idempotent."""
        self._workers.close()
        self.pool.close()

    def _fill_words(self) -> None:
        step, slots = self.step, self.slots
        shared = self._workers.shared
        arrays = {
            "ends": slots.ends, "tokens": slots.tokens, "next": slots.next, "end": slots.end, "remaining": slots.remaining,
            "output_index": slots.output_index, "alive": slots.alive, "position": slots.position,
            "step_rows": slots.step_rows, "all_rows": slots.all_rows, "first_logits": slots.first_logits,
            "draw_at": slots.draw_at, "drafted": slots.drafted, "draws": slots.draws, "row_draw": step.row_draw, "row_token": step.row_token, "row_position": step.row_position,
            "row_slot": step.row_slot, "drawn_row": step.drawn_row, "token_out": step.token_out, "item_row": step.item_row,
            "item_rows": step.item_rows, "counts": step.counts, "shared": shared,
        }  # fmt: skip
        for name, array in arrays.items():
            self._words[WORDS.index(name)] = address(array)
        self._words[WORDS.index("halt")] = address(shared) + executor.HALT * shared.itemsize
        self._words[WORDS.index("item_rows_max")] = ITEM_ROWS_MAX
        self._words[WORDS.index("drawn_max")] = self.drawn_max
        self._words[WORDS.index("experts_used")] = self.model.decoder.experts_used
        self._words[WORDS.index("sampling")] = self.sampling.address
        cost = struct.unpack("<q", struct.pack("<d", self._cost_of_looking_back()))[0]
        self._words[WORDS.index("row_cost")] = cost

    def _cost_of_looking_back(self) -> float:
        """What a position of context adds to the cost of a row, in rows: multiply-adds of attention over those of the weights."""
        decoder = self.model.decoder
        attention = 2 * decoder.layers * decoder.heads * decoder.head_size
        return FLOAT_COST * attention / max(1, sum(each.n * each.k for each in self.model.matrices.values()))

    def _row_words(self) -> Sequence[int]:
        """What the kernels over rows of logits have in common."""
        step, vocabulary = self.step, self.model.decoder.vocabulary_size
        return address(self.logits), vocabulary, vocabulary, address(step.drawn_row), address(step.row_slot)

    def _draw_arrays(self) -> Sequence[NDArray[Any]]:
        return self.slots.output_index, self.step.token_out, self.step.row_draw

    def _report_arrays(self) -> Sequence[NDArray[Any]]:
        return self.slots.report_top, self.step.report_sums, self.step.report_tokens

    def _prepare_angles(self, positions: int) -> None:
        """Make cosines and sines up to here, if they are not."""
        end = min(-(-positions // POSITIONS_AT_A_TIME) * POSITIONS_AT_A_TIME, len(self._ropes[0].cosines))
        first = self._positions_ready
        if end <= first:
            return
        factors = self.model.vectors.get(ROPE_FACTORS)
        for rope, table in zip(self.model.decoder.ropes, self._ropes, strict=True):
            found = make_turns(rope.frequencies(factors), rope.amplitude, first, end)
            table.cosines[first:end], table.sines[first:end] = found
        self._positions_ready = end


FLOAT_COST = 3.0
"""A multiply-add of attention, in float32, takes about so many times as long as one of the weights, in integers."""
