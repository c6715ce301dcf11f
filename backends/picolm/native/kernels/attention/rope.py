"""What follows the projections: norms of heads, rotation by position, and storing of keys and values in their pages.

One kernel, `rope_store`. Queries are turned in place and scaled; keys are turned and go to their pages, transposed; values go to
their pages as they are. Rotary position embedding: Su et al., "RoFormer", 2021. Cosines and sines come from a table of float32 that
`make_turns` computes in float64, so that a position's angle is the same however the model's context was split.

Words of `rope_store`, a tile being `rows per tile` rows of the step:

     0 address of the int64 number of rows   1 rows per tile
     2 q float32 [rows][stride]     3 its row stride in elements
     4 k float32 [rows][stride]     5 its row stride in elements
     6 v float32 [rows][stride]     7 its row stride in elements
     8 cosines float32 [positions][dimensions / 2]     9 sines, the same
    10 row_position int32 [rows]   11 row_slot int32 [rows]
    12 pages, pages_per_slot, pool, bytes of a page, offset of the layer, bytes of a block: the six words of `kv.PoolAddresses`
    18 norm weights of queries float32 [head_size]     19 of keys; read only where the shape says `normalise`
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from tripower.backends.picolm.native.emit import F32, I32, I64, Function, Kernel, Value, constant, f32, i64, vector
from tripower.backends.picolm.native.kernels.attention.kv import (
    PAGE_POSITIONS,
    Elements,
    KvElement,
    PoolAddresses,
    element_bytes,
    pieces,
    pool_position,
)
from tripower.backends.picolm.native.target import Target

LANES = 16
"""Of all sums, whatever the machine's vectors hold."""


class RopeStoreShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a `rope_store` kernel is generated for."""

    heads: int
    kv_heads: int
    head_size: int
    dimensions: int
    """Elements of a head that turn: even, at most `head_size`."""
    pairs: Literal["adjacent", "halves"]
    """Pair `i` is elements `(2 i, 2 i + 1)`, or `(i, i + dimensions / 2)`."""
    attention_scale: float
    """What queries are multiplied with, after all else."""
    element: KvElement = "f32"
    normalise: bool = False
    """Each query head and key head first has an RMS norm, `x / sqrt(mean(x ** 2) + epsilon) * weight`."""
    epsilon: float = 0.0

    @property
    def block_bytes(self) -> int:
        """Of one kv head in one layer of a page."""
        return 2 * PAGE_POSITIONS * self.head_size * element_bytes(self.element)

    def scratch_bytes(self) -> int:
        """Memory that the kernel needs of its thread."""
        return self.head_size * 4


def make_turns(
    frequencies: NDArray[np.float64], amplitude: float, first: int, end: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines of positions `first` to `end - 1`, float32 [positions, dimensions / 2] each, times `amplitude`.

    `frequencies`: radians per position of each pair, float64 [dimensions / 2].
    """
    angles = np.arange(first, end, dtype=np.float64)[:, None] * np.asarray(frequencies, np.float64)
    return (amplitude * np.cos(angles)).astype(np.float32), (amplitude * np.sin(angles)).astype(np.float32)


def build_rope_store(module: ir.Module, target: Target, shape: RopeStoreShape, name: str = "rope_store") -> None:
    """Emit the kernel `name`."""
    kernel = Kernel(module, name)
    b = kernel.b
    rows, rows_per_tile = kernel.load(kernel.pointer(0), 0, I64), kernel.number(1)
    first = b.mul(kernel.tile, rows_per_tile)
    end = kernel.intrinsic("smin", [I64], [rows, b.add(first, rows_per_tile)])
    with kernel.loop(first, end) as row:
        position = b.sext(kernel.load(kernel.pointer(10), row, I32), I64)
        heads = _Heads(kernel, shape, position)
        q, k, v = (kernel.at(kernel.pointer(word), b.mul(row, kernel.number(word + 1)), F32) for word in (2, 4, 6))
        with kernel.loop(i64(0), i64(shape.heads)) as head:
            source = kernel.at(q, b.mul(head, i64(shape.head_size)), F32)
            heads.turn(source, source, kernel.pointer(18), shape.attention_scale)
        slot = b.sext(kernel.load(kernel.pointer(11), row, I32), I64)
        page, column = pool_position(kernel, position)
        addresses = PoolAddresses(kernel, 12, slot)
        page_address = addresses.page(page)
        store = _Store(kernel, target, shape, column)
        with kernel.loop(i64(0), i64(shape.kv_heads)) as head:
            where = b.mul(head, i64(shape.head_size))
            heads.turn(kernel.at(k, where, F32), kernel.scratch, kernel.pointer(19), 1.0)
            store.head(addresses.block(page_address, head), kernel.scratch, kernel.at(v, where, F32))
    kernel.done()


