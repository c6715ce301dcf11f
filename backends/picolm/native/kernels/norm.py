"""RMS norms of rows, straight into the form that the next linear layer reads.

`y = x / sqrt(mean(x ** 2) + epsilon) * weight`. Squares of float32 are exact in float64, and element `i` is added to logical lane
`i % 16`, so the sum has one order at every vector width. The rest is float32: the row times the reciprocal root, times the weight.
"""

from __future__ import annotations

from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, F64, Kernel, Value, constant, i64, vector
from tripower.backends.picolm.native.kernels.quantise import (
    Destination,
    for_each_element,
    load_block,
    row_index,
    store_block,
)
from tripower.backends.picolm.native.target import Target

LOGICAL_LANES = 16


def build_norm_quantise(module: ir.Module, target: Target, name: str = "norm_quantise") -> None:
    """Kernel: tile = row of the destination. No scratch.

    Words: 0 x float32*, 1 its row stride in elements, 2 K, 3 weight float32* [K], 4 epsilon (a float64's bits), 5 `drawn_row` int32*
    or 0 (the row of x for each tile), 6 the `Destination`.
    """
    kernel = Kernel(module, name)
    columns = kernel.number(2)
    source = kernel.at(kernel.pointer(0), kernel.b.mul(row_index(kernel, 5), kernel.number(1)), F32)
    destination = Destination(kernel, target, 6, kernel.tile, columns)
    factor = _reciprocal_root(kernel, target, source, columns, 4)
    _normalise(kernel, target, source, columns, factor, kernel.pointer(3), destination)
    kernel.done()


def build_norm_add(module: ir.Module, target: Target, name: str = "norm_add") -> None:
    """Kernel: tile = row. `state += norm(x)`, then the norm of the new state if there is a weight for it. No scratch.

    Words: 0 x float32*, 1 its row stride, 2 K, 3 weight float32* [K], 4 epsilon (a float64's bits), 5 state float32* [rows][K],
    6 the next weight float32* [K] or 0, 7 the `Destination` of the second norm.
    """
    kernel = Kernel(module, name)
    b = kernel.b
    columns, weight = kernel.number(2), kernel.pointer(3)
    source = kernel.at(kernel.pointer(0), b.mul(kernel.tile, kernel.number(1)), F32)
    state = kernel.at(kernel.pointer(5), b.mul(kernel.tile, columns), F32)
    factor = _reciprocal_root(kernel, target, source, columns, 4)

    def whole(block: Value, index: Value) -> None:
        scaled = _scaled_block(kernel, target, source, index, factor, weight)
        old = load_block(kernel, target.lanes, state, index)
        store_block(kernel, [b.fadd(first, second) for first, second in zip(old, scaled, strict=True)], state, index)

    def single(index: Value) -> None:
        scaled = _scaled(kernel, kernel.load(source, index, F32), factor, kernel.load(weight, index, F32))
        kernel.store(b.fadd(kernel.load(state, index, F32), scaled), state, index)

    for_each_element(kernel, columns, whole, single)
    with b.if_then(b.icmp_unsigned("!=", kernel.number(6), i64(0))):
        destination = Destination(kernel, target, 7, kernel.tile, columns)
        factor_after = _reciprocal_root(kernel, target, state, columns, 4)
        _normalise(kernel, target, state, columns, factor_after, kernel.pointer(6), destination)
    kernel.done()


def _normalise(
    kernel: Kernel, target: Target, source: Value, columns: Value, factor: Value, weight: Value, destination: Destination
) -> None:
    for_each_element(
        kernel,
        columns,
        lambda block, index: destination.store(_scaled_block(kernel, target, source, index, factor, weight), block),
        lambda index: destination.store_one(
            _scaled(kernel, kernel.load(source, index, F32), factor, kernel.load(weight, index, F32)), index
        ),
    )


def _scaled_block(kernel: Kernel, target: Target, source: Value, index: Value, factor: Value, weight: Value) -> list[Value]:
    values = load_block(kernel, target.lanes, source, index)
    weights = load_block(kernel, target.lanes, weight, index)
    splatted = kernel.splat(factor, target.lanes)
    return [_scaled(kernel, value, splatted, each) for value, each in zip(values, weights, strict=True)]


def _scaled(kernel: Kernel, value: Value, factor: Value, weight: Value) -> Value:
    return kernel.b.fmul(kernel.b.fmul(value, factor), weight)


def _reciprocal_root(kernel: Kernel, target: Target, source: Value, columns: Value, epsilon_word: int) -> Value:
    """`1 / sqrt(mean of squares + epsilon)` of a row, rounded to float32 at last."""
    b = kernel.b
    total = sum_of_squares(kernel, target, source, columns)
    mean = b.fdiv(total, b.sitofp(columns, F64))
    root = kernel.intrinsic("sqrt", [F64], [b.fadd(mean, kernel.load(kernel.words, epsilon_word, F64))])
    return b.fptrunc(b.fdiv(ir.Constant(F64, 1.0), root), F32)


def sum_of_squares(kernel: Kernel, target: Target, source: Value, columns: Value) -> Value:
    """Float64, of `columns` float32 at an address, in an order that no vector width changes.

    Element `i` of the whole groups of 16 goes to lane `i % 16`; the lanes are added in halves, then what is left, one by one.
    """
    b = kernel.b
    lanes = target.lanes // 2
    kind = vector(F64, lanes)
    sums = [kernel.variable(kind, constant(kind, 0.0)) for _ in range(LOGICAL_LANES // lanes)]
    whole = b.sub(columns, b.srem(columns, i64(LOGICAL_LANES)))
    with kernel.loop(i64(0), whole, LOGICAL_LANES) as index:
        for number, each in enumerate(sums):
            part = kernel.load_vector(source, b.add(index, i64(number * lanes)), F32, lanes)
            wide = b.fpext(part, kind)
            each.set(b.fadd(each.get(), b.fmul(wide, wide)))
    total = kernel.variable(F64, kernel.sum_vectors([each.get() for each in sums]))
    with kernel.loop(whole, columns) as index:
        wide = b.fpext(kernel.load(source, index, F32), F64)
        total.set(b.fadd(total.get(), b.fmul(wide, wide)))
    return total.get()
