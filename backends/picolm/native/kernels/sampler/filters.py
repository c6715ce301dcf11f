"""Top-k, top-p and min-p without a sort.

Each filter keeps the largest scores, the lower index first among equals: so each is a threshold (a score, and the last index that is
kept among those equal to it), and what it keeps is written out in ascending order of index.

The threshold is the place in that order where a running mass reaches what is wanted: the mass of an entry is 1 for top-k, its weight
for top-p. First a distance below the largest score is found within which the mass is reached, then the place among the entries that
this distance adds to the one before, as a radix sort would find it: from the highest digit of the score's bits down, where only the
digit in which the mass is reached is followed. A model's row has some hundred such entries. If there are many, the two distances are
brought together by bisection first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from llvmlite import ir

from tripower.backends.picolm.native.emit import F64, I1, I32, I64, PTR, Function, Value, constant, i64, vector
from tripower.backends.picolm.native.kernels.sampler.passes import (
    GROUP,
    INFINITE,
    NEVER,
    ZERO,
    any_of,
    internal,
    load_group,
    pad,
)
from tripower.backends.picolm.native.target import Target

DEPTHS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Distances below the largest score that are tried before the whole row."""
MANY = 1_024
"""Entries between two distances from which on it pays to read the row a few times more."""
BISECTIONS = 8
ENTRIES_MAX = 2**31 - 1
DIGITS = 256
DIGIT_BITS = 8
TOP_SHIFT = 56


def build_between(module: ir.Module, target: Target, name: str) -> Function:
    """`i64 between(float64* scores, i64 padded, float64 least, float64 above, i64 limit, int32* list)`: the number of indices of scores
    that are at least `least` and below `above`, ascending in `list`; no more are looked for once there are more than `limit`."""
    function = internal(module, name, [PTR, I64, F64, F64, I64, PTR], I64)
    function.value.attributes.add("noinline")
    b = function.b
    scores, count, least, above, limit, listed = function.args
    lanes = target.lanes // 2
    found, lower, upper = function.variable(I64, i64(0)), function.splat(least, lanes), function.splat(above, lanes)

    def inside(score: Value, low: Value, high: Value) -> Value:
        return b.and_(b.fcmp_ordered(">=", score, low), b.fcmp_ordered("<", score, high))

    with function.loop(i64(0), count, GROUP) as index:
        some = any_of(function, [inside(each, lower, upper) for each in load_group(function, lanes, scores, index)])
        some = b.and_(some, b.icmp_signed("<=", found.get(), limit))
        with b.if_then(some, likely=False), function.loop(index, b.add(index, i64(GROUP))) as one:
            function.store(b.trunc(one, I32), listed, found.get())  # overwritten by the next one unless it counts
            found.add(b.zext(inside(function.load(scores, one, F64), least, above), I64))
    function.done(found.get())
    return function