class _Heads:
    """Norm and rotation of heads at one position."""

    def __init__(self, kernel: Kernel, shape: RopeStoreShape, position: Value) -> None:
        self._kernel, self._shape = kernel, shape
        row = kernel.b.mul(position, i64(shape.dimensions // 2))
        self._cosines, self._sines = (kernel.at(kernel.pointer(word), row, F32) for word in (8, 9))

    def turn(self, source: Value, out: Value, weight: Value, scale: float) -> None:
        """A head from `source` to `out`, float32 [head_size] each; these may be the same."""
        k, shape = self._kernel, self._shape
        if shape.normalise:
            self._normalise(source, out, weight)
            source = out
        (self._turn_halves if shape.pairs == "halves" else self._turn_adjacent)(source, out, scale)
        for first, lanes in pieces(shape.head_size - shape.dimensions):
            at = shape.dimensions + first
            k.store_vector(self._scaled(k.load_vector(source, at, F32, lanes), scale), out, at)

    def _normalise(self, source: Value, out: Value, weight: Value) -> None:
        k, b, size = self._kernel, self._kernel.b, self._shape.head_size
        mean = b.fdiv(sum_of_squares(k, source, size), f32(float(size)))
        root = k.intrinsic("sqrt", [F32], [b.fadd(mean, f32(self._shape.epsilon))])
        factor = b.fdiv(f32(1.0), root)
        for at, lanes in pieces(size):
            value = b.fmul(k.load_vector(source, at, F32, lanes), k.splat(factor, lanes))
            k.store_vector(b.fmul(value, k.load_vector(weight, at, F32, lanes)), out, at)

    def _turn_halves(self, source: Value, out: Value, scale: float) -> None:
        k, half = self._kernel, self._shape.dimensions // 2
        for at, lanes in pieces(half):
            first, second = (k.load_vector(source, at + part, F32, lanes) for part in (0, half))
            for part, value in zip((0, half), self._turned(first, second, at, lanes), strict=True):
                k.store_vector(self._scaled(value, scale), out, at + part)

    def _turn_adjacent(self, source: Value, out: Value, scale: float) -> None:
        k, b = self._kernel, self._kernel.b
        for at, lanes in pieces(self._shape.dimensions // 2):
            both = k.load_vector(source, 2 * at, F32, 2 * lanes)
            undefined = ir.Constant(both.type, ir.Undefined)
            first, second = (b.shuffle_vector(both, undefined, _indices(range(part, 2 * lanes, 2))) for part in (0, 1))
            if lanes == 1:  # a shuffle to one lane is still a vector
                first, second = (b.extract_element(value, ir.Constant(I32, 0)) for value in (first, second))
            turned = [self._scaled(value, scale) for value in self._turned(first, second, at, lanes)]
            if lanes == 1:
                for part, value in enumerate(turned):
                    k.store(value, out, 2 * at + part)
                continue
            order = [index // 2 + index % 2 * lanes for index in range(2 * lanes)]
            k.store_vector(b.shuffle_vector(*turned, _indices(order)), out, 2 * at)

    def _turned(self, first: Value, second: Value, at: int, lanes: int) -> tuple[Value, Value]:
        k, b = self._kernel, self._kernel.b
        cosine, sine = (k.load_vector(table, at, F32, lanes) for table in (self._cosines, self._sines))
        return (
            k.fma(first, cosine, b.fneg(b.fmul(second, sine))),
            k.fma(first, sine, b.fmul(second, cosine)),
        )

    def _scaled(self, value: Value, scale: float) -> Value:
        return value if scale == 1.0 else self._kernel.b.fmul(value, constant(value.type, scale))


class _Store:
    """Writes a key and a value to column `column` of blocks."""

    def __init__(self, kernel: Kernel, target: Target, shape: RopeStoreShape, column: Value) -> None:
        self._kernel, self._size, self._column = kernel, shape.head_size, column
        self._elements = Elements(kernel, target, shape.element)

    def head(self, block: Value, key: Value, value: Value) -> None:
        """`key` and `value`, float32 [head_size] each, to the block at the int64 address `block`."""
        k, b, elements, size = self._kernel, self._kernel.b, self._elements, self._size
        pointer = b.inttoptr(block, ir.PointerType())
        keys = k.at(pointer, self._column, elements.kind)
        values = k.at(pointer, b.add(b.mul(self._column, i64(size)), i64(size * PAGE_POSITIONS)), elements.kind)
        for first, lanes in pieces(size):
            narrow = elements.narrow(k.load_vector(key, first, F32, lanes))
            for lane in range(lanes):
                one = b.extract_element(narrow, ir.Constant(I32, lane)) if lanes > 1 else narrow
                k.store(one, keys, (first + lane) * PAGE_POSITIONS)
            k.store_vector(elements.narrow(k.load_vector(value, first, F32, lanes)), values, first)


def sum_of_squares(function: Function, source: Value, size: int) -> Value:
    """Of float32 [size], in 16 lanes and then a tree; a last piece of fewer elements is padded with zeros."""
    total = constant(vector(F32, LANES), 0.0)
    for first, lanes in pieces(size):
        value = function.load_vector(source, first, F32, lanes)
        if lanes < LANES:
            value = _padded(function, value, lanes)
        total = function.fma(value, value, total)
    return function.sum_lanes(total)


def _padded(function: Function, value: Value, lanes: int) -> Value:
    b = function.b
    if lanes == 1:
        return b.insert_element(constant(vector(F32, LANES), 0.0), value, ir.Constant(I32, 0))
    return b.shuffle_vector(value, constant(value.type, 0.0), _indices([min(lane, lanes) for lane in range(LANES)]))


def _indices(lanes: range | list[int]) -> Value:
    return ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
