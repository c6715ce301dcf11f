"""The memory of a step: rows between the layers, in the forms in which kernels hand them on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tripower.backends.picolm.native.boundary import COUNTS, ONE
from tripower.backends.picolm.native.kernels.sampler.report import SUMS
from tripower.backends.picolm.native.memory import address, zeros
from tripower.runtime.engine.logprobs import TOP_LOGPROBS_MAX

BLOCK = 32


class Rows:
    """Rows of `columns` values for a linear layer: quantised, as float32, or both. What `quantise.Destination` writes."""

    def __init__(self, rows: int, columns: int, *, quantised: bool, floats: bool) -> None:
        self.columns = columns
        blocks = columns // BLOCK
        self.q = zeros((rows, columns), np.int16) if quantised else None
        self.scale = zeros((rows, blocks), np.float32) if quantised else None
        self.sums = zeros((rows, 2 * blocks), np.int32) if quantised else None
        self.totals = zeros((rows, 2 * blocks), np.float32) if quantised else None
        self.floats = zeros((rows, columns), np.float32) if floats else None

    @property
    def arrays(self) -> tuple[NDArray[Any] | None, ...]:
        """q, scale, sums, totals, floats, each [rows][…]; None for what no reader wants."""
        return self.q, self.scale, self.sums, self.totals, self.floats

    @property
    def words(self) -> tuple[int, ...]:
        """Of a destination: the addresses of `arrays`."""
        return tuple(0 if each is None else address(each) for each in self.arrays)


class StepBuffers:
    """What a step is: which token stands in which row, who draws, and who attends to what. Filled by the boundary.

    By row of logits: `drawn_row`, `row_draw`, `token_out`, and what the kernel `report` leaves.
    """

    def __init__(self, *, rows_max: int, slots_max: int, drawn_max: int, pages_per_slot: int) -> None:
        self.counts = zeros(COUNTS, np.int64)
        self.counts[ONE] = 1
        self.row_token, self.row_position, self.row_slot = (zeros(rows_max, np.int32) for _ in range(3))
        self.drawn_row, self.row_draw, self.token_out = (zeros(drawn_max, np.int32) for _ in range(3))
        self.report_sums = zeros((drawn_max, SUMS), np.float64)
        self.report_tokens = zeros((drawn_max, TOP_LOGPROBS_MAX), np.int32)
        self.item_row, self.item_rows = zeros(rows_max, np.int32), zeros(rows_max, np.int32)
        self.pages = zeros((slots_max, pages_per_slot), np.int32)
