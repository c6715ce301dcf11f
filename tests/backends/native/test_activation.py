from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from llvmlite import ir
from numpy.typing import NDArray

from tripower.backends.picolm.native.kernels.activation import build_activation
from tripower.backends.picolm.native.kernels.softcap import build_softcap
from tripower.backends.picolm.native.target import Target, narrower_targets

Floats = NDArray[np.float32]


def silu(module: ir.Module, target: Target, name: str) -> None:
    build_activation(module, target, name, "silu")


def gelu(module: ir.Module, target: Target, name: str) -> None:
    build_activation(module, target, name, "gelu")


BUILDERS: dict[Literal["silu", "gelu"], Callable[[ir.Module, Target, str], None]] = {"silu": silu, "gelu": gelu}
EXACT: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}
kinds = pytest.mark.parametrize("kind", list(BUILDERS))


def gate_and_up(size: int) -> Floats:
    """One array for both, as a fused projection gives it: [rows, 2 size]."""
    random = np.random.default_rng(size)
    return (random.standard_normal((3, 2 * size)) * 4).astype(np.float32)


def activated(build_kernel: Any, target: Target, kind: Any, both: Floats, chunk: int) -> Floats:
    size = both.shape[1] // 2
    out = np.zeros((len(both), size), np.float32)
    words = [both, both[:, size:], 2 * size, size, chunk, None, None, None, None, out]
    build_kernel(BUILDERS[kind], target)(words, reversed(range(len(both) * -(-size // chunk))))
    return out


@kinds
@pytest.mark.parametrize(("size", "chunk"), [(64, 32), (96, 64), (1536, 256), (77, 32), (31, 32)])
def test_a_gated_row_is_that_of_float64_within_rounding(
    build_kernel: Any, target: Target, kind: Literal["silu", "gelu"], size: int, chunk: int
) -> None:
    both = gate_and_up(size)
    wide = both.astype(np.float64)
    wanted = EXACT[kind](wide[:, :size]) * wide[:, size:]
    found = activated(build_kernel, target, kind, both, chunk)
    assert (np.abs(found - wanted) <= 2.0**-21 * np.abs(wide[:, :size] * wide[:, size:])).all()


@kinds
def test_all_widths_and_chunks_give_the_same_bits(build_kernel: Any, kind: Literal["silu", "gelu"]) -> None:
    both = gate_and_up(333)
    found = {
        activated(build_kernel, target, kind, both, chunk).tobytes() for target in narrower_targets() for chunk in (32, 96, 352)
    }
    assert len(found) == 1


@kinds
def test_chunks_fill_one_quantised_row(build_kernel: Any, target: Target, kind: Literal["silu", "gelu"]) -> None:
    both = gate_and_up(160)
    q, scale = np.zeros((3, 160), np.int16), np.zeros((3, 5), np.float32)
    sums, totals = np.zeros((3, 10), np.int32), np.zeros((3, 10), np.float32)
    words = [both, both[:, 160:], 320, 160, 64, q, scale, sums, totals, None]
    build_kernel(BUILDERS[kind], target)(words, range(9))
    wanted = activated(build_kernel, target, kind, both, 64)
    assert (np.abs(q * np.repeat(scale, 32, axis=1) - wanted) <= 0.51 * np.repeat(scale, 32, axis=1)).all()
    np.testing.assert_array_equal(sums, q.reshape(3, 10, 16).sum(axis=2))
    np.testing.assert_array_equal(totals, np.repeat(scale, 2, axis=1) * sums.astype(np.float32))


@kinds
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_passed_on(build_kernel: Any, target: Target, kind: Literal["silu", "gelu"], bad: float) -> None:
    both = gate_and_up(64)
    both[1, 5] = bad
    both[2, 64 + 5] = bad
    found = activated(build_kernel, target, kind, both, 64)
    assert np.isfinite(found[0]).all() and not np.isfinite(found[[1, 2], 5]).any()
    assert np.isfinite(np.delete(found, 5, axis=1)).all()


def capped(build_kernel: Any, target: Target, x: Floats, cap: float, chunk: int) -> Floats:
    found = x.copy()
    size = x.shape[1]
    build_kernel(build_softcap, target)([found, size, size, chunk, cap], range(len(x) * -(-size // chunk)))
    return found


@pytest.mark.parametrize("cap", [30.0, 50.0, 0.5])
@pytest.mark.parametrize(("size", "chunk"), [(64, 64), (100, 32), (1000, 256)])
def test_soft_capped_logits_are_those_of_float64_within_rounding(
    build_kernel: Any, target: Target, cap: float, size: int, chunk: int
) -> None:
    x = (np.random.default_rng(2).standard_normal((3, size)) * 20).astype(np.float32)
    found = capped(build_kernel, target, x, cap, chunk)
    np.testing.assert_allclose(found, cap * np.tanh(x.astype(np.float64) / cap), rtol=4e-7, atol=0)
    wide = capped(build_kernel, narrower_targets()[0], x, cap, 512)
    np.testing.assert_array_equal(found.view(np.uint32), wide.view(np.uint32))


def test_a_soft_cap_keeps_nan_and_bounds_infinity(build_kernel: Any, target: Target) -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 1e30] + [0.0] * 30], np.float32)
    found = capped(build_kernel, target, x, 30.0, 32)
    assert np.isnan(found[0, 0])
    assert found[0, 1:].tolist() == [30.0, -30.0, 30.0] + [0.0] * 30
