"""Matrices as a file holds them, rows as the quantiser leaves them, and layers run tile by tile."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pytest
from llvmlite import ir
from numpy.typing import NDArray

from tripower.backends.picolm.native.compile import Code, compile_module
from tripower.backends.picolm.native.kernels.linear import (
    WORDS,
    Word,
    emit_expert_linear,
    emit_linear,
    scratch_bytes,
    tile_count,
    tile_word,
)
from tripower.backends.picolm.native.kernels.weights.blocks import TAKE_APART
from tripower.backends.picolm.native.kernels.weights.formats import BLOCK, FORMATS, FloatFormat
from tripower.backends.picolm.native.kernels.weights.packing import Packed
from tripower.backends.picolm.native.target import Target

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]

HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}
"""Where a block holds float16 values; in the other types it begins with them."""
SHAPES = ((4, 2), (8, 1))
"""Rows and strips of the kernels under test."""
EXPERT_SHAPE = (2, 2)
BEFORE = np.float32(7.25)
"""What `out` holds before a layer runs."""


def make_matrix(type_name: str, n: int, k: int, seed: int = 0) -> Bytes:
    """Random weights of a type, uint8 [n, row bytes], with scales near 0.01."""
    random = np.random.default_rng(seed)
    form = FORMATS[type_name]
    if isinstance(form, FloatFormat):
        values = (random.standard_normal((n, k)) * 0.1).astype(np.float32)
        match type_name:
            case "F32":
                return values.view(np.uint8)
            case "F16":
                return values.astype(np.float16).view(np.uint8)
            case _:
                return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    blocks = n * k // form.coarse_inputs
    raw = random.integers(0, 256, (blocks, TAKE_APART[type_name][0]), dtype=np.uint8)
    for at in HALVES.get(type_name, tuple(range(0, 2 * form.coarse_entries, 2))):
        scales = random.uniform(0.005, 0.015, blocks) * random.choice([-1.0, 1.0], blocks)
        raw[:, at : at + 2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return raw.reshape(n, -1)


def quantised(x: Floats) -> tuple[NDArray[np.int16], Floats, NDArray[np.int32], Floats]:
    """q, scale, sums and totals of rows [m, k], by the contract's formula."""
    blocks = x.reshape(len(x), -1, BLOCK)
    largest = np.abs(blocks).max(axis=2)
    with np.errstate(all="ignore"):
        factor = np.where(largest > 0, np.float32(32767) / largest, np.float32(0))
        q = np.nan_to_num(np.rint(blocks * factor[..., None])).astype(np.int16).reshape(x.shape)
    scale = np.where(np.isfinite(largest), largest / np.float32(32767), np.float32(np.nan))
    sums = q.reshape(len(x), -1, 16).sum(axis=2, dtype=np.int32)
    totals = np.repeat(scale, 2, axis=1) * sums.astype(np.float32)
    return q, scale, sums, totals


def shape_name(shape: tuple[int, int]) -> str:
    return f"linear_{shape[0]}x{shape[1]}"


@functools.cache
def layer_code(type_name: str, target: Target) -> Code:
    """All kernels under test for one type and target."""

    def build(module: ir.Module) -> None:
        for shape in SHAPES:
            emit_linear(module, shape_name(shape), FORMATS[type_name], target, *shape)
        emit_expert_linear(module, "experts", FORMATS[type_name], target, *EXPERT_SHAPE)

    return compile_module(build, target)


class Run(msgspec.Struct, kw_only=True):
    """One layer over some rows. `stride` 0 is as many elements as there are outputs."""

    target: Target
    packed: Packed
    x: Floats
    shape: tuple[int, int] = SHAPES[0]
    rows_per_tile: int = 16
    tile_strips: int = 0
    ahead: int = 0
    bias: Floats | None = None
    accumulate: bool = False
    stride: int = 0
    experts: NDArray[np.int32] | None = None
    """int32 [rows, used]; `packed` then holds the experts' outputs one after another."""
    expert_outputs: int = 0
    x_per_pair: bool = False
    backwards: bool = False

    def out(self) -> Floats:
        """What the layer leaves in `out`, float32 [rows or pairs, stride]."""
        n = self.expert_outputs or self.packed.n
        rows, shape, name = len(self.x), self.shape, shape_name(self.shape)
        count = np.array([rows], np.int64)
        if self.experts is not None:
            count[0], rows, shape, name = len(self.experts), self.experts.size, EXPERT_SHAPE, "experts"
        out = np.full((rows, self.stride or n), BEFORE, np.float32)
        keep = (count, out, self.x, self.bias, self.experts, quantised(self.x) if self.x.shape[1] % BLOCK == 0 else ())
        words = self._words(n, out, count, keep[-1])
        scratch = np.full(scratch_bytes(self.target, *shape) + 64, 0xA5, np.uint8)
        tiles = range(tile_count(n, self.target, shape[1], rows, self.rows_per_tile, self.tile_strips))
        kernel = layer_code(self.packed.format.name, self.target).function(
            name, None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
        )
        for tile in reversed(tiles) if self.backwards else tiles:
            kernel(words.ctypes.data, tile, scratch.ctypes.data + -scratch.ctypes.data % 64)
        return out

    def _words(self, n: int, out: Floats, count: NDArray[np.int64], rows: Any) -> NDArray[np.int64]:
        words = np.zeros(WORDS, np.int64)
        words[Word.WEIGHTS] = self.packed.data.ctypes.data
        for word, array in zip((Word.Q, Word.SCALE, Word.SUMS, Word.TOTALS), rows, strict=False):
            words[word] = array.ctypes.data
        words[Word.OUT], words[Word.STRIDE] = out.ctypes.data, out.shape[1]
        words[Word.K], words[Word.N], words[Word.X] = self.packed.k, n, self.x.ctypes.data
        words[Word.ROWS], words[Word.ROWS_PER_TILE] = count.ctypes.data, self.rows_per_tile
        words[Word.BIAS] = 0 if self.bias is None else self.bias.ctypes.data
        words[Word.ACCUMULATE] = int(self.accumulate)
        words[Word.TILE] = tile_word(self.tile_strips, self.ahead)
        if self.experts is not None:
            words[Word.EXPERTS], words[Word.USED] = self.experts.ctypes.data, self.experts.shape[1]
            words[Word.X_PER_PAIR] = int(self.x_per_pair)
            words[Word.EXPERT_BYTES] = n // self.target.lanes * self.packed.format.strip_bytes(self.packed.k, self.target.lanes)
        return words


@pytest.fixture(scope="session")
def matrix() -> Callable[..., Bytes]:
    """`matrix("Q4_1", n, k, seed)`."""
    return make_matrix


@pytest.fixture(scope="session")
def run_layer() -> Callable[..., Floats]:
    """`run_layer(target=…, packed=…, x=…, …)` gives what a layer leaves in `out`; see `Run`."""
    return lambda **options: Run(**options).out()


@pytest.fixture(scope="session")
def as_multiplied() -> Callable[[Packed, Floats], NDArray[np.float64]]:
    """The rows that a kernel multiplies: quantised or, for float weights, as they are; float64 [m, k]."""

    def rows(packed: Packed, x: Floats) -> NDArray[np.float64]:
        if isinstance(packed.format, FloatFormat):
            return x.astype(np.float64)
        q, scale, _, _ = quantised(x)
        return q.astype(np.float64) * np.repeat(scale, BLOCK, axis=1)

    return rows
