"""Mixtures of experts: which experts a row passes, and the weighted sum of what they give.

The router's scores become a softmax over all experts in float64; a row takes the experts with the largest scores, the lower one of
equals, in falling order. Scores that are not finite give weights that are NaN and experts that exist, so that the row is seen to be
spoiled and nothing is read that is not there.
"""

from __future__ import annotations

import math

from llvmlite import ir

from tripower.backends.picolm.native.emit import (
    F32,
    F64,
    I1,
    I8,
    I32,
    I64,
    Function,
    Kernel,
    Value,
    Variable,
    constant,
    f32,
    i64,
)
from tripower.backends.picolm.native.kernels.mathematics import exp
from tripower.backends.picolm.native.kernels.quantise import for_each_element, load_block, store_block
from tripower.backends.picolm.native.target import Target


def route_scratch_bytes(experts: int) -> int:
    """A mark for each expert."""
    return experts


def build_route(module: ir.Module, target: Target, name: str = "route") -> None:
    """Kernel: tile = row. Scratch: `route_scratch_bytes`.

    Words: 0 scores float32* [rows][experts], 1 experts, 2 used, 3 ids int32* [rows][used], 4 weights float32* [rows][used], 5 1 if
    the weights are divided by their sum, 6 the least sum to divide by (a float64's bits).
    """
    kernel = Kernel(module, name)
    b = kernel.b
    experts, used = kernel.number(1), kernel.number(2)
    scores = kernel.at(kernel.pointer(0), b.mul(kernel.tile, experts), F32)
    ids = kernel.at(kernel.pointer(3), b.mul(kernel.tile, used), I32)
    weights = kernel.at(kernel.pointer(4), b.mul(kernel.tile, used), F32)
    largest, whole = _softmax_sums(kernel, scores, experts)
    with kernel.loop(i64(0), experts) as index:
        kernel.store(ir.Constant(I8, 0), kernel.scratch, index)
    chosen = kernel.variable(F64, 0.0)
    with kernel.loop(i64(0), used) as place:
        best = _best_unmarked(kernel, scores, experts)
        kernel.store(ir.Constant(I8, 1), kernel.scratch, best)
        kernel.store(b.trunc(best, I32), ids, place)
        chosen.set(b.fadd(chosen.get(), _share(kernel, scores, best, largest, whole)))
    least = kernel.load(kernel.words, 6, F64)
    kept = b.select(b.fcmp_ordered("<", chosen.get(), least), least, chosen.get())
    divisor = b.select(b.icmp_signed("!=", kernel.number(5), i64(0)), kept, ir.Constant(F64, 1.0))
    with kernel.loop(i64(0), used) as place:
        expert = b.sext(kernel.load(ids, place, I32), I64)
        share = _share(kernel, scores, expert, largest, whole)
        kernel.store(b.fptrunc(b.fdiv(share, divisor), F32), weights, place)
    kernel.done()


def build_combine(module: ir.Module, target: Target, name: str = "combine") -> None:
    """Kernel: tile = row and chunk, `tile = row * chunks + chunk` with `chunks = ceil(K / chunk length)`. No scratch.

    Words: 0 expert outputs float32* [rows * used][K], 1 weights float32* [rows][used], 2 used, 3 K, 4 chunk length, a multiple of
    32, 5 out float32* [rows][K], 6 1 if the sum is added to out. `sum = w0 * e0 + w1 * e1 + …`, from the first expert on.
    """
    kernel = Kernel(module, name)
    b = kernel.b
    used, columns, length = kernel.number(2), kernel.number(3), kernel.number(4)
    chunks = b.sdiv(b.add(columns, b.sub(length, i64(1))), length)
    row = b.sdiv(kernel.tile, chunks)
    start = b.mul(b.srem(kernel.tile, chunks), length)
    stop = kernel.intrinsic("smin", [I64], [b.add(start, length), columns])
    weights = kernel.at(kernel.pointer(1), b.mul(row, used), F32)
    first = b.mul(b.mul(row, used), columns)
    inputs = kernel.at(kernel.pointer(0), first, F32)
    out = kernel.at(kernel.pointer(5), b.mul(row, columns), F32)
    adds = b.icmp_signed("!=", kernel.number(6), i64(0))

    def add_experts(sums: list[Variable], index: Value, lanes: int) -> None:
        with kernel.loop(i64(0), used) as place:
            weight = kernel.splat(kernel.load(weights, place, F32), lanes)
            where = b.add(b.mul(place, columns), index)
            for number, each in enumerate(sums):
                part = kernel.load_vector(inputs, b.add(where, i64(number * lanes)), F32, lanes)
                each.set(b.fadd(each.get(), b.fmul(weight, part)))

    def onto(total: Value, old: Value) -> Value:
        return b.fadd(b.select(adds, old, constant(total.type, 0.0)), total)

    def whole(block: Value, index: Value) -> None:
        old = load_block(kernel, target.lanes, out, index)
        sums = [kernel.variable(each.type, constant(each.type, 0.0)) for each in old]
        add_experts(sums, index, target.lanes)
        store_block(kernel, [onto(each.get(), before) for each, before in zip(sums, old, strict=True)], out, index)

    def single(index: Value) -> None:
        total = kernel.variable(F32, 0.0)
        add_experts([total], index, 1)
        kernel.store(onto(total.get(), kernel.load(out, index, F32)), out, index)

    for_each_element(kernel, columns=stop, whole=whole, single=single, start=start)
    kernel.done()


def _softmax_sums(function: Function, scores: Value, experts: Value) -> tuple[Value, Value]:
    """The largest score, and the sum of `exp(score - largest)` in ascending order: both float64."""
    b = function.b
    largest = function.variable(F32, f32(-math.inf))
    with function.loop(i64(0), experts) as index:
        largest.set(function.maximum(function.load(scores, index, F32), largest.get()))
    wide = b.fpext(largest.get(), F64)
    total = function.variable(F64, 0.0)
    with function.loop(i64(0), experts) as index:
        score = b.fpext(function.load(scores, index, F32), F64)
        total.set(b.fadd(total.get(), exp(function, b.fsub(score, wide))))
    return wide, total.get()


def _share(function: Function, scores: Value, expert: Value, largest: Value, whole: Value) -> Value:
    score = function.b.fpext(function.load(scores, expert, F32), F64)
    return function.b.fdiv(exp(function, function.b.fsub(score, largest)), whole)


def _best_unmarked(kernel: Kernel, scores: Value, experts: Value) -> Value:
    """The expert with the largest score among those without a mark in scratch; the first of equals; any, if all are NaN."""
    b = kernel.b
    best, best_score = kernel.variable(I64, i64(0)), kernel.variable(F32, 0.0)
    found = kernel.variable(I1, ir.Constant(I1, 0))
    with kernel.loop(i64(0), experts) as index:
        free = b.icmp_signed("==", kernel.load(kernel.scratch, index, I8), ir.Constant(I8, 0))
        score = kernel.load(scores, index, F32)
        better = b.or_(b.not_(found.get()), b.fcmp_ordered(">", score, best_score.get()))
        with b.if_then(b.and_(free, better)):
            found.set(ir.Constant(I1, 1))
            best.set(index)
            best_score.set(score)
    return best.get()