def build_mass(module: ir.Module, target: Target, name: str) -> Function:
    """`double mass(float64* scores, float64* weights, i64 padded, float64 least)`: the sum of the weights of scores that are at least
    `least`, lane by lane; without weights their number."""
    function = internal(module, name, [PTR, PTR, I64, F64], F64)
    function.value.attributes.add("noinline")
    b = function.b
    scores, weights, count, least = function.args
    lanes = target.lanes // 2
    kind = vector(F64, lanes)
    nothing, one, everywhere = constant(kind, 0.0), constant(kind, 1.0), function.splat(least, lanes)

    def add_up(weigh: Callable[[Value], Sequence[Value]]) -> Value:
        sums = [function.variable(kind, nothing) for _ in range(GROUP // lanes)]
        with function.loop(i64(0), count, GROUP) as index:
            group = load_group(function, lanes, scores, index)
            for each, score, weight in zip(sums, group, weigh(index), strict=True):
                held = b.select(b.fcmp_ordered(">=", score, everywhere), weight, nothing)
                each.set(b.fadd(each.get(), held))
        return function.sum_vectors([each.get() for each in sums])

    with b.if_then(_given(function, weights)):
        function.done(add_up(lambda index: load_group(function, lanes, weights, index)))
    function.done(add_up(lambda index: [one] * (GROUP // lanes)))
    return function


def build_reach(module: ir.Module, name: str) -> Function:
    """`i64 reach(int32* list, i64 count, float64* scores, float64* weights, float64 before, float64 wanted, float64* buckets)`: the
    index of the entry with which the mass, `before` and then from the largest listed score on, reaches `wanted`.

    At least one entry is listed, in ascending order, and the list is used up. Scores are at most 0. `weights` is null for masses of
    1. `buckets` has 256 elements.
    """
    function = internal(module, name, [PTR, I64, PTR, PTR, F64, F64, PTR], I64)
    function.value.attributes.add("noinline")
    b = function.b
    listed, count, scores, weights, mass_before, wanted, buckets = function.args
    left, before = function.variable(I64, count), function.variable(F64, mass_before)
    shift = function.variable(I64, i64(TOP_SHIFT))
    with function.forever() as after:
        function.leave_if(b.icmp_signed("<", shift.get(), i64(0)), after)
        function.leave_if(b.icmp_signed("==", left.get(), i64(1)), after)
        _fill_buckets(function, listed, left.get(), scores, weights, buckets, shift.get())
        digit, below = _follow(function, buckets, before.get(), wanted)
        before.set(below)
        left.set(_narrow(function, listed, left.get(), scores, shift.get(), digit))
        shift.add(i64(-DIGIT_BITS))
    place = function.variable(I64, i64(0))  # the entries left are equal: the lower index first
    with function.forever() as after:
        before.set(b.fadd(before.get(), _mass_of(function, weights, _entry(function, listed, place.get()))))
        function.leave_if(b.fcmp_ordered(">=", before.get(), wanted), after)
        function.leave_if(b.icmp_signed("==", place.get(), b.sub(left.get(), i64(1))), after)
        place.add(i64(1))
    function.done(_entry(function, listed, place.get()))
    return function


def build_threshold(module: ir.Module, target: Target, name: str) -> Function:
    """`i64 threshold(float64* scores, i64 padded, float64* weights, float64 wanted, int32* list, float64* buckets)`: the index of the
    last entry that is kept.

    Invariant: the mass of scores at least `upper` is `before` and less than wanted, that of scores at least `lower` is enough.
    """
    mass, between = build_mass(module, target, f"{name}.mass"), build_between(module, target, f"{name}.between")
    reach = build_reach(module, f"{name}.reach")
    function = internal(module, name, [PTR, I64, PTR, F64, PTR, PTR], I64)
    b = function.b
    scores, count, weights, wanted, listed, buckets = function.args
    upper, lower, before = function.variable(F64, math.inf), function.variable(F64, NEVER), function.variable(F64, 0.0)

    def look(where: Value) -> Value:
        """Move one end to `where`; whether it was the lower one."""
        held = b.call(mass.value, [scores, weights, count, where])
        enough = b.fcmp_ordered(">=", held, wanted)
        lower.set(b.select(enough, where, lower.get()))
        upper.set(b.select(enough, upper.get(), where))
        before.set(b.select(enough, before.get(), held))
        return enough

    def entries(limit: int) -> Value:
        return b.call(between.value, [scores, count, lower.get(), upper.get(), i64(limit), listed])

    with function.forever() as after:  # once: a way out of the row of attempts
        for depth in DEPTHS:
            function.leave_if(look(ir.Constant(F64, -depth)), after)
        b.branch(after)
    found = function.variable(I64, entries(MANY))
    with b.if_then(b.icmp_signed(">", found.get(), i64(MANY))):
        finite = b.and_(b.fcmp_ordered(">", lower.get(), NEVER), b.fcmp_ordered("<", upper.get(), INFINITE))
        with b.if_then(finite), function.loop(i64(0), i64(BISECTIONS)):
            look(b.fmul(b.fadd(lower.get(), upper.get()), ir.Constant(F64, 0.5)))
        found.set(entries(ENTRIES_MAX))
    function.done(b.call(reach.value, [listed, found.get(), scores, weights, before.get(), wanted, buckets]))
    return function


def build_keep(module: ir.Module, target: Target, name: str) -> Function:
    """`i64 keep(float64* scores, int32* ids, i64 padded, i1 numbered, float64 least, i64 last)`: how many scores are left.

    Keeps, in order and in place, scores above `least` and those equal to it up to index `last`, and their ids, which are the indices
    themselves unless `numbered`. The end is padded again.
    """
    function = internal(module, name, [PTR, PTR, I64, I1, F64, I64], I64)
    b = function.b
    scores, ids, count, numbered, least, last = function.args
    lanes = target.lanes // 2
    found, everywhere = function.variable(I64, i64(0)), function.splat(least, lanes)
    with function.loop(i64(0), count, GROUP) as index:
        group = load_group(function, lanes, scores, index)
        some = any_of(function, [b.fcmp_ordered(">=", each, everywhere) for each in group])
        with b.if_then(some, likely=False), function.loop(index, b.add(index, i64(GROUP))) as one:
            score = function.load(scores, one, F64)
            equal = b.and_(b.fcmp_ordered("==", score, least), b.icmp_signed("<=", one, last))
            with b.if_then(b.or_(b.fcmp_ordered(">", score, least), equal)):
                identity = function.variable(I32, b.trunc(one, I32))
                with b.if_then(numbered):
                    identity.set(function.load(ids, one, I32))
                function.store(identity.get(), ids, found.get())
                function.store(score, scores, found.get())
                found.add(i64(1))
    pad(function, scores, found.get())
    function.done(found.get())
    return function


def _fill_buckets(
    function: Function, listed: Value, count: Value, scores: Value, weights: Value, buckets: Value, shift: Value
) -> None:
    """The mass of each digit, summed in order of index."""
    b = function.b
    with function.loop(i64(0), i64(DIGITS)) as digit:
        function.store(ZERO, buckets, digit)
    with function.loop(i64(0), count) as place:
        entry = _entry(function, listed, place)
        digit = _digit(function, function.load(scores, entry, F64), shift)
        function.store(b.fadd(function.load(buckets, digit, F64), _mass_of(function, weights, entry)), buckets, digit)


def _follow(function: Function, buckets: Value, before: Value, wanted: Value) -> tuple[Value, Value]:
    """The digit in which the mass reaches `wanted`, or by rounding the last one that has any; and the mass before that digit."""
    b = function.b
    running, index = function.variable(F64, before), function.variable(I64, i64(0))
    chosen, below = function.variable(I64, i64(0)), function.variable(F64, before)
    with function.forever() as after:
        function.leave_if(b.icmp_signed("==", index.get(), i64(DIGITS)), after)
        bucket = function.load(buckets, index.get(), F64)
        some = b.fcmp_ordered(">", bucket, ZERO)
        chosen.set(b.select(some, index.get(), chosen.get()))
        below.set(b.select(some, running.get(), below.get()))
        running.set(b.fadd(running.get(), bucket))
        function.leave_if(b.and_(some, b.fcmp_ordered(">=", running.get(), wanted)), after)
        index.add(i64(1))
    return chosen.get(), below.get()


def _narrow(function: Function, listed: Value, count: Value, scores: Value, shift: Value, digit: Value) -> Value:
    """Leave only the entries with this digit in the list, in order; how many there are."""
    b = function.b
    kept = function.variable(I64, i64(0))
    with function.loop(i64(0), count) as place:
        entry = _entry(function, listed, place)
        function.store(b.trunc(entry, I32), listed, kept.get())
        same = b.icmp_signed("==", _digit(function, function.load(scores, entry, F64), shift), digit)
        kept.add(b.zext(same, I64))
    return kept.get()


def _digit(function: Function, score: Value, shift: Value) -> Value:
    """Eight bits of the distance from the largest score. Distances are not negative, so their bits grow with them."""
    b = function.b
    bits = b.bitcast(b.fsub(ZERO, score), I64)  # never a negative zero
    return b.and_(b.lshr(bits, shift), i64(DIGITS - 1))


def _entry(function: Function, listed: Value, place: Value) -> Value:
    return function.b.zext(function.load(listed, place, I32), I64)


def _mass_of(function: Function, weights: Value, entry: Value) -> Value:
    b = function.b
    found = function.variable(F64, 1.0)
    with b.if_then(_given(function, weights)):
        found.set(function.load(weights, entry, F64))
    return found.get()


def _given(function: Function, pointer: Value) -> Value:
    return function.b.icmp_unsigned("!=", function.b.ptrtoint(pointer, I64), i64(0))
