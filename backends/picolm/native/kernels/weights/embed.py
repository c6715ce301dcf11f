"""Embedding: a token's row out of the packed table, as float32, times the model's embedding scale."""

from __future__ import annotations

import enum

from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, I8, I32, I64, Kernel, Value, i32, i64
from tripower.backends.picolm.native.kernels.linear.floats import float_strip_bytes, float_weights
from tripower.backends.picolm.native.kernels.weights.formats import STEP, AnyFormat, FloatFormat, Format
from tripower.backends.picolm.native.kernels.weights.strip_reader import StripReader, over, strip_bytes
from tripower.backends.picolm.native.target import Target


class EmbedWord(enum.IntEnum):
    """Words of the kernel."""

    WEIGHTS = 0
    ROW_TOKEN = 1
    """int32 [rows]."""
    OUT = 2
    """float32 [rows][k]."""
    K = 3
    N = 4
    ROWS = 5
    """Address of the int64 count of rows; one tile for each."""
    SCALE = 6
    """The bits of a float32."""


def emit_embed(module: ir.Module, name: str, form: AnyFormat, target: Target) -> Kernel:
    """Emit the kernel; tile = row of the step. A token outside the table reads its nearest end: nothing outside is touched."""
    kernel = Kernel(module, name)
    b, lanes = kernel.b, target.lanes
    k = kernel.number(EmbedWord.K)
    stated = b.sext(kernel.load(kernel.pointer(EmbedWord.ROW_TOKEN), kernel.tile, I32), I64)
    last = b.sub(kernel.number(EmbedWord.N), i64(1))
    token = b.select(b.icmp_unsigned("<=", stated, last), stated, last)
    scale = b.bitcast(b.trunc(kernel.number(EmbedWord.SCALE), I32), F32)
    out = kernel.at(kernel.pointer(EmbedWord.OUT), b.mul(kernel.tile, k), F32)
    lane, strip = b.srem(token, i64(lanes)), b.sdiv(token, i64(lanes))
    size = float_strip_bytes(kernel, form, k, lanes) if isinstance(form, FloatFormat) else strip_bytes(kernel, form, k, lanes)
    pointer = kernel.at(kernel.pointer(EmbedWord.WEIGHTS), b.mul(strip, size), I8)
    if isinstance(form, FloatFormat):
        own = kernel.at(pointer, b.mul(lane, i64(form.element_bytes)), I8)
        with kernel.loop(i64(0), k) as index:
            kernel.store(b.fmul(float_weights(kernel, form, target, own, index, 1), scale), out, index)
    else:
        _quantised(kernel, form, StripReader(kernel, form, target, pointer, k, lane), out, k, scale)
    kernel.done()
    return kernel


def _quantised(kernel: Kernel, form: Format, reader: StripReader, out: Value, k: Value, scale: Value) -> None:
    b, steps = kernel.b, form.group // STEP
    with kernel.loop(i64(0), over(kernel, k, form.group)) as group:
        weight_scale = reader.scale(group)
        minimum = reader.minimum(group) if form.minimum else None
        first = b.mul(group, i64(steps))
        with kernel.loop(first, b.add(first, i64(steps))) as step:
            here = kernel.at(out, b.shl(reader.first_pair(group, step), i64(1)), F32)
            for pair, both in zip(form.pair_offsets, reader.pairs(step), strict=True):
                for odd, quant in enumerate((b.and_(both, i32(0xFFFF)), b.lshr(both, i32(16)))):
                    # the file's own order of operations: the result has the bits of the reference
                    value = b.fmul(weight_scale, b.sitofp(b.sub(quant, i32(form.offset)), F32))
                    value = value if minimum is None else b.fadd(value, minimum)
                    kernel.store(b.fmul(value, scale), here, 2 * pair + odd)
