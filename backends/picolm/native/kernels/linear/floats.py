"""Inner loops over weights that are floats in the file: one chain of float32 FMAs for each (row, output), inputs in ascending order."""

from __future__ import annotations

from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, I8, I16, I32, I64, PTR, Function, Value, constant, i64, vector
from tripower.backends.picolm.native.kernels.linear.results import Results, ahead_bytes, internal_function, strip_pointers
from tripower.backends.picolm.native.kernels.linear.words import Word
from tripower.backends.picolm.native.kernels.weights.formats import FloatFormat
from tripower.backends.picolm.native.kernels.weights.strip_reader import half_to_float, prefetch_lines
from tripower.backends.picolm.native.target import Target

UNROLLED = 4


def float_strip_bytes(f: Function, form: FloatFormat, k: Value, lanes: int) -> Value:
    """Bytes of a strip of `k` inputs, as `FloatFormat.strip_bytes` counts them."""
    step = 4 * lanes
    return f.b.and_(f.b.add(f.b.mul(k, i64(lanes * form.element_bytes)), i64(step - 1)), i64(-step))


def float_weights(f: Function, form: FloatFormat, target: Target, pointer: Value, k: Value, lanes: int) -> Value:
    """Weights of input `k` as float32: `lanes` of them from a strip at `pointer`, or one from that lane of it on."""
    index = f.b.mul(k, i64(target.lanes))
    if form.name == "F32":
        return f.load_vector(pointer, index, F32, lanes)
    bits = f.load_vector(pointer, index, I16, lanes)
    if form.name == "F16":
        return half_to_float(f, target, bits)
    kind = vector(I32, lanes)
    return f.b.bitcast(f.b.shl(f.b.zext(bits, kind), constant(kind, 16)), vector(F32, lanes))


def emit_float_rows(module: ir.Module, name: str, form: FloatFormat, target: Target, rows: int, strips: int) -> Function:
    """`rows(words, weights, strip, input rows, y)`, as in `linear`."""
    lanes = target.lanes
    f = internal_function(module, name, [PTR, PTR, I64, PTR, PTR])
    k = f.load(f.args[0], Word.K, I64)
    pointers = strip_pointers(f, strips, lanes, float_strip_bytes(f, form, k, lanes))
    x = f.load(f.args[0], Word.X, PTR)
    inputs = [f.at(x, f.b.mul(f.load(f.args[3], row, I64), k), F32) for row in range(rows)]
    y = Results(f, f.args[4], rows, strips, lanes, registers=True)
    ahead = ahead_bytes(f, float_strip_bytes(f, form, k, lanes), strips)
    step_bytes = UNROLLED * lanes * form.element_bytes

    def one(index: Value) -> None:
        weights = [float_weights(f, form, target, pointer, index, lanes) for pointer in pointers]
        for row in range(rows):
            value = f.splat(f.load(inputs[row], index, F32), lanes)
            for strip in range(strips):
                y.set(row, strip, f.fma(weights[strip], value, y.get(row, strip)))

    unrolled = f.b.and_(k, i64(-UNROLLED))
    with f.loop(i64(0), unrolled, UNROLLED) as first:
        for pointer in pointers:
            offset = f.b.mul(first, i64(step_bytes // UNROLLED))
            prefetch_lines(f, f.at(pointer, f.b.add(ahead, offset), I8), step_bytes)
        for step in range(UNROLLED):
            one(f.b.add(first, i64(step)))
    with f.loop(unrolled, k) as index:
        one(index)
    y.store()
    f.done()
    return f
