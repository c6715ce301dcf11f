"""The kernel that turns a row of logits into a token: the order of the stages.

Like `backends.sampling.draw_token`: penalties, logit bias, mask and bans, top-k, top-p, min-p, temperature, draw. A token is a function of its
row, history and settings only, so neighbours, threads and repetitions change nothing. The logits stay as they are.

Sums are taken in another order than numpy's. So a token may differ from Python's where the random number, or what top-p wants, is
within about 1e-13 of the step between two tokens; that is one draw in billions. Two native draws never differ, on any machine.
"""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, F64, I1, I32, I64, PTR, Function, Kernel, Value, Variable, i64
from tripower.backends.picolm.native.kernels.sampler import filters, passes
from tripower.backends.picolm.native.kernels.sampler.passes import BLOCK, INFINITE, NEVER, ZERO, padded
from tripower.backends.picolm.native.kernels.sampler.penalties import build_ban, build_penalties
from tripower.backends.picolm.native.kernels.sampler.philox import build_uniform
from tripower.backends.picolm.native.kernels.sampler.settings import Record
from tripower.backends.picolm.native.target import Target
from tripower.runtime.engine.step_table import INVALID_LOGITS

EVERY = ir.Constant(I64, 2**63 - 1)


def draw_scratch_bytes(vocabulary: int) -> int:
    """Scores and weights in float64, ids and a list in int32, sums of blocks, buckets."""
    row = -(-vocabulary // BLOCK) * BLOCK
    return row * (8 + 8 + 4 + 4) + -(-row // BLOCK // 8) * 64 + filters.DIGITS * 8


class _Memory(NamedTuple):
    """This thread's arrays, of `draw_scratch_bytes`."""

    scores: Value
    weights: Value
    ids: Value
    listed: Value
    buckets: Value
    blocks: Value


class _Stages:
    """The functions that the kernel calls, all internal to its module."""

    def __init__(self, module: ir.Module, target: Target, name: str) -> None:
        self.largest_logit = passes.build_largest(module, target, f"{name}.largest_logit", F32)
        self.largest_allowed = passes.build_largest_allowed(module, target, f"{name}.largest_allowed")
        self.first_logit = passes.build_first(module, target, f"{name}.first_logit", F32)
        self.widen = passes.build_widen(module, target, f"{name}.widen")
        self.penalties = build_penalties(module, f"{name}.penalties")
        self.ban = build_ban(module, f"{name}.ban")
        self.forbid = passes.build_forbid(module, target, f"{name}.forbid")
        self.largest = passes.build_largest(module, target, f"{name}.largest", F64)
        self.first = passes.build_first(module, target, f"{name}.first", F64)
        self.shift = passes.build_shift(module, target, f"{name}.shift")
        self.weigh = passes.build_weigh(module, target, f"{name}.weigh")
        self.threshold = filters.build_threshold(module, target, f"{name}.threshold")
        self.keep = filters.build_keep(module, target, f"{name}.keep")
        self.uniform = build_uniform(module, f"{name}.uniform")
        self.invert = passes.build_invert(module, f"{name}.invert")


def build_draw(module: ir.Module, target: Target, name: str = "draw") -> None:
    """Kernel: tile = row of logits. Scratch: `draw_scratch_bytes`.

    Words: 0 logits float32* [drawn][stride], 1 stride in elements, 2 vocabulary, 3 `drawn_row` int32*, 4 `row_slot` int32*,
    5 records (`settings.SETTINGS` [slots]), 6 output index int64* [slots], 7 tokens int32* [drawn], 8 `row_draw` int32* [drawn]: how
    far behind the slot's output index this row's token stands, negative where none is drawn.
    """
    stages = _Stages(module, target, name)
    plain, sampled = _build_plain(module, stages, f"{name}.plain"), _build_sampled(module, stages, f"{name}.sampled")
    kernel = Kernel(module, name)
    b = kernel.b
    ahead = b.sext(kernel.load(kernel.pointer(8), kernel.tile, I32), I64)
    with b.if_then(b.icmp_signed("<", ahead, i64(0))):
        kernel.done()
    logits = kernel.at(kernel.pointer(0), b.mul(kernel.tile, kernel.number(1)), F32)
    row = b.sext(kernel.load(kernel.pointer(3), kernel.tile, I32), I64)
    slot = b.sext(kernel.load(kernel.pointer(4), row, I32), I64)
    record = Record(kernel, kernel.pointer(5), slot)
    token = kernel.variable(I64)
    with b.if_else(b.icmp_signed("!=", record.number("plain_greedy"), i64(0))) as (greedy, other):
        with greedy:
            token.set(b.call(plain.value, [logits, kernel.number(2), record.pointer("mask")]))
        with other:
            output_index = b.add(kernel.load(kernel.pointer(6), slot, I64), ahead)
            token.set(b.call(sampled.value, [logits, kernel.number(2), record.address, output_index, kernel.scratch]))
    kernel.store(b.trunc(token.get(), I32), kernel.pointer(7), kernel.tile)
    kernel.done()


def _build_plain(module: ir.Module, stages: _Stages, name: str) -> Function:
    """`i64 plain(float32* logits, i64 vocabulary, int32* mask)`: the first of the largest logits that a mask, if there is one, allows."""
    function = passes.internal(module, name, [PTR, I64, PTR], I64)
    b = function.b
    logits, vocabulary, mask = function.args
    best = b.call(stages.largest_logit.value, [logits, vocabulary])
    _leave_unless_finite(function, b.fpext(best, F64))
    with b.if_then(b.icmp_unsigned("!=", mask, ir.Constant(PTR, None))):
        allowed = b.call(stages.largest_allowed.value, [logits, vocabulary, mask])
        function.done(b.select(b.icmp_signed("<", allowed, i64(0)), i64(INVALID_LOGITS), allowed))
    function.done(b.call(stages.first_logit.value, [logits, vocabulary, best]))
    return function


def _build_sampled(module: ir.Module, stages: _Stages, name: str) -> Function:
    """`i64 sampled(float32* logits, i64 vocabulary, ptr record, i64 output_index, ptr scratch)`."""
    function = passes.internal(module, name, [PTR, I64, PTR, I64, PTR], I64)
    b = function.b
    logits, vocabulary, address, output_index, scratch = function.args
    record = Record(function, address, i64(0))
    memory = _memory(function, scratch, padded(function, vocabulary))
    scores, blocks = memory.scores, memory.blocks
    b.call(stages.widen.value, [logits, vocabulary, scores])
    b.call(stages.penalties.value, [address, scores, vocabulary, memory.listed])
    largest = function.variable(F64, b.call(stages.largest.value, [scores, vocabulary]))
    _leave_unless_finite(function, largest.get())
    banning = b.icmp_signed("<", output_index, record.number("banned_until"))
    masked = b.icmp_signed("!=", record.number("mask"), i64(0))
    with b.if_then(banning):
        b.call(stages.ban.value, [address, scores, vocabulary])
    with b.if_then(masked):
        b.call(stages.forbid.value, [scores, vocabulary, record.pointer("mask")])
    with b.if_then(b.or_(banning, masked)):
        largest.set(b.call(stages.largest.value, [scores, vocabulary]))
        _leave_unless_finite(function, largest.get())
    best = largest.get()
    temperature = record.float("temperature")
    with b.if_then(b.fcmp_ordered("<=", temperature, ZERO)):
        function.done(b.call(stages.first.value, [scores, vocabulary, best]))
    b.call(stages.shift.value, [scores, padded(function, vocabulary), best])
    count, numbered = _filter(function, stages, record, memory, vocabulary)
    whole = padded(function, count.get())
    total = b.call(stages.weigh.value, [scores, whole, temperature, scores, blocks])
    fraction = b.call(stages.uniform.value, [record.number("seed"), record.number("choice"), output_index])
    drawn = b.call(stages.invert.value, [scores, blocks, whole, b.fmul(fraction, total)])
    with b.if_then(numbered.get()):
        function.done(b.zext(function.load(memory.ids, drawn, I32), I64))
    function.done(drawn)
    return function


def _filter(
    function: Function, stages: _Stages, record: Record, memory: _Memory, vocabulary: Value
) -> tuple[Variable, Variable]:
    """Top-k, top-p and min-p. How many scores are left, and whether they have ids of their own."""
    b = function.b
    count, numbered = function.variable(I64, vocabulary), function.variable(I1, 0)

    def keep(least: Value, last: Value) -> None:
        arguments = [memory.scores, memory.ids, padded(function, count.get()), numbered.get(), least, last]
        count.set(b.call(stages.keep.value, arguments))
        numbered.set(ir.Constant(I1, 1))

    def keep_until(weights: Value, wanted: Value) -> None:
        whole = padded(function, count.get())
        last = b.call(stages.threshold.value, [memory.scores, whole, weights, wanted, memory.listed, memory.buckets])
        keep(function.load(memory.scores, last, F64), last)

    top_k, top_p, least = record.number("top_k"), record.float("top_p"), record.float("score_min")
    with b.if_then(b.and_(b.icmp_signed(">", top_k, i64(0)), b.icmp_signed("<", top_k, vocabulary))):
        keep_until(ir.Constant(PTR, None), b.sitofp(top_k, F64))
    with b.if_then(b.fcmp_ordered("<", top_p, ir.Constant(F64, 1.0))):
        whole = padded(function, count.get())
        one = ir.Constant(F64, 1.0)
        total = b.call(stages.weigh.value, [memory.scores, whole, one, memory.weights, memory.blocks])
        keep_until(memory.weights, b.fmul(top_p, total))
    with b.if_then(b.fcmp_ordered(">", least, NEVER)):
        keep(least, EVERY)
    return count, numbered


def _leave_unless_finite(function: Function, value: Value) -> None:
    finite = function.b.fcmp_ordered("<", function.intrinsic("fabs", [F64], [value]), INFINITE)
    with function.b.if_then(function.b.not_(finite), likely=False):
        function.done(i64(INVALID_LOGITS))


def _memory(function: Function, scratch: Value, row: Value) -> _Memory:
    scores = scratch
    weights = function.at(scores, row, F64)
    ids = function.at(weights, row, F64)
    listed = function.at(ids, row, I32)
    buckets = function.at(listed, row, I32)
    return _Memory(scores, weights, ids, listed, buckets, function.at(buckets, filters.DIGITS, F64))
