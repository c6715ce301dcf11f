"""The gate of a feed-forward, `activation(gate) * up`, straight into the form that the down projection reads."""

from __future__ import annotations

from typing import Literal

from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, Kernel, Value
from tripower.backends.picolm.native.kernels.mathematics import gelu, silu
from tripower.backends.picolm.native.kernels.quantise import Destination, for_each_element, load_block
from tripower.backends.picolm.native.target import Target

FUNCTIONS = {"silu": silu, "gelu": gelu}


def build_activation(module: ir.Module, target: Target, name: str, activation: Literal["silu", "gelu"]) -> None:
    """Kernel: tile = row and chunk, `tile = row * chunks + chunk` with `chunks = ceil(K / chunk length)`. No scratch.

    Words: 0 gate float32*, 1 up float32*, 2 the row stride of both in elements, 3 K, 4 chunk length, a multiple of 32, 5 the
    `Destination`. With experts a row is one pair of a row and an expert.
    """
    kernel = Kernel(module, name)
    b = kernel.b
    columns, length = kernel.number(3), kernel.number(4)
    chunks = b.sdiv(b.add(columns, b.sub(length, ir.Constant(length.type, 1))), length)
    row = b.sdiv(kernel.tile, chunks)
    start = b.mul(b.srem(kernel.tile, chunks), length)
    stop = kernel.intrinsic("smin", [columns.type], [b.add(start, length), columns])
    first = b.mul(row, kernel.number(2))
    gate, up = kernel.at(kernel.pointer(0), first, F32), kernel.at(kernel.pointer(1), first, F32)
    destination = Destination(kernel, target, 5, row, columns)
    apply = FUNCTIONS[activation]

    def whole(block: Value, index: Value) -> None:
        gates, ups = load_block(kernel, target.lanes, gate, index), load_block(kernel, target.lanes, up, index)
        destination.store([b.fmul(apply(kernel, value), other) for value, other in zip(gates, ups, strict=True)], block)

    def single(index: Value) -> None:
        value = apply(kernel, kernel.load(gate, index, F32))
        destination.store_one(b.fmul(value, kernel.load(up, index, F32)), index)

    for_each_element(kernel, stop, whole, single, start)
    kernel.done()
