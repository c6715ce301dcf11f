"""Rows of float32 to 16-bit integers with a scale for each block of 32: what products with quantised weights are computed from.

Sixteen bits keep 2**-16 of a block's largest value, where llama.cpp's eight keep 2**-8, and the products stay exact integers, so
that their order does not matter. A block is turned in registers: whoever has computed 32 values (a norm, an activation, an
attention head) quantises them on the way out and never writes the float32 row.

A `Destination` is five words of a kernel's arguments, the same for every kernel that gives rows to a linear layer: quantised arrays,
or a float32 array for layers whose weights are floats, or both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, I16, I32, I64, Function, Kernel, Value, constant, f32, i64, vector
from tripower.backends.picolm.native.target import Target

BLOCK = 32
STEPS = 32_767.0
"""The integer that a block's largest magnitude becomes."""
AMAX_MIN_BITS = (127 - 100) << 23
"""Bits of the float32 2**-100. Blocks below it count as zero: `STEPS / amax` has to stay finite."""
INFINITY_BITS = 0x7F800000
MAGNITUDE_BITS = 0x7FFFFFFF
ROUNDING = 1.5 * 2**23
"""Adding it to a float32 of magnitude below 2**22 rounds to the nearest integer, half to even, and leaves that in the low bits."""
ROUNDING_BITS = 0x4B400000
DESTINATION_WORDS = 5


class Destination:
    """Where one row goes. Words from `word` on: q int16*, scale float32*, sums int32*, totals float32* (all four or none), and x
    float32* or 0. Arrays are [rows][K], [rows][K / 32], [rows][K / 16], [rows][K / 16], [rows][K].
    """

    def __init__(self, kernel: Kernel, target: Target, word: int, row: Value, columns: Value) -> None:
        b = kernel.b
        self._kernel, self._lanes = kernel, target.lanes
        first, blocks = b.mul(row, columns), b.mul(row, b.sdiv(columns, i64(BLOCK)))
        halves = b.mul(blocks, i64(2))
        q, scale, sums, totals, floats = (kernel.pointer(word + index) for index in range(DESTINATION_WORDS))
        self._quantises = b.icmp_unsigned("!=", kernel.number(word), i64(0))
        self._has_floats = b.icmp_unsigned("!=", kernel.number(word + 4), i64(0))
        self.q, self.scale = kernel.at(q, first, I16), kernel.at(scale, blocks, F32)
        self.sums, self.totals = kernel.at(sums, halves, I32), kernel.at(totals, halves, F32)
        self.floats = kernel.at(floats, first, F32)

    def store(self, values: Sequence[Value], block: Value) -> None:
        """Block `block` of the row from vectors that hold its 32 float32 values in order."""
        b = self._kernel.b
        with b.if_then(self._quantises):
            emit_quantise_block(self._kernel, values, block, self.q, self.scale, self.sums, self.totals)
        with b.if_then(self._has_floats):
            store_block(self._kernel, values, self.floats, b.mul(block, i64(BLOCK)))

    def store_one(self, value: Value, index: Value) -> None:
        """Element `index` of the row, for what follows the last whole block: float32 rows only."""
        with self._kernel.b.if_then(self._has_floats):
            self._kernel.store(value, self.floats, index)


def load_block(function: Function, lanes: int, pointer: Value, index: Value, count: int = BLOCK) -> list[Value]:
    """`count` float32 from element `index` on, as vectors of `lanes`."""
    b = function.b
    return [function.load_vector(pointer, b.add(index, i64(at)), F32, lanes) for at in range(0, count, lanes)]


def store_block(function: Function, values: Sequence[Value], pointer: Value, index: Value) -> None:
    """Vectors, one after the other, from element `index` on."""
    for number, value in enumerate(values):
        function.store_vector(value, pointer, function.b.add(index, i64(number * value.type.count)))


def for_each_element(
    function: Function,
    columns: Value,
    whole: Callable[[Value, Value], None],
    single: Callable[[Value], None],
    start: Value | None = None,
) -> None:
    """`whole(block, first element)` for each block of 32, then `single(element)` for each one behind the last whole block.

    Elements are `start`, 0 or a multiple of 32, up to `columns`.
    """
    b = function.b
    blocks = b.sdiv(columns, i64(BLOCK))
    with function.loop(i64(0) if start is None else b.sdiv(start, i64(BLOCK)), blocks) as block:
        whole(block, b.mul(block, i64(BLOCK)))
    with function.loop(b.mul(blocks, i64(BLOCK)), columns) as index:
        single(index)


