"""What log probabilities are made of: of a row's logits the largest, the mass that softmax divides by, and the likeliest tokens.

The logarithm is left to Python, which needs one for each row. The mass is added up in 16 logical lanes over the whole row, lanes in
halves, the ragged end last: the same bits at every vector width and in every batch. The likeliest are kept in a short sorted list; few
values of a row ever get into it, so that one pass over the row finds them.
"""

from __future__ import annotations

import math

from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, F64, I32, I64, PTR, Function, Kernel, Value, Variable, i32, i64, vector
from tripower.backends.picolm.native.kernels.mathematics import exp
from tripower.backends.picolm.native.kernels.sampler.passes import (
    GROUP,
    any_of,
    build_largest,
    internal,
    load_group,
)
from tripower.backends.picolm.native.target import Target
from tripower.runtime.engine.logprobs import TOP_LOGPROBS_MAX

SUM_LARGEST, SUM_MASS, SUMS = range(3)
NO_TOKEN = -1
LOWEST = ir.Constant(F32, -math.inf)


def report_scratch_bytes() -> int:
    """The values of the list."""
    return TOP_LOGPROBS_MAX * 4


def build_report(module: ir.Module, target: Target, name: str = "report") -> None:
    """Kernel: tile = row of logits. Scratch: `report_scratch_bytes`.

    Words: 0 logits float32* [drawn][stride], 1 stride in elements, 2 vocabulary, 3 `drawn_row` int32*, 4 `row_slot` int32*,
    5 alternatives wanted int64* [slots], negative where the slot wants no report, 6 sums float64* [drawn][SUMS]: the largest logit, and
    the sum of `exp(logit - largest)`, 7 tokens int32* [drawn][TOP_LOGPROBS_MAX]: likeliest first, the lower id first among equals,
    `NO_TOKEN` where there are no more.
    """
    largest = build_largest(module, target, f"{name}.largest", F32)
    mass = _build_mass(module, target, f"{name}.mass")
    likeliest = _build_likeliest(module, target, f"{name}.likeliest")
    k = Kernel(module, name)
    b = k.b
    slot = b.sext(k.load(k.pointer(4), b.sext(k.load(k.pointer(3), k.tile, I32), I64), I32), I64)
    wanted = k.load(k.pointer(5), slot, I64)
    with b.if_then(b.icmp_signed("<", wanted, i64(0))):
        k.done()
    logits, vocabulary = k.at(k.pointer(0), b.mul(k.tile, k.number(1)), F32), k.number(2)
    best = b.fpext(b.call(largest.value, [logits, vocabulary]), F64)
    sums = k.at(k.pointer(6), b.mul(k.tile, i64(SUMS)), F64)
    k.store(b.fadd(best, ir.Constant(F64, 0.0)), sums, SUM_LARGEST)  # which of two zeros is the largest depends on the width
    k.store(b.call(mass.value, [logits, vocabulary, best]), sums, SUM_MASS)
    tokens = k.at(k.pointer(7), b.mul(k.tile, i64(TOP_LOGPROBS_MAX)), I32)
    b.call(likeliest.value, [logits, vocabulary, wanted, k.scratch, tokens])
    k.done()


def _build_mass(module: ir.Module, target: Target, name: str) -> Function:
    """`double mass(float32* logits, i64 count, double largest)`: the sum of `exp(logit - largest)`."""
    f = internal(module, name, [PTR, I64, F64], F64)
    b, (logits, count, largest) = f.b, f.args
    lanes = target.lanes // 2
    kind, everywhere = vector(F64, lanes), f.splat(largest, lanes)
    sums = [f.variable(kind, 0.0) for _ in range(GROUP // lanes)]
    whole = b.and_(count, i64(-GROUP))
    with f.loop(i64(0), whole, GROUP) as index:
        for each, value in zip(sums, load_group(f, lanes, logits, index, F32), strict=True):
            each.set(b.fadd(each.get(), exp(f, b.fsub(b.fpext(value, kind), everywhere))))
    total = f.variable(F64, f.sum_vectors([each.get() for each in sums]))
    with f.loop(whole, count) as index:
        value = b.fpext(f.load(logits, index, F32), F64)
        total.set(b.fadd(total.get(), exp(f, b.fsub(value, largest))))
    f.done(total.get())
    return f


def _build_likeliest(module: ir.Module, target: Target, name: str) -> Function:
    """`void likeliest(float32* logits, i64 count, i64 wanted, float32* values, int32* tokens)`; `wanted` is cut to the list's length."""
    f = internal(module, name, [PTR, I64, I64, PTR, PTR])
    b, (logits, count, asked, values, tokens) = f.b, f.args
    most = i64(TOP_LOGPROBS_MAX)
    wanted = b.select(b.icmp_signed("<", asked, most), asked, most)
    with f.loop(i64(0), most) as place:
        f.store(LOWEST, values, place)
        f.store(i32(NO_TOKEN), tokens, place)
    with b.if_then(b.icmp_signed("==", wanted, i64(0))):
        f.done()
    last = b.sub(wanted, i64(1))
    least = f.variable(F32, LOWEST)
    lanes = target.lanes
    whole = b.and_(count, i64(-GROUP))

    def look_at(index: Value) -> None:
        value = f.load(logits, index, F32)
        with b.if_then(b.fcmp_ordered(">", value, least.get()), likely=False):
            _insert(f, values, tokens, last, value, index)
            least.set(f.load(values, last, F32))

    with f.loop(i64(0), whole, GROUP) as start:
        bound = f.splat(least.get(), lanes)
        above = [b.fcmp_ordered(">", each, bound) for each in load_group(f, lanes, logits, start, F32)]
        with b.if_then(any_of(f, above), likely=False), f.loop(start, b.add(start, i64(GROUP))) as index:
            look_at(index)
    with f.loop(whole, count) as index:
        look_at(index)
    f.done()
    return f


def _insert(f: Function, values: Value, tokens: Value, last: Value, value: Value, token: Value) -> None:
    """Put a value into the list, behind those that are as large; the last one falls out."""
    b = f.b
    place: Variable = f.variable(I64, last)
    with f.forever() as found:
        f.leave_if(b.icmp_signed("==", place.get(), i64(0)), found)
        before = b.sub(place.get(), i64(1))
        larger = f.load(values, before, F32)
        f.leave_if(b.fcmp_ordered(">=", larger, value), found)
        f.store(larger, values, place.get())
        f.store(f.load(tokens, before, I32), tokens, place.get())
        place.set(before)
    f.store(value, values, place.get())
    f.store(b.trunc(token, I32), tokens, place.get())
