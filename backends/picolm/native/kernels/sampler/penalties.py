"""Penalties for tokens that were there before, logit bias and bans: the few scores of a row that are not the model's own.

Each token is counted once however often it occurs. The counts live in an array with an entry for each token of the vocabulary, of which
only those are ever cleared that the history names. Tokens outside the vocabulary are passed over: no history may write elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from tripower.backends.picolm.native.emit import F64, I32, I64, PTR, Function, Value, i32, i64
from tripower.backends.picolm.native.kernels.sampler.passes import NEVER, ZERO, internal
from tripower.backends.picolm.native.kernels.sampler.settings import Record

ONE = ir.Constant(F64, 1.0)


def build_penalties(module: ir.Module, name: str) -> Function:
    """`void penalties(ptr record, float64* scores, i64 vocabulary, int32* counts)`: penalties and logit bias, in place."""
    function = internal(module, name, [PTR, PTR, I64, PTR])
    b = function.b
    address, scores, vocabulary, counts = function.args
    record = Record(function, address, i64(0))
    length, window = record.number("history_length"), record.number("repeat_last_n")
    penalty = record.float("repeat_penalty")
    with b.if_then(b.and_(b.fcmp_unordered("!=", penalty, ONE), b.icmp_signed("!=", window, i64(0)))):
        whole = b.or_(b.icmp_signed("<", window, i64(0)), b.icmp_signed(">", window, length))
        start = b.select(whole, i64(0), b.sub(length, window))
        _repeat(function, record, scores, vocabulary, counts, start, length, penalty)
    presence, frequency = record.float("presence_penalty"), record.float("frequency_penalty")
    either = b.or_(b.fcmp_unordered("!=", presence, ZERO), b.fcmp_unordered("!=", frequency, ZERO))
    with b.if_then(either):
        _presence_and_frequency(function, record, scores, vocabulary, counts, presence, frequency)
    _bias(function, record, scores, vocabulary)
    function.done()
    return function


def build_ban(module: ir.Module, name: str) -> Function:
    """`void ban(ptr record, float64* scores, i64 vocabulary)`: -inf for what is banned so early in an answer."""
    function = internal(module, name, [PTR, PTR, I64])
    address, scores, vocabulary = function.args
    record = Record(function, address, i64(0))
    with _tokens(function, record.pointer("banned"), i64(0), record.number("banned_count"), vocabulary) as token:
        function.store(NEVER, scores, token)
    function.done()
    return function


def _repeat(
    function: Function,
    record: Record,
    scores: Value,
    vocabulary: Value,
    counts: Value,
    start: Value,
    stop: Value,
    penalty: Value,
) -> None:
    """Divide positive and multiply negative scores, once for each token of the window."""
    b = function.b
    history = record.pointer("history")
    with _tokens(function, history, start, stop, vocabulary) as token:
        function.store(i32(0), counts, token)
    with _tokens(function, history, start, stop, vocabulary) as token:
        first = b.icmp_signed("==", function.load(counts, token, I32), i32(0))
        with b.if_then(first):
            function.store(i32(1), counts, token)
            score = function.load(scores, token, F64)
            above = b.fcmp_ordered(">", score, ZERO)
            function.store(b.select(above, b.fdiv(score, penalty), b.fmul(score, penalty)), scores, token)


def _presence_and_frequency(
    function: Function, record: Record, scores: Value, vocabulary: Value, counts: Value, presence: Value, frequency: Value
) -> None:
    """Subtract once, and once more for each occurrence, from the tokens of the output."""
    b = function.b
    history, start, stop = record.pointer("history"), record.number("prompt_length"), record.number("history_length")
    with _tokens(function, history, start, stop, vocabulary) as token:
        function.store(i32(0), counts, token)
    with _tokens(function, history, start, stop, vocabulary) as token:
        function.store(b.add(function.load(counts, token, I32), i32(1)), counts, token)
    with _tokens(function, history, start, stop, vocabulary) as token:
        count = function.load(counts, token, I32)
        with b.if_then(b.icmp_signed("!=", count, i32(0))):
            function.store(i32(0), counts, token)
            amount = b.fadd(presence, b.fmul(frequency, b.sitofp(count, F64)))
            function.store(b.fsub(function.load(scores, token, F64), amount), scores, token)


def _bias(function: Function, record: Record, scores: Value, vocabulary: Value) -> None:
    b = function.b
    values = record.pointer("bias_values")
    with function.loop(i64(0), record.number("bias_count")) as index:
        token = b.sext(function.load(record.pointer("bias_tokens"), index, I32), I64)
        with b.if_then(b.icmp_unsigned("<", token, vocabulary)):
            function.store(b.fadd(function.load(scores, token, F64), function.load(values, index, F64)), scores, token)


@contextmanager
def _tokens(function: Function, history: Value, start: Value, stop: Value, vocabulary: Value) -> Iterator[Value]:
    """Each token of a list from `start` to `stop` that the vocabulary has, as an int64."""
    b = function.b
    with function.loop(start, stop) as index:
        token = b.sext(function.load(history, index, I32), I64)
        with b.if_then(b.icmp_unsigned("<", token, vocabulary)):
            yield token
