"""Passes over a whole row of scores: widen, forbid, largest, shift, weigh, invert. Float64 in groups of 16 logical lanes.

An array of scores is padded with -inf to whole blocks of 256, so that no pass has a ragged end; what is padded weighs nothing. Sums
are taken per block and lane, lanes in halves, blocks in order: the same bits at every vector width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, F64, I1, I32, I64, PTR, Function, Value, constant, i64, vector
from tripower.backends.picolm.native.kernels.mathematics import exp
from tripower.backends.picolm.native.target import Target

GROUP = 16
MASK_BITS = 32
BLOCK = 256
INFINITE = ir.Constant(F64, math.inf)
NEVER = ir.Constant(F64, -math.inf)
ZERO = ir.Constant(F64, 0.0)


def internal(module: ir.Module, name: str, parameters: Sequence[ir.Type], result: ir.Type | None = None) -> Function:
    """A function that only its module calls."""
    function = Function(module, name, parameters) if result is None else Function(module, name, parameters, result)
    function.value.linkage = "internal"
    return function


def padded(function: Function, count: Value) -> Value:
    """The next multiple of 256."""
    return function.b.and_(function.b.add(count, i64(BLOCK - 1)), i64(-BLOCK))


def load_group(function: Function, lanes: int, pointer: Value, index: Value, kind: ir.Type = F64) -> list[Value]:
    """16 elements from `index` on, as vectors."""
    return [function.load_vector(pointer, function.b.add(index, i64(at)), kind, lanes) for at in range(0, GROUP, lanes)]


def store_group(function: Function, values: Sequence[Value], pointer: Value, index: Value) -> None:
    """Vectors, one after the other."""
    for number, value in enumerate(values):
        function.store_vector(value, pointer, function.b.add(index, i64(number * value.type.count)))


def pad(function: Function, scores: Value, count: Value) -> None:
    """Write -inf behind `count` scores, up to the end of the block."""
    with function.loop(count, padded(function, count)) as index:
        function.store(NEVER, scores, index)


def build_widen(module: ir.Module, target: Target, name: str) -> Function:
    """`void widen(float32* logits, i64 count, float64* scores)`: exact copies, padded."""
    function = internal(module, name, [PTR, I64, PTR])
    b = function.b
    logits, count, scores = function.args
    lanes = target.lanes // 2
    whole = b.and_(count, i64(-GROUP))
    with function.loop(i64(0), whole, GROUP) as index:
        group = load_group(function, lanes, logits, index, F32)
        store_group(function, [b.fpext(each, vector(F64, lanes)) for each in group], scores, index)
    with function.loop(whole, count) as index:
        function.store(b.fpext(function.load(logits, index, F32), F64), scores, index)
    pad(function, scores, count)
    function.done()
    return function


def build_forbid(module: ir.Module, target: Target, name: str) -> Function:
    """`void forbid(float64* scores, i64 count, int32* mask)`: -inf where bit `index % 32` of word `index // 32` is 0.

    Words in which all bits are set, most of them in free text, cost a comparison.
    """
    function = internal(module, name, [PTR, I64, PTR])
    b = function.b
    scores, count, mask = function.args
    lanes = target.lanes // 2
    kind, nothing = vector(I32, lanes), constant(vector(F64, lanes), -math.inf)
    with function.loop(i64(0), b.lshr(b.add(count, i64(MASK_BITS - 1)), i64(5))) as number:
        word = function.load(mask, number, I32)
        with b.if_then(b.icmp_signed("!=", word, ir.Constant(I32, -1))):
            everywhere = function.splat(word, lanes)
            for first in range(0, MASK_BITS, lanes):
                index = b.add(b.shl(number, i64(5)), i64(first))
                bits = ir.Constant(kind, [ir.Constant(I32, 1 << (first + lane)) for lane in range(lanes)])
                allowed = b.icmp_signed("!=", b.and_(everywhere, bits), constant(kind, 0))
                score = function.load_vector(scores, index, F64, lanes)
                function.store_vector(b.select(allowed, score, nothing), scores, index)
    function.done()
    return function


def build_largest(module: ir.Module, target: Target, name: str, kind: ir.Type) -> Function:
    """`kind largest(kind* values, i64 count)`: NaN if any value is NaN. `kind` is float32 or float64; any count.

    Four running maxima hide the latency of one; a maximum has no rounding, so their number does not matter.
    """
    function = internal(module, name, [PTR, I64], kind)
    b = function.b
    values, count = function.args
    lanes = target.lanes if kind == F32 else target.lanes // 2
    width, lowest = vector(kind, lanes), constant(vector(kind, lanes), -math.inf)
    best = [function.variable(width, lowest) for _ in range(4)]
    unordered = function.variable(vector(I1, lanes), constant(vector(I1, lanes), 0))
    whole = b.mul(b.sdiv(count, i64(4 * lanes)), i64(4 * lanes))
    with function.loop(i64(0), whole, 4 * lanes) as index:
        for number, each in enumerate(best):
            value = function.load_vector(values, b.add(index, i64(number * lanes)), kind, lanes)
            unordered.set(b.or_(unordered.get(), b.fcmp_unordered("uno", value, value)))
            each.set(function.maximum(value, each.get()))
    first, second = (function.maximum(best[at].get(), best[at + 1].get()) for at in (0, 2))
    result = function.variable(kind, function.maximum_lanes(function.maximum(first, second)))
    spoiled = function.variable(I1, any_of(function, [unordered.get()]))
    with function.loop(whole, count) as index:
        value = function.load(values, index, kind)
        spoiled.set(b.or_(spoiled.get(), b.fcmp_unordered("uno", value, value)))
        result.set(function.maximum(value, result.get()))
    function.done(b.select(spoiled.get(), ir.Constant(kind, math.nan), result.get()))
    return function


def build_first(module: ir.Module, target: Target, name: str, kind: ir.Type) -> Function:
    """`i64 first(kind* values, i64 count, kind wanted)`: the first index of a value that is there."""
    function = internal(module, name, [PTR, I64, kind], I64)
    b = function.b
    values, count, wanted = function.args
    lanes = target.lanes if kind == F32 else target.lanes // 2
    index, everywhere = function.variable(I64, i64(0)), function.splat(wanted, lanes)
    with function.forever() as after:  # vectors without it
        function.leave_if(b.icmp_signed(">", b.add(index.get(), i64(lanes)), count), after)
        value = function.load_vector(values, index.get(), kind, lanes)
        function.leave_if(any_of(function, [b.fcmp_ordered("==", value, everywhere)]), after)
        index.add(i64(lanes))
    with function.forever() as after:
        function.leave_if(b.fcmp_ordered("==", function.load(values, index.get(), kind), wanted), after)
        index.add(i64(1))
    function.done(index.get())
    return function


def build_largest_allowed(module: ir.Module, target: Target, name: str) -> Function:
    """`i64 largest_allowed(float32* logits, i64 count, int32* mask)`: the first index of the largest value whose bit is set, as `forbid`
    reads bits; -1 if all of those are -inf, or there are none. Values are not NaN.

    Words of zeros are passed over, and a value is looked at by itself only where a vector holds a larger one than was found so far.
    """
    function = internal(module, name, [PTR, I64, PTR], I64)
    b = function.b
    logits, count, mask = function.args
    best, found = function.variable(F32, ir.Constant(F32, -math.inf)), function.variable(I64, i64(-1))
    words = b.lshr(count, i64(5))

    def look_at(number: Value, word: Value, bits: Value) -> None:
        first = b.shl(number, i64(5))
        with function.loop(i64(0), bits) as bit:
            index = b.add(first, bit)
            value = function.load(logits, index, F32)
            allowed = b.trunc(b.lshr(word, b.trunc(bit, I32)), I1)
            with b.if_then(b.and_(allowed, b.fcmp_ordered(">", value, best.get()))):
                best.set(value)
                found.set(index)

    with function.loop(i64(0), words) as number:
        word = function.load(mask, number, I32)
        with b.if_then(b.icmp_signed("!=", word, ir.Constant(I32, 0))):
            start, bound = b.shl(number, i64(5)), function.splat(best.get(), target.lanes)
            groups = [load_group(function, target.lanes, logits, b.add(start, i64(at)), F32) for at in (0, GROUP)]
            larger = any_of(function, [b.fcmp_ordered(">", each, bound) for group in groups for each in group])
            with b.if_then(larger, likely=False):
                look_at(number, word, i64(MASK_BITS))
    rest = b.and_(count, i64(MASK_BITS - 1))
    with b.if_then(b.icmp_signed(">", rest, i64(0))):
        look_at(words, function.load(mask, words, I32), rest)
    function.done(found.get())
    return function


def any_of(function: Function, conditions: Sequence[Value]) -> Value:
    """Whether vectors of i1 have a lane that is set."""
    some = conditions[0]
    for each in conditions[1:]:
        some = function.b.or_(some, each)
    return function.intrinsic("vector.reduce.or", [some.type], [some], I1)


def build_shift(module: ir.Module, target: Target, name: str) -> Function:
    """`void shift(float64* scores, i64 padded, float64 largest)`: `scores -= largest`."""
    function = internal(module, name, [PTR, I64, F64])
    scores, count, largest = function.args
    lanes = target.lanes // 2
    amount = function.splat(largest, lanes)
    with function.loop(i64(0), count, GROUP) as index:
        group = load_group(function, lanes, scores, index)
        store_group(function, [function.b.fsub(each, amount) for each in group], scores, index)
    function.done()
    return function


def build_weigh(module: ir.Module, target: Target, name: str) -> Function:
    """`double weigh(float64* scores, i64 padded, float64 temperature, float64* weights, float64* blocks)`: the sum of all weights.

    `weights = exp(scores / temperature)`, which may overwrite the scores; `blocks` is the sum up to and including each block of 256.
    """
    function = internal(module, name, [PTR, I64, F64, PTR, PTR], F64)
    b = function.b
    scores, count, temperature, weights, blocks = function.args
    lanes = target.lanes // 2
    divisor = function.splat(temperature, lanes)
    total = function.variable(F64, 0.0)
    with function.loop(i64(0), b.sdiv(count, i64(BLOCK))) as block:
        start = b.mul(block, i64(BLOCK))
        sums = [function.variable(vector(F64, lanes), 0.0) for _ in range(GROUP // lanes)]
        with function.loop(start, b.add(start, i64(BLOCK)), GROUP) as index:
            group = load_group(function, lanes, scores, index)
            group = [exp(function, b.fdiv(each, divisor)) for each in group]
            store_group(function, group, weights, index)
            for each, value in zip(sums, group, strict=True):
                each.set(b.fadd(each.get(), value))
        total.set(b.fadd(total.get(), function.sum_vectors([each.get() for each in sums])))
        function.store(total.get(), blocks, block)
    function.done(total.get())
    return function


def build_invert(module: ir.Module, name: str) -> Function:
    """`i64 invert(float64* weights, float64* blocks, i64 padded, float64 wanted)`: the first index whose cumulative weight exceeds
    `wanted`, else the last one, and never one that weighs nothing. There must be a weight above zero.
    """
    function = internal(module, name, [PTR, PTR, I64, F64], I64)
    b = function.b
    weights, blocks, count, wanted = function.args
    block = _block_of(function, blocks, b.sdiv(count, i64(BLOCK)), wanted)
    before = function.variable(F64, 0.0)
    with b.if_then(b.icmp_signed(">", block, i64(0))):
        before.set(function.load(blocks, b.sub(block, i64(1)), F64))
    start = b.mul(block, i64(BLOCK))
    index, found = function.variable(I64, start), function.variable(I64, start)
    with function.forever() as after:
        function.leave_if(b.icmp_signed("==", index.get(), b.add(start, i64(BLOCK))), after)
        weight = function.load(weights, index.get(), F64)
        found.set(b.select(b.fcmp_ordered(">", weight, ZERO), index.get(), found.get()))
        before.set(b.fadd(before.get(), weight))
        function.leave_if(b.fcmp_ordered(">", before.get(), wanted), after)
        index.add(i64(1))
    function.done(found.get())
    return function


def _block_of(function: Function, blocks: Value, count: Value, wanted: Value) -> Value:
    """The first block whose cumulative sum exceeds `wanted`, or the last one that adds anything: the product of a fraction and the
    whole may round up to the whole."""
    b = function.b
    index, found, before = function.variable(I64, i64(0)), function.variable(I64, i64(0)), function.variable(F64, 0.0)
    with function.forever() as after:
        function.leave_if(b.icmp_signed("==", index.get(), count), after)
        total = function.load(blocks, index.get(), F64)
        found.set(b.select(b.fcmp_ordered(">", total, before.get()), index.get(), found.get()))
        before.set(total)
        function.leave_if(b.fcmp_ordered(">", total, wanted), after)
        index.add(i64(1))
    return found.get()
