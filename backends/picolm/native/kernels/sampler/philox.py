"""The random number of a draw: Philox 4x64 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)."""

from __future__ import annotations

from llvmlite import ir

from tripower.backends.picolm.native.emit import F64, I64, Function, Value
from tripower.backends.picolm.native.kernels.sampler.passes import internal

MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
"""What the key grows by from round to round: the golden ratio and the square root of three, less one."""
ROUNDS = 10
I128 = ir.IntType(128)


def build_uniform(module: ir.Module, name: str) -> Function:
    """`double uniform(i64 seed, i64 choice, i64 output_index)` in [0, 1): the same number as `backends.sampling.uniform`.

    Key (seed, choice), counter (output_index + 1, 0, 0, 0), the upper 53 bits of the first word.
    """
    function = internal(module, name, [I64, I64, I64], F64)
    b = function.b
    key = list(function.args[:2])
    zero = _word(0)
    counter = [b.add(function.args[2], _word(1)), zero, zero, zero]
    for number in range(ROUNDS):
        if number:
            key = [b.add(each, _word(step)) for each, step in zip(key, KEY_STEPS, strict=True)]
        low_first, high_first = _product(b, counter[0], MULTIPLIERS[0])
        low_second, high_second = _product(b, counter[2], MULTIPLIERS[1])
        counter = [
            b.xor(b.xor(high_second, counter[1]), key[0]),
            low_second,
            b.xor(b.xor(high_first, counter[3]), key[1]),
            low_first,
        ]
    upper = b.uitofp(b.lshr(counter[0], _word(11)), F64)
    function.done(b.fmul(upper, ir.Constant(F64, 2.0**-53)))
    return function


def _word(value: int) -> Value:
    return ir.Constant(I64, value)


def _product(b: ir.IRBuilder, value: Value, multiplier: int) -> tuple[Value, Value]:
    """The lower and the upper 64 bits."""
    wide = b.mul(b.zext(value, I128), ir.Constant(I128, multiplier))
    return b.trunc(wide, I64), b.trunc(b.lshr(wide, ir.Constant(I128, 64)), I64)
