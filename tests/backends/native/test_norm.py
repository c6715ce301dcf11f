from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tripower.backends.picolm.native.kernels.norm import build_norm_add, build_norm_quantise
from tripower.backends.picolm.native.target import Target, host_target, narrower_targets

EPSILON = 1e-5
SIZES = [16, 31, 32, 33, 96, 576, 1000]


def reference(x: NDArray[Any], weight: NDArray[Any]) -> NDArray[np.float64]:
    wide = x.astype(np.float64)
    found: NDArray[np.float64] = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + EPSILON) * weight
    return found


def rows(size: int, seed: int = 1) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    x = random.standard_normal((5, size)) * np.array([[1], [1e-3], [1e15], [30], [0]])
    return x.astype(np.float32), random.standard_normal(size).astype(np.float32)


def normed(
    build_kernel: Any,
    target: Target,
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    drawn: NDArray[np.int32] | None = None,
) -> NDArray[np.float32]:
    out = np.zeros((len(x) if drawn is None else len(drawn), x.shape[1]), np.float32)
    words = [x, x.shape[1], x.shape[1], weight, EPSILON, drawn, None, None, None, None, out]
    build_kernel(build_norm_quantise, target)(words, range(len(out)))
    return out


@pytest.mark.parametrize("size", SIZES)
def test_a_norm_is_that_of_float64_within_rounding(build_kernel: Any, target: Target, size: int) -> None:
    x, weight = rows(size)
    wanted = reference(x, weight)
    np.testing.assert_allclose(normed(build_kernel, target, x, weight), wanted, rtol=3e-7, atol=0)


@pytest.mark.parametrize("size", SIZES)
def test_all_widths_give_the_same_bits(build_kernel: Any, size: int) -> None:
    x, weight = rows(size)
    found = [normed(build_kernel, target, x, weight).tobytes() for target in narrower_targets()]
    assert len(set(found)) == 1


def test_a_row_has_the_same_bits_alone(build_kernel: Any) -> None:
    x, weight = rows(576)
    together = normed(build_kernel, host_target(), x, weight)
    for index in range(len(x)):
        alone = normed(build_kernel, host_target(), x[index : index + 1].copy(), weight)
        np.testing.assert_array_equal(alone[0], together[index])


def test_drawn_rows_are_gathered(build_kernel: Any, target: Target) -> None:
    x, weight = rows(64)
    found = normed(build_kernel, target, x, weight, np.array([3, 0, 3], np.int32))
    np.testing.assert_array_equal(found, normed(build_kernel, target, x, weight)[[3, 0, 3]])


def test_the_quantised_norm_is_the_float_norm_quantised(build_kernel: Any, target: Target) -> None:
    x, weight = rows(96)
    q, scale = np.zeros((5, 96), np.int16), np.zeros((5, 3), np.float32)
    sums, totals = np.zeros((5, 6), np.int32), np.zeros((5, 6), np.float32)
    words = [x, 96, 96, weight, EPSILON, None, q, scale, sums, totals, None]
    build_kernel(build_norm_quantise, target)(words, range(5))
    back = q * np.repeat(scale, 32, axis=1)
    wanted = normed(build_kernel, target, x, weight)
    assert (np.abs(back - wanted) <= 0.51 * np.repeat(scale, 32, axis=1)).all()
    np.testing.assert_array_equal(sums, q.reshape(5, 6, 16).sum(axis=2))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_spoils_its_own_row_only(build_kernel: Any, target: Target, bad: float) -> None:
    x, weight = rows(64)
    clean = normed(build_kernel, target, x, weight)
    x[1, 7] = bad
    found = normed(build_kernel, target, x, weight)
    assert np.isnan(found[1, 7])
    np.testing.assert_array_equal(np.delete(found, 1, axis=0), np.delete(clean, 1, axis=0))


@pytest.mark.parametrize("size", [32, 45, 640])
@pytest.mark.parametrize("with_next", [False, True])
def test_a_post_norm_is_added_and_the_next_norm_follows(build_kernel: Any, target: Target, size: int, with_next: bool) -> None:
    x, weight = rows(size)
    state, weight_after = rows(size, seed=2)
    before = state.copy()
    out = np.zeros_like(x)
    words = [x, size, size, weight, EPSILON, state, weight_after if with_next else None, None, None, None, None, out]
    build_kernel(build_norm_add, target)(words, range(5))
    np.testing.assert_array_equal(state, before + normed(build_kernel, target, x, weight))
    wanted = normed(build_kernel, target, state, weight_after) if with_next else np.zeros_like(x)
    np.testing.assert_array_equal(out, wanted)
