"""Rows taken out of several arrays, next to each other: what is still of interest behind a prompt's last attention."""

from __future__ import annotations

from llvmlite import ir

from tripower.backends.picolm.native.emit import I8, I32, I64, PTR, Kernel, i64

ARRAYS = 6
"""At most: a residual row, and what a linear layer reads of one."""


def build_take_rows(module: ir.Module, name: str = "take_rows") -> None:
    """Kernel: tile = row of the destinations. No scratch.

    Words: 0 the source row of each tile, int32*; then for each of `ARRAYS` 1 source, 2 destination, 3 bytes of a row. A source of 0 is
    left out.
    """
    kernel = Kernel(module, name)
    b = kernel.b
    row = b.sext(kernel.load(kernel.pointer(0), kernel.tile, I32), I64)
    for first in range(1, 1 + 3 * ARRAYS, 3):
        with b.if_then(b.icmp_unsigned("!=", kernel.number(first), i64(0))):
            size = kernel.number(first + 2)
            source = kernel.at(kernel.pointer(first), b.mul(row, size), I8)
            destination = kernel.at(kernel.pointer(first + 1), b.mul(kernel.tile, size), I8)
            kernel.external("memcpy", PTR, [destination, source, size])
    kernel.done()
