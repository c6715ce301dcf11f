"""The online soft-max of queries over one page: scores become probabilities, and what was summed so far is rescaled."""

from __future__ import annotations

from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, I32, I64, PTR, Function, Value, constant, i64, vector
from tripower.backends.picolm.native.kernels.attention.blocks import LANES, Record
from tripower.backends.picolm.native.kernels.attention.kv import PAGE_POSITIONS, pieces
from tripower.backends.picolm.native.kernels.mathematics import exp, tanh

LOWEST = -1e30
"""Where a maximum starts, and what a score out of sight counts as: finite, so that its difference from itself is zero."""


def build_softmax(module: ir.Module, head_size: int, softcap: float, name: str) -> Value:
    """Emit `void name(ptr records, i64 count, i64 start)` for `count` records and the page whose first position is `start`.

    A record that sees nothing of the page is left as it is.
    """
    function = Function(module, name, [PTR, I64, I64])
    function.value.linkage = "internal"
    function.value.attributes.add("noinline")
    records, count, start = function.args
    b, layout = function.b, Record(head_size)
    with function.loop(i64(0), count) as index:
        record = layout.at(function, records, index)
        low, high = layout.sight(function, record, start)
        positions = b.sub(high, low)
        with b.if_then(b.icmp_signed("==", positions, i64(PAGE_POSITIONS))):
            _update(function, record, head_size, softcap, None)
        some = b.icmp_signed(">", positions, i64(0))
        with b.if_then(b.and_(some, b.icmp_signed("<", positions, i64(PAGE_POSITIONS)))):
            _update(function, record, head_size, softcap, (low, high))
    function.done()
    return function.value


def _update(function: Function, record: Value, head_size: int, softcap: float, sight: tuple[Value, Value] | None) -> None:
    b = function.b
    seen = None if sight is None else [_seen(function, first, *sight) for first in range(0, PAGE_POSITIONS, LANES)]
    scores = _scores(function, record, softcap, seen)
    largest = function.maximum_lanes(function.maximum(function.maximum(*scores[:2]), function.maximum(*scores[2:])))
    before = function.load(record, Record.MAXIMUM, F32)
    maximum = function.maximum(before, largest)
    with b.if_then(b.fcmp_unordered("!=", maximum, before)):
        function.store(maximum, record, Record.MAXIMUM)
        _rescale(function, record, head_size, exp(function, b.fsub(before, maximum)))
    subtracted = function.splat(maximum, LANES)
    p = [exp(function, b.fsub(score, subtracted)) for score in scores]
    if seen is not None:
        p = [b.select(mask, value, constant(value.type, 0.0)) for mask, value in zip(seen, p, strict=True)]
    for index, value in enumerate(p):
        function.store_vector(value, record, Record.SCORES + index * LANES)
    total = b.fadd(b.fadd(p[0], p[1]), b.fadd(p[2], p[3]))
    function.store_vector(b.fadd(function.load_vector(record, Record.SUMS, F32, LANES), total), record, Record.SUMS)


def _seen(function: Function, first: int, low: Value, high: Value) -> Value:
    """Which of 16 positions from `first` on are in sight."""
    b, kind = function.b, vector(I32, LANES)
    positions = ir.Constant(kind, [ir.Constant(I32, first + lane) for lane in range(LANES)])
    after = b.icmp_signed(">=", positions, function.splat(b.trunc(low, I32), LANES))
    return b.and_(after, b.icmp_signed("<", positions, function.splat(b.trunc(high, I32), LANES)))


def _scores(function: Function, record: Value, softcap: float, seen: list[Value] | None) -> list[Value]:
    b = function.b
    found = [function.load_vector(record, Record.SCORES + first, F32, LANES) for first in range(0, PAGE_POSITIONS, LANES)]
    kind = found[0].type
    if softcap:
        cap, inverse = constant(kind, softcap), constant(kind, 1.0 / softcap)
        found = [b.fmul(tanh(function, b.fmul(score, inverse)), cap) for score in found]
    if seen is not None:
        found = [b.select(mask, score, constant(kind, LOWEST)) for mask, score in zip(seen, found, strict=True)]
    return found


def _rescale(function: Function, record: Value, head_size: int, factor: Value) -> None:
    b, output = function.b, Record(head_size).output
    for first, lanes in [(Record.SUMS, LANES), *((output + first, lanes) for first, lanes in pieces(head_size))]:
        value = function.load_vector(record, first, F32, lanes)
        function.store_vector(b.fmul(value, function.splat(factor, lanes)), record, first)
