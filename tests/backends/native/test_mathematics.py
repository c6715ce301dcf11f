from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numpy.typing import NDArray

from tripower.backends.picolm.native.compile import compile_module
from tripower.backends.picolm.native.emit import F32, F64, PTR, Function, i64
from tripower.backends.picolm.native.kernels import mathematics
from tripower.backends.picolm.native.target import Target, host_target, narrower_targets

Floats = NDArray[Any]
COUNT = 4_096


@functools.cache
def _compiled(name: str, double: bool, target: Target, lanes: int) -> Callable[..., Any]:
    kind = F64 if double else F32

    def build(module: ir.Module) -> None:
        function = Function(module, "apply", [PTR, PTR])
        with function.loop(i64(0), i64(COUNT), lanes) as index:
            value = function.load_vector(function.args[0], index, kind, lanes)
            function.store_vector(getattr(mathematics, name)(function, value), function.args[1], index)
        function.done()

    return compile_module(build, target).function("apply", None, ctypes.c_void_p, ctypes.c_void_p)


def apply(name: str, x: Floats, target: Target | None = None, lanes: int | None = None) -> Floats:
    target = target or host_target()
    padded = np.resize(x, -(-len(x) // COUNT) * COUNT)
    out = np.zeros_like(padded)
    double = x.dtype == np.float64
    function = _compiled(name, double, target, lanes or target.lanes // (2 if double else 1))
    for start in range(0, len(padded), COUNT):
        function(padded[start:].ctypes.data, out[start:].ctypes.data)
    return out[: len(x)]


def exact_gelu(x: NDArray[np.float64]) -> Floats:
    found: Floats = x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return found


def spread(low: float, high: float, kind: type[np.floating[Any]]) -> Floats:
    """Even steps, and small magnitudes of both signs where the range has them."""
    small = np.geomspace(1e-30, 1, 4_096)
    points = np.concatenate((np.linspace(low, high, 40_000), small, -small))
    return points[(points >= low) & (points <= high)].astype(kind)


FUNCTIONS: list[tuple[str, type[np.floating[Any]], float, float]] = [
    ("exp", np.float32, -100, 100),
    ("exp", np.float64, -750, 750),
    ("tanh", np.float32, -12, 12),
    ("silu", np.float32, -100, 100),
    ("gelu", np.float32, -12, 12),
]


@pytest.mark.parametrize(("name", "kind", "low", "high"), FUNCTIONS)
def test_all_widths_and_a_scalar_give_the_same_bits(name: str, kind: type[np.floating[Any]], low: float, high: float) -> None:
    x = np.concatenate((spread(low, high, kind), np.array([np.inf, -np.inf, 0.0, -0.0], kind)))[-2 * COUNT :]
    found = [apply(name, x, target).tobytes() for target in narrower_targets()]
    found.append(apply(name, x, lanes=1).tobytes())
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("name", "exact", "low", "high", "units"),
    [
        ("exp", np.exp, -86.9, 87.9, 1),
        ("tanh", np.tanh, -12, 12, 2),
        ("silu", lambda x: x / (1 + np.exp(-x)), -86, 100, 3),
    ],
)
def test_float32_is_within_the_stated_units_in_the_last_place(
    name: str, exact: Callable[[Floats], Floats], low: float, high: float, units: int
) -> None:
    x = spread(low, high, np.float32)
    wanted = exact(x.astype(np.float64))
    unit = np.spacing(np.maximum(np.abs(wanted), 2.0**-125).astype(np.float32))
    assert (np.abs(apply(name, x) - wanted) / unit).max() < units


def test_gelu_is_within_its_stated_error() -> None:
    x = spread(-12, 12, np.float32)
    assert (np.abs(apply("gelu", x) - exact_gelu(x.astype(np.float64))) <= 2.0**-22 * np.abs(x)).all()


def test_float64_exp_is_within_a_unit_in_the_last_place() -> None:
    random = np.random.default_rng(1)
    x = np.concatenate((random.uniform(-708, 709, 2_000), random.uniform(-1, 1, 2_000), random.uniform(-30, 0, 2_000)))
    wanted = np.exp(x.astype(np.longdouble))  # more bits than float64 wherever this engine runs fast
    assert (np.abs(apply("exp", x) - wanted) / np.spacing(wanted.astype(np.float64))).max() < 1


@pytest.mark.parametrize(("name", "kind", "low", "high"), FUNCTIONS)
def test_what_grows_never_falls_by_more_than_rounding(name: str, kind: type[np.floating[Any]], low: float, high: float) -> None:
    if name in ("silu", "gelu"):  # these fall below zero
        low = 0.0
    x = np.linspace(low, high, 50_000).astype(kind)
    y = apply(name, x)
    y = y[np.isfinite(y)]
    assert (y[1:] >= y[:-1] - 2 * np.spacing(np.abs(y[:-1]))).all()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("exp", [(np.inf, np.inf), (-np.inf, 0.0), (89.0, np.inf), (-88.0, 0.0), (0.0, 1.0)]),
        ("tanh", [(np.inf, 1.0), (-np.inf, -1.0), (40.0, 1.0), (0.0, 0.0)]),
        ("silu", [(np.inf, np.inf), (-200.0, 0.0), (0.0, 0.0)]),
        ("gelu", [(np.inf, np.inf), (-200.0, 0.0), (0.0, 0.0)]),
    ],
)
def test_ends_of_the_range(name: str, values: list[tuple[float, float]]) -> None:
    x = np.array([value for value, _ in values], np.float32)
    np.testing.assert_array_equal(apply(name, x), np.array([value for _, value in values], np.float32))


@pytest.mark.parametrize(("name", "kind"), sorted({(name, kind.__name__) for name, kind, *_ in FUNCTIONS}))
@pytest.mark.parametrize("payload", [1, 0x123, 1 << 22, (1 << 22) + 77, (1 << 23) - 1])
@pytest.mark.parametrize("sign", [0, 1])
def test_nan_passes_whatever_its_payload(name: str, kind: str, payload: int, sign: int) -> None:
    x: Floats = np.array([sign << 31 | 0xFF << 23 | payload], np.uint32).view(np.float32)
    if kind == "float64":
        x = np.array([sign << 63 | 0x7FF << 52 | payload << 29 | payload], np.uint64).view(np.float64)
    assert np.isnan(apply(name, x)).all()
