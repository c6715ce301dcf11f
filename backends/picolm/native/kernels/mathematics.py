"""Elementary functions on scalars and vectors, emitted in line: the same bits at every width, and on every machine that rounds as
IEEE 754 says.

Each is reduced to a short interval, where a polynomial stands for the rest of the Taylor series; coefficients were fitted at
Chebyshev nodes in 60 digits. Results are as many units in the last place from the exact ones as the docstrings say. NaN gives NaN.
Where the exact result is below the smallest normal number it may be zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, I32, I64, Function, Value, constant, vector

LOG2_E = 1.4426950408889634
LN2_F32 = (0.693147182464599609375, -1.904654323148236e-09)
"""The float32 nearest to ln 2 and what it lacks."""
LN2_F64 = (0.6931471805599453, 2.3190468138462996e-17)
EXP_F32 = (0.5, 0.16666576266288757, 0.041666556149721146, 0.008363178931176662, 0.0013926184037700295)
"""(exp(r) - 1 - r) / r**2 for |r| <= ln 2 / 2, within 7e-8."""
EXP_F64 = (
    0.5000000000000001,
    0.16666666666666669,
    0.04166666666662413,
    0.008333333333330062,
    0.0013888888917213717,
    0.00019841269863053618,
    2.4801521295954376e-05,
    2.7557268459997064e-06,
    2.7620088445409746e-07,
    2.510038549551032e-08,
)
"""The same within 1.1e-16."""
TANH_F32 = (-0.333333283662796, 0.1333271861076355, -0.053843263536691666, 0.020961329340934753, -0.006045165006071329)
"""(tanh(x) / x - 1) / x**2 as a polynomial of x**2 up to 0.4, within 5e-8."""
TANH_SMALL = 0.625
EXP_RANGE_F32 = (-87.0, 88.0)
EXP_RANGE_F64 = (-708.0, 709.0)
GELU_INNER = 2 * math.sqrt(2 / math.pi)
GELU_CUBIC = GELU_INNER * 0.044715


def exp(function: Function, x: Value) -> Value:
    """`e ** x` of float32 or float64, scalar or vector, within one unit: 0 below -87 or -708, infinity above 88 or 709.

    `x = n ln 2 + r`; the power of two is made of the bits that rounding to `n` leaves behind.
    """
    b = function.b
    single = _element(x) == F32
    bits, mantissa, bias = (I32, 23, 127) if single else (I64, 52, 1023)
    low, high = EXP_RANGE_F32 if single else EXP_RANGE_F64
    ln2, lost = LN2_F32 if single else LN2_F64
    rounding = constant(x.type, 1.5 * 2**mantissa + bias)
    shifted = function.fma(x, constant(x.type, LOG2_E), rounding)
    count = b.fsub(shifted, rounding)
    r = function.fma(count, constant(x.type, -ln2), x)
    r = function.fma(count, constant(x.type, -lost), r)
    rest = function.fma(polynomial(function, r, EXP_F32 if single else EXP_F64), b.fmul(r, r), r)
    kind = vector(bits, _lanes(x))
    power = b.bitcast(b.shl(b.bitcast(shifted, kind), constant(kind, mantissa)), x.type)
    result = b.fmul(b.fadd(rest, constant(x.type, 1.0)), power)
    result = b.select(b.fcmp_ordered("<", x, constant(x.type, low)), constant(x.type, 0.0), result)
    return b.select(b.fcmp_ordered(">", x, constant(x.type, high)), constant(x.type, math.inf), result)


def polynomial(function: Function, x: Value, coefficients: Sequence[float]) -> Value:
    """`c0 + c1 x + c2 x**2 + …` by Horner's rule."""
    result = constant(x.type, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = function.fma(result, x, constant(x.type, coefficient))
    return result


def tanh(function: Function, x: Value) -> Value:
    """Hyperbolic tangent of float32 within two units: a polynomial near zero, `1 - 2 / (exp(2 |x|) + 1)` elsewhere."""
    b = function.b
    size = magnitude(function, x)
    square = b.fmul(size, size)
    small = function.fma(b.fmul(size, square), polynomial(function, square, TANH_F32), size)
    one, two = constant(x.type, 1.0), constant(x.type, 2.0)
    grown = exp(function, b.fadd(size, size))
    large = b.fsub(one, b.fdiv(two, b.fadd(grown, one)))
    result = b.select(b.fcmp_ordered("<", size, constant(x.type, TANH_SMALL)), small, large)
    return function.intrinsic("copysign", [x.type], [result, x])


def silu(function: Function, x: Value) -> Value:
    """`x / (1 + exp(-x))` of float32 within three units."""
    return _times_sigmoid(function, x, x)


def gelu(function: Function, x: Value) -> Value:
    """`x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2` of float32, as `x` times a sigmoid.

    Within `2**-22 |x|`: far below zero, where the result is tiny, its relative error is larger.
    """
    b = function.b
    inner = function.fma(b.fmul(x, x), constant(x.type, GELU_CUBIC), constant(x.type, GELU_INNER))
    return _times_sigmoid(function, x, b.fmul(x, inner))


def magnitude(function: Function, x: Value) -> Value:
    """`|x|`."""
    return function.intrinsic("fabs", [x.type], [x])


def _times_sigmoid(function: Function, x: Value, inner: Value) -> Value:
    """`x / (1 + exp(-inner))` where both have one sign. The exponential is at most 1, so that nothing overflows."""
    b = function.b
    shrunk = exp(function, b.fneg(magnitude(function, inner)))
    above = b.select(b.fcmp_ordered("<", inner, constant(x.type, 0.0)), b.fmul(x, shrunk), x)
    return b.fdiv(above, b.fadd(shrunk, constant(x.type, 1.0)))


def _element(value: Value) -> ir.Type:
    return value.type.element if isinstance(value.type, ir.VectorType) else value.type


def _lanes(value: Value) -> int:
    return int(value.type.count) if isinstance(value.type, ir.VectorType) else 1
