"""Chooses tiles by measuring them: a second or two at the first load of a model's shapes on a machine, kept from then on.

Each candidate runs on the model's own weights, on one thread, over layers in turn so that weights come from where they will come from.
The quickest of a few runs counts: what else the machine does can only add time. Nothing but speed depends on the outcome.
"""

from __future__ import annotations

import ctypes
import hashlib
import time
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from tripower.backends.picolm.native.boundary import CLASS_MAX
from tripower.backends.picolm.native.buffers import Rows
from tripower.backends.picolm.native.kept import read_kept, write_kept
from tripower.backends.picolm.native.kernels.linear import WORDS, Word, scratch_bytes, tile_count
from tripower.backends.picolm.native.kernels.weights.formats import FloatFormat
from tripower.backends.picolm.native.kernels.weights.packing import Packed
from tripower.backends.picolm.native.linear_code import linear_code, linear_name, rows_of_class, tiles_worth_measuring
from tripower.backends.picolm.native.memory import address, zeros
from tripower.backends.picolm.native.model import NativeModel
from tripower.backends.picolm.native.target import Target
from tripower.backends.picolm.native.tiles import Shape, Tile, TileTable, shape_of

RUNS = 3
LAYERS_MAX = 4
OUTPUTS_MAX = 2048
"""Outputs of a layer that are measured at most: a head's thousands of strips are all alike."""

Measured = list[tuple[str, int, int, list[tuple[int, int, int]]]]


def calibrate(model: NativeModel, target: Target) -> Generator[None, None, TileTable]:
    """The tile table for a model's shapes, measured or kept; yields at boundaries."""
    layers: dict[Shape, list[Packed]] = {}
    for packed in model.matrices.values():
        layers.setdefault(shape_of(packed), []).append(packed)
    name = f"tiles-{hashlib.sha256(repr((sorted(layers), target)).encode()).hexdigest()[:32]}"
    kept = read_kept(name, Measured)
    if kept is None:
        kept = []
        for shape, matrices in layers.items():
            tiles = []
            for index in range(len(CLASS_MAX)):
                tiles.append(_best(matrices[:LAYERS_MAX], target, index))
                yield
            kept.append((*shape, [(tile.rows, tile.strips, tile.rows_per_tile) for tile in tiles]))
        write_kept(name, kept)
    return {(kind, n, k): tuple(Tile(*tile) for tile in tiles) for kind, n, k, tiles in kept}


def _best(matrices: Sequence[Packed], target: Target, index: int) -> Tile:
    """The quickest tile for layers of one shape in one class."""
    found = tiles_worth_measuring(matrices[0].format.name, target, index)
    if len(found) == 1:
        return found[0]
    rows = rows_of_class(index)
    return min((_seconds(matrices, target, tile, rows), place, tile) for place, tile in enumerate(found))[2]


def _seconds(matrices: Sequence[Packed], target: Target, tile: Tile, rows: int) -> float:
    name, n, k = shape_of(matrices[0])
    n = min(n, OUTPUTS_MAX)
    code = linear_code(name, target)
    kernel = code.function(linear_name(tile.rows, tile.strips), None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    inputs = _inputs(rows, k, floats=isinstance(matrices[0].format, FloatFormat))
    out, count = zeros((rows, n), np.float32), np.array([rows], np.int64)
    scratch = zeros(scratch_bytes(target, tile.rows, tile.strips), np.uint8)
    words = np.zeros(WORDS, np.int64)
    words[Word.Q : Word.TOTALS + 1] = inputs.words[:4]
    words[Word.OUT], words[Word.STRIDE], words[Word.K], words[Word.N] = address(out), n, k, n
    words[Word.ROWS], words[Word.ROWS_PER_TILE], words[Word.X] = address(count), tile.rows_per_tile, inputs.words[4]
    tiles = tile_count(n, target, tile.strips, rows, tile.rows_per_tile)
    quickest = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        for packed in matrices:
            words[Word.WEIGHTS] = address(packed.data)
            for index in range(tiles):
                kernel(address(words), index, address(scratch))
        quickest = min(quickest, time.perf_counter() - start)
    return quickest


def _inputs(rows: int, columns: int, *, floats: bool) -> Rows:
    """Rows of ordinary values."""
    made = Rows(rows, columns, quantised=not floats, floats=floats)
    generator = np.random.Generator(np.random.PCG64(1))
    arrays: list[Any] = [made.floats] if floats else [made.scale, made.totals]
    for array in arrays:
        array[...] = generator.standard_normal(array.shape)
    if made.q is not None:
        made.q[...] = generator.integers(-1000, 1000, made.q.shape)
    return made
