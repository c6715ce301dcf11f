"""The one instruction that everything turns on: pairs of 16-bit integers multiplied and added to 32-bit sums.

Sums are exact, so all forms below give the same bits.
"""

from __future__ import annotations

from llvmlite import ir

from tripower.backends.picolm.native.emit import I16, I32, Function, Value, vector
from tripower.backends.picolm.native.target import Target

MULTIPLY_ADD = {16: "x86.avx512.pmaddw.d.512", 8: "x86.avx2.pmadd.wd", 4: "x86.sse2.pmadd.wd"}


def dot_pairs(f: Function, target: Target, sums: Value, weights: Value, inputs: Value) -> Value:
    """`sums + w0 * x0 + w1 * x1` in each i32 lane; `weights` and `inputs` are i32 lanes that hold two i16 each."""
    lanes = target.lanes
    if target.dot_product:
        # LLVM types the operands as i32 lanes up to version 21 and accepts that form ever since
        return f.intrinsic(f"x86.avx512.vpdpwssd.{32 * lanes}", [], [sums, weights, inputs])
    halves = vector(I16, 2 * lanes)
    w, x = f.b.bitcast(weights, halves), f.b.bitcast(inputs, halves)
    if target.architecture == "x86_64":
        return f.b.add(sums, f.intrinsic(MULTIPLY_ADD[lanes], [], [w, x], vector(I32, lanes)))
    return f.b.add(sums, f.b.add(_products(f, w, x, lanes, 0), _products(f, w, x, lanes, 1)))


def _products(f: Function, w: Value, x: Value, lanes: int, first: int) -> Value:
    chosen = ir.Constant(ir.VectorType(I32, lanes), list(range(first, 2 * lanes, 2)))
    undefined = ir.Constant(w.type, ir.Undefined)
    wide = vector(I32, lanes)
    return f.b.mul(*(f.b.sext(f.b.shuffle_vector(each, undefined, chosen), wide) for each in (w, x)))
