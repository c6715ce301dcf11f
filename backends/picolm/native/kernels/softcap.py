"""Soft-capped logits, `cap * tanh(x / cap)`, in place."""

from __future__ import annotations

from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, F64, Kernel, Value, i64
from tripower.backends.picolm.native.kernels.mathematics import tanh
from tripower.backends.picolm.native.kernels.quantise import for_each_element, load_block, store_block
from tripower.backends.picolm.native.target import Target


def emit_softcap(kernel: Kernel, value: Value, cap: Value) -> Value:
    """`cap * tanh(value / cap)` of float32; `cap` has the type of the value."""
    return kernel.b.fmul(tanh(kernel, kernel.b.fdiv(value, cap)), cap)


def build_softcap(module: ir.Module, target: Target, name: str = "softcap") -> None:
    """Kernel: tile = row and chunk, `tile = row * chunks + chunk` with `chunks = ceil(K / chunk length)`. No scratch.

    Words: 0 x float32*, 1 its row stride in elements, 2 K, 3 chunk length, a multiple of 32, 4 the cap (a float64's bits).
    """
    kernel = Kernel(module, name)
    b = kernel.b
    columns, length = kernel.number(2), kernel.number(3)
    chunks = b.sdiv(b.add(columns, b.sub(length, i64(1))), length)
    start = b.mul(b.srem(kernel.tile, chunks), length)
    stop = kernel.intrinsic("smin", [columns.type], [b.add(start, length), columns])
    row = kernel.at(kernel.pointer(0), b.mul(b.sdiv(kernel.tile, chunks), kernel.number(1)), F32)
    cap = b.fptrunc(kernel.load(kernel.words, 4, F64), F32)
    caps = kernel.splat(cap, target.lanes)

    def whole(block: Value, index: Value) -> None:
        values = load_block(kernel, target.lanes, row, index)
        store_block(kernel, [emit_softcap(kernel, value, caps) for value in values], row, index)

    def single(index: Value) -> None:
        kernel.store(emit_softcap(kernel, kernel.load(row, index, F32), cap), row, index)

    for_each_element(kernel, stop, whole, single, start)
    kernel.done()