def emit_quantise_block(
    function: Function, values: Sequence[Value], block: Value, q: Value, scale: Value, sums: Value, totals: Value
) -> None:
    """Quantise 32 float32 values, given as vectors in order, to block `block` of a row that begins at the four addresses.

    `scale = amax / 32767`, `q = round_half_even(x * (32767 / amax))`; zeros if `amax < 2**-100`. If a value is not finite, the scale
    and both totals are NaN and q is 0, so that the row's products are NaN. The largest magnitude is found among the bits, as
    integers: that order is exact, and NaN is above infinity.
    """
    b = function.b
    lanes = values[0].type.count
    amax = _largest_bits(function, values)
    finite = b.icmp_signed("<", amax, ir.Constant(I32, INFINITY_BITS))
    usable = b.and_(finite, b.icmp_signed(">=", amax, ir.Constant(I32, AMAX_MIN_BITS)))
    largest = b.select(usable, b.bitcast(amax, F32), f32(1.0))
    zero_or_nan = b.select(finite, f32(0.0), f32(float("nan")))
    unit = b.select(usable, b.fdiv(largest, f32(STEPS)), zero_or_nan)
    factor = function.splat(b.fdiv(f32(STEPS), largest), lanes)
    kept = function.splat(usable, lanes)
    nothing = constant(vector(I32, lanes), 0)
    integers = []
    for number, value in enumerate(values):
        rounded = b.fadd(b.fmul(value, factor), constant(value.type, ROUNDING))
        integer = b.sub(b.bitcast(rounded, vector(I32, lanes)), constant(vector(I32, lanes), ROUNDING_BITS))
        integer = b.select(kept, integer, nothing)
        integers.append(integer)
        index = b.add(b.mul(block, i64(BLOCK)), i64(number * lanes))
        function.store_vector(b.trunc(integer, vector(I16, lanes)), q, index)
    function.store(unit, scale, block)
    half = len(integers) // 2
    for number, group in enumerate((integers[:half], integers[half:])):
        total = _sum_integers(function, group)
        index = b.add(b.mul(block, i64(2)), i64(number))
        function.store(total, sums, index)
        function.store(b.fmul(unit, b.sitofp(total, F32)), totals, index)


def _largest_bits(function: Function, values: Sequence[Value]) -> Value:
    kind = vector(I32, values[0].type.count)
    mask = constant(kind, MAGNITUDE_BITS)
    found = [function.b.and_(function.b.bitcast(value, kind), mask) for value in values]
    while len(found) > 1:
        found = [function.intrinsic("smax", [kind], pair) for pair in zip(found[::2], found[1::2], strict=True)]
    return function.intrinsic("vector.reduce.smax", [kind], found, I32)


def _sum_integers(function: Function, values: Sequence[Value]) -> Value:
    total = values[0]
    for value in values[1:]:
        total = function.b.add(total, value)
    return function.intrinsic("vector.reduce.add", [total.type], [total], I32)


def build_quantise(module: ir.Module, target: Target, name: str = "quantise") -> None:
    """Kernel: tile = row. Words: 0 x float32*, 1 its row stride in elements, 2 K, 3 the `Destination`. Needs no scratch."""
    kernel = Kernel(module, name)
    source = kernel.at(kernel.pointer(0), kernel.b.mul(kernel.tile, kernel.number(1)), F32)
    columns = kernel.number(2)
    destination = Destination(kernel, target, 3, kernel.tile, columns)
    for_each_element(
        kernel,
        columns,
        lambda block, index: destination.store(load_block(kernel, target.lanes, source, index), block),
        lambda index: destination.store_one(kernel.load(source, index, F32), index),
    )
    kernel.done()


def row_index(kernel: Kernel, word: int) -> Value:
    """The row that a tile stands for: entry `tile` of the int32 array in `word`, or the tile itself if the word is 0."""
    b = kernel.b
    row = kernel.variable(I64, kernel.tile)
    with b.if_then(b.icmp_unsigned("!=", kernel.number(word), i64(0))):
        row.set(b.sext(kernel.load(kernel.pointer(word), kernel.tile, I32), I64))
    return row.get()
