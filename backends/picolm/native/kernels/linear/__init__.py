"""Linear layers over packed weights: `out[row, output] = sum over k of w[output, k] * x[row, k]`.

A tile is some rows by some strips. For each set of strips the rows go by in sets, so that weights are read from memory once and stay
in the first-level cache while the rows pass. The terms of one output are added group by group in ascending order,

    y = fma(float(sum of quant * q), scale of the weights * scale of the row, y)
    y = fma(minimum, scale of the row * sum of q, y)        for types with a minimum

whatever the tile, the number of rows and the width of the vectors: a row's bits depend on nothing else.

Read `words` (what a kernel is told), `kernel` (its outer loops), `rows` (the inner loop over quants; `floats` for weights that are
floats), `dot` (the one instruction that matters), `results` (what the inner loops share), `tiles` (sizes to choose from).
"""

from __future__ import annotations

from tripower.backends.picolm.native.kernels.linear.kernel import emit_expert_linear, emit_linear
from tripower.backends.picolm.native.kernels.linear.tiles import candidates, scratch_bytes, tile_count, tile_word
from tripower.backends.picolm.native.kernels.linear.words import WORDS, Word

__all__ = ["WORDS", "Word", "candidates", "emit_expert_linear", "emit_linear", "scratch_bytes", "tile_count", "tile_word"]
