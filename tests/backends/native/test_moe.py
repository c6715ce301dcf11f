from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tripower.backends.picolm.native.kernels.moe import build_combine, build_route, route_scratch_bytes
from tripower.backends.picolm.native.target import Target, narrower_targets

SUM_MIN = 2.0**-14


def routed(
    build_kernel: Any, target: Target, scores: NDArray[np.float32], used: int, *, normalised: bool
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    rows, experts = scores.shape
    ids, weights = np.full((rows, used), -1, np.int32), np.zeros((rows, used), np.float32)
    run = build_kernel(build_route, target, route_scratch_bytes(experts))
    run([scores, experts, used, ids, weights, int(normalised), SUM_MIN], range(rows))
    return ids, weights


@pytest.mark.parametrize(("experts", "used"), [(8, 2), (128, 8), (5, 5), (60, 4), (1, 1)])
@pytest.mark.parametrize("normalised", [False, True])
def test_experts_are_those_of_a_softmax(build_kernel: Any, target: Target, experts: int, used: int, normalised: bool) -> None:
    scores = (np.random.default_rng(experts).standard_normal((20, experts)) * 3).astype(np.float32)
    ids, weights = routed(build_kernel, target, scores, used, normalised=normalised)
    wide = np.exp(scores - scores.max(axis=1, keepdims=True).astype(np.float64))
    shares = wide / wide.sum(axis=1, keepdims=True)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :used]
    wanted = np.take_along_axis(shares, order, axis=1)
    if normalised:
        wanted /= wanted.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_allclose(weights, wanted, rtol=1e-7)


def test_the_lower_expert_wins_a_tie(build_kernel: Any, target: Target) -> None:
    scores = np.array([[1, 3, 2, 3, 2, 2, 3, 0]], np.float32)
    ids, _ = routed(build_kernel, target, scores, 5, normalised=True)
    assert ids[0].tolist() == [1, 3, 6, 2, 4]


def test_a_sum_too_small_to_divide_by_is_raised(build_kernel: Any, target: Target) -> None:
    scores = np.zeros((1, 40_000), np.float32)
    _, weights = routed(build_kernel, target, scores, 2, normalised=True)
    np.testing.assert_allclose(weights, 1 / 40_000 / SUM_MIN, rtol=1e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_spoiled_row_names_distinct_experts_with_nan_as_weights(build_kernel: Any, target: Target, bad: float) -> None:
    scores = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    scores[1, 0] = bad
    scores[2] = np.nan
    ids, weights = routed(build_kernel, target, scores, 8, normalised=True)
    assert all(sorted(row) == list(range(8)) for row in ids.tolist())
    assert np.isfinite(weights[0]).all() and np.isnan(weights[1:]).all()


def combined(build_kernel: Any, target: Target, inputs: Any, weights: Any, before: Any, chunk: int, adds: bool) -> Any:
    out = before.copy()
    rows, size = out.shape
    used = weights.shape[1]
    words = [inputs, weights, used, size, chunk, out, int(adds)]
    build_kernel(build_combine, target)(words, range(rows * -(-size // chunk)))
    return out


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("size", "used"), [(64, 2), (77, 8), (31, 1), (640, 4)])
def test_outputs_are_added_in_order_of_choice(build_kernel: Any, size: int, used: int, adds: bool) -> None:
    random = np.random.default_rng(size)
    inputs = random.standard_normal((3 * used, size)).astype(np.float32)
    weights = random.random((3, used)).astype(np.float32)
    before = random.standard_normal((3, size)).astype(np.float32)
    wanted = np.zeros_like(before)
    for place in range(used):
        wanted += weights[:, place : place + 1] * inputs[place::used]
    wanted = before + wanted if adds else wanted
    for target in narrower_targets():
        for chunk in (32, 96, 640):
            found = combined(build_kernel, target, inputs, weights, before, chunk, adds)
            np.testing.assert_array_equal(found, wanted)
