"""Norm, rotation and storing of heads against float64, and the tables of cosines and sines."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from llvmlite import ir
from numpy.typing import NDArray

from tripower.backends.picolm.native.kernels.attention.rope import RopeStoreShape, build_rope_store, make_turns
from tripower.backends.picolm.native.kv_pool import KvPool, KvPoolShape
from tripower.backends.picolm.native.target import Target, host_target, narrower_targets

PLAIN = RopeStoreShape(heads=4, kv_heads=2, head_size=64, dimensions=64, pairs="adjacent", attention_scale=0.125)
SHAPES = [
    PLAIN,
    msgspec.structs.replace(PLAIN, pairs="halves", element="f16"),
    msgspec.structs.replace(PLAIN, head_size=80, dimensions=22, pairs="halves", normalise=True, epsilon=1e-5),
    msgspec.structs.replace(PLAIN, head_size=24, dimensions=18, normalise=True, epsilon=1e-6, element="f16"),
    RopeStoreShape(
        heads=3, kv_heads=1, head_size=8, dimensions=2, pairs="halves", attention_scale=1.0, normalise=True, epsilon=1e-6
    ),
]
POSITIONS = [0, 63, 64, 130, 5, 191]
SLOTS = [0, 1, 1, 0, 2, 2]
PAGES = np.array([[4, 1, 7], [0, 3, 5], [2, 8, 6]], np.int32)
LENGTH = 192
UNTOUCHED = 9.0
"""What elements hold that no kernel may write."""


def name_of(shape: RopeStoreShape) -> str:
    return f"{shape.head_size}-{shape.dimensions}-{shape.pairs}-{shape.element}{'-norm' * shape.normalise}"


@functools.cache
def builder(shape: RopeStoreShape) -> Callable[[ir.Module, Target, str], None]:
    return lambda module, target, name: build_rope_store(module, target, shape, name)


class Rows:
    """Random queries, keys and values, with margins, and where they go."""

    def __init__(self, shape: RopeStoreShape) -> None:
        random = np.random.default_rng(7)
        self.shape, count = shape, len(POSITIONS)
        sizes = [heads * shape.head_size for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
        self.q, self.k, self.v = (random.standard_normal((count, size + 5)).astype(np.float32) for size in sizes)
        self.weights = [random.standard_normal(shape.head_size).astype(np.float32) for _ in range(2)]
        self.frequencies = 100.0 ** -(np.arange(0, shape.dimensions, 2) / shape.dimensions)
        pool_shape = KvPoolShape(layers=2, kv_heads=shape.kv_heads, head_size=shape.head_size, element=shape.element)
        self.pool = KvPool(pool_shape, pages_max=9)
        self.pool.keys[:] = self.pool.values[:] = UNTOUCHED

    def run(self, build_kernel: Any, target: Target, rows_per_tile: int = 1) -> NDArray[np.float32]:
        """The queries turned; keys and values are in the pool."""
        q, pool, count = self.q.copy(), self.pool, len(POSITIONS)
        cosines, sines = make_turns(self.frequencies, 1.25, 0, LENGTH)
        words = [
            np.array([count]), rows_per_tile, q, q.shape[1], self.k, self.k.shape[1], self.v, self.v.shape[1], cosines, sines,
            np.array(POSITIONS, np.int32), np.array(SLOTS, np.int32), PAGES, PAGES.shape[1],
            pool.address, pool.shape.page_bytes, pool.shape.layer_bytes, pool.shape.block_bytes, *self.weights,
        ]  # fmt: skip
        run = build_kernel(builder(self.shape), target, self.shape.scratch_bytes())
        run(words, range(-(-count // rows_per_tile)))
        return q

    def turned(self, rows: NDArray[np.float32], weight: NDArray[np.float32], scale: float) -> NDArray[np.float64]:
        """[rows, heads, head_size] in float64."""
        shape = self.shape
        x = rows[:, :-5].astype(np.float64).reshape(len(rows), -1, shape.head_size)
        if shape.normalise:
            x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + shape.epsilon) * weight
        half = shape.dimensions // 2
        first, second = (
            (slice(0, half), slice(half, 2 * half))
            if shape.pairs == "halves"
            else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        )
        turns = 1.25 * np.exp(1j * np.array(POSITIONS)[:, None, None] * self.frequencies)
        pairs = (x[..., first] + 1j * x[..., second]) * turns
        out = x.copy()
        out[..., first], out[..., second] = pairs.real, pairs.imag
        return out * scale


@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
def test_heads_are_normed_turned_scaled_and_stored(build_kernel: Any, target: Target, shape: RopeStoreShape) -> None:
    rows = Rows(shape)
    q = rows.run(build_kernel, target)
    wanted = rows.turned(rows.q, rows.weights[0], shape.attention_scale)
    np.testing.assert_allclose(q[:, :-5].reshape(wanted.shape), wanted, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(q[:, -5:], rows.q[:, -5:])
    keys = rows.turned(rows.k, rows.weights[1], 1.0)
    values = rows.v[:, :-5].reshape(len(q), -1, shape.head_size)
    tolerance = 1e-6 if shape.element == "f32" else 4e-3
    written = np.zeros((9, 64), np.bool_)
    for row, (position, slot) in enumerate(zip(POSITIONS, SLOTS, strict=True)):
        page, column = PAGES[slot, position // 64], position % 64
        written[page, column] = True
        np.testing.assert_allclose(rows.pool.keys[page, 1, :, :, column], keys[row], rtol=0, atol=tolerance)
        np.testing.assert_array_equal(rows.pool.values[page, 1, :, column], values[row].astype(rows.pool.values.dtype))
    assert (rows.pool.keys[:, 0] == UNTOUCHED).all() and (rows.pool.values[:, 0] == UNTOUCHED).all()
    assert (rows.pool.keys[:, 1].transpose(0, 3, 1, 2)[~written] == UNTOUCHED).all()
    assert (rows.pool.values[:, 1].transpose(0, 2, 1, 3)[~written] == UNTOUCHED).all()


@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
def test_all_widths_and_tiles_give_the_same_bits(build_kernel: Any, shape: RopeStoreShape) -> None:
    found = set()
    for target in narrower_targets():
        for rows_per_tile in (1, 4, 100):
            rows = Rows(shape)
            q = rows.run(build_kernel, target, rows_per_tile)
            found.add((q.tobytes(), rows.pool.keys.tobytes(), rows.pool.values.tobytes()))
    assert len(found) == 1


def test_a_head_that_is_not_finite_spoils_no_other(build_kernel: Any) -> None:
    shape = SHAPES[2]
    rows = Rows(shape)
    wanted = rows.run(build_kernel, host_target())
    rows.q[1, 80 + 3] = np.nan
    found = rows.run(build_kernel, host_target())
    assert np.isnan(found[1, 80:160]).all()
    found[1, 80:160] = wanted[1, 80:160]
    np.testing.assert_array_equal(found, wanted)


def test_turns_are_those_of_float64_at_far_positions_and_in_any_range() -> None:
    frequencies = 10_000.0 ** -(np.arange(0, 64, 2) / 64)
    cosines, sines = make_turns(frequencies, 1.0, 0, 40)
    np.testing.assert_array_equal(make_turns(frequencies, 1.0, 30, 40)[0], cosines[30:])
    np.testing.assert_array_equal(make_turns(frequencies, 1.0, 30, 40)[1], sines[30:])
    far_cosines, far_sines = make_turns(frequencies, 2.0, 131_071, 131_072)
    assert far_cosines.dtype == far_sines.dtype == np.float32
    np.testing.assert_allclose(far_cosines[0], 2 * np.cos(131_071 * frequencies), rtol=0, atol=1.2e-7)
    np.testing.assert_allclose(far_cosines**2 + far_sines**2, 4.0, rtol=1e-6)
