from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tripower.backends.picolm.native.kernels.quantise import BLOCK, STEPS, build_quantise
from tripower.backends.picolm.native.target import Target, host_target

Rows = NDArray[np.float32]


def outputs(rows: int, columns: int) -> list[NDArray[Any]]:
    return [
        np.zeros((rows, columns), np.int16),
        np.zeros((rows, columns // 32), np.float32),
        np.zeros((rows, columns // 16), np.int32),
        np.zeros((rows, columns // 16), np.float32),
        np.zeros((rows, columns), np.float32),
    ]


def expected(x: Rows) -> list[NDArray[Any]]:
    """The written formula, in numpy's float32."""
    blocks = x.reshape(len(x), -1, BLOCK)
    amax = np.abs(blocks).max(axis=2, keepdims=True)
    usable = np.isfinite(amax) & (amax >= np.float32(2.0**-100))
    largest = np.where(usable, amax, np.float32(1))
    scale = np.where(usable, largest / np.float32(STEPS), np.where(np.isfinite(amax), np.float32(0), np.float32(np.nan)))
    q = np.rint(np.where(usable, blocks, 0) * (np.float32(STEPS) / largest)).astype(np.int16)
    sums = q.reshape(len(x), -1, 16).sum(axis=2, dtype=np.int32)
    totals = np.repeat(scale[..., 0], 2, axis=1) * sums.astype(np.float32)
    return [q.reshape(x.shape), scale[..., 0].astype(np.float32), sums, totals.astype(np.float32), x]


def quantised(build_kernel: Any, target: Target, x: Rows) -> list[NDArray[Any]]:
    found = outputs(*x.shape)
    build_kernel(build_quantise, target)([x, x.shape[1], x.shape[1], *found], range(len(x)))
    return found


def rows_of_all_kinds() -> Rows:
    random = np.random.default_rng(7)
    x = random.standard_normal((9, 96)).astype(np.float32)
    x[1] *= np.float32(1e30)
    x[2] *= np.float32(1e-28)
    x[3] *= np.float32(1e-37)  # below what counts
    x[4] = 0
    x[5, :32] = np.arange(32) - 16
    x[6, 40] = 3.0e38
    x[7, ::3] = -0.0
    x[8, 64:] = np.float32(2.0**-100)
    return x


def test_rows_are_quantised_as_written_down_at_every_width(build_kernel: Any, target: Target) -> None:
    x = rows_of_all_kinds()
    for found, wanted in zip(quantised(build_kernel, target, x), expected(x), strict=True):
        np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))


def test_an_error_is_at_most_half_a_step(build_kernel: Any) -> None:
    x = rows_of_all_kinds()
    q, scale, *_ = quantised(build_kernel, host_target(), x)
    error = np.abs(q.astype(np.float64) * np.repeat(scale, BLOCK, axis=1).astype(np.float64) - x)
    assert (error <= np.maximum(np.repeat(scale, BLOCK, axis=1) * 0.501, 2.0**-100)).all()


def test_halves_go_to_the_even_integer(build_kernel: Any, target: Target) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = [STEPS, 0.5, 1.5, -2.5, -0.5, 32766.5]  # the factor is exactly one
    q, *_ = quantised(build_kernel, target, x)
    assert q[0, :6].tolist() == [32767, 0, 2, -2, 0, 32766]


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 13, 31])
def test_what_is_not_finite_spoils_its_block_only(build_kernel: Any, target: Target, bad: float, where: int) -> None:
    x = np.random.default_rng(3).standard_normal((1, 64)).astype(np.float32)
    clean = quantised(build_kernel, target, x)
    x[0, 32 + where] = bad
    q, scale, sums, totals, floats = quantised(build_kernel, target, x)
    assert np.isnan(scale[0, 1]) and np.isnan(totals[0, 2:]).all()
    assert not q[0, 32:].any() and not sums[0, 2:].any()
    np.testing.assert_array_equal(q[0, :32], clean[0][0, :32])
    np.testing.assert_array_equal(totals[0, :2], clean[3][0, :2])
    np.testing.assert_array_equal(floats, x)


def test_floats_alone_may_have_any_length_and_a_stride(build_kernel: Any, target: Target) -> None:
    wide = np.random.default_rng(5).standard_normal((3, 80)).astype(np.float32)
    found = np.full((3, 45), 9, np.float32)
    build_kernel(build_quantise, target)([wide, 80, 45, None, None, None, None, found], [2, 0])
    np.testing.assert_array_equal(found[[0, 2]], wide[[0, 2], :45])
    assert (found[1] == 9).all()
