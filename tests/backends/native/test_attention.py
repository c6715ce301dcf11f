"""Attention kernels against float64, and against themselves: the bits of a row are its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llvmlite import ir
from numpy.typing import NDArray

from tripower.backends.picolm.native.kernels.attention.kernel import AttentionShape, build_attention, supports
from tripower.backends.picolm.native.kernels.quantise import build_quantise
from tripower.backends.picolm.native.kv_pool import KvPool, KvPoolShape
from tripower.backends.picolm.native.target import Target, host_target, narrower_targets

Item = tuple[int, int, int]
"""Slot, first position, rows."""
ITEM_ROWS_MAX = 16
SMALL = AttentionShape(heads=6, kv_heads=2, head_size=32)

SHAPES = [
    AttentionShape(heads=9, kv_heads=3, head_size=64),
    AttentionShape(heads=4, kv_heads=1, head_size=256, element="f16"),
    AttentionShape(heads=2, kv_heads=2, head_size=16),
    AttentionShape(heads=4, kv_heads=2, head_size=24, softcap=5.0),
    AttentionShape(heads=8, kv_heads=1, head_size=80, element="f16", softcap=50.0),
    AttentionShape(heads=3, kv_heads=3, head_size=128, element="f16"),
    AttentionShape(heads=2, kv_heads=1, head_size=8),
    AttentionShape(heads=4, kv_heads=2, head_size=200),
]
NARROW_SHAPES = [
    AttentionShape(heads=3, kv_heads=1, head_size=64),
    AttentionShape(heads=2, kv_heads=1, head_size=40, element="f16", softcap=4.0),
]


def name_of(shape: AttentionShape) -> str:
    cap = f"-cap{shape.softcap:g}" * bool(shape.softcap)
    return f"{shape.heads}/{shape.kv_heads}x{shape.head_size}-{shape.element}{cap}"


@functools.cache
def builder(shape: AttentionShape) -> Callable[[ir.Module, Target, str], None]:
    return lambda module, target, name: build_attention(module, target, shape, name)


class Held:
    """Sequences with random keys and values in a pool whose other elements are all `rubbish`; pages are in no order."""

    def __init__(self, shape: AttentionShape, lengths: Sequence[int], *, rubbish: float = np.nan, seed: int = 0) -> None:
        self.shape = shape
        random = np.random.default_rng(seed)
        counts = [-(-length // 64) for length in lengths]
        sizes = KvPoolShape(layers=2, kv_heads=shape.kv_heads, head_size=shape.head_size, element=shape.element)
        self.pool = KvPool(sizes, pages_max=sum(counts) + 1)
        self.pool.keys[:] = self.pool.values[:] = rubbish
        free = random.permutation(sum(counts) + 1)
        self.pages = np.full((len(lengths), max(counts)), 2**30, np.int32)
        self.keys: list[NDArray[np.float64]] = []
        self.values: list[NDArray[np.float64]] = []
        for slot, (length, count) in enumerate(zip(lengths, counts, strict=True)):
            self.pages[slot, :count], free = free[:count], free[count:]
            for kept, scale in ((self.keys, 2.0 / np.sqrt(shape.head_size)), (self.values, 1.0)):
                data = random.standard_normal((length, shape.kv_heads, shape.head_size)) * scale
                kept.append(data.astype(self.pool.keys.dtype).astype(np.float64))
            self._write(slot)

    def _write(self, slot: int) -> None:
        for position, (key, value) in enumerate(zip(self.keys[slot], self.values[slot], strict=True)):
            page, column = self.pages[slot, position // 64], position % 64
            self.pool.keys[page, 1, :, :, column] = key
            self.pool.values[page, 1, :, column] = value

    def queries(self, items: Sequence[Item]) -> NDArray[np.float32]:
        """One row for each of the items' rows, always the same for a slot and a position; rows have a margin."""
        width = self.shape.heads * self.shape.head_size
        rows = [(slot, position + row) for slot, position, count in items for row in range(count)]
        found = [np.random.default_rng(each).standard_normal(width + 3) for each in rows]
        return np.array(found, np.float32)

    def words(
        self, items: Sequence[Item], q: NDArray[np.float32], out: Sequence[Any], heads_per_tile: int, window: int
    ) -> list[Any]:
        counts = [count for _, _, count in items]
        rows = [(slot, position + row) for slot, position, count in items for row in range(count)]
        slots, positions = (np.array(each, np.int32) for each in zip(*rows, strict=True))
        first = np.cumsum([0, *counts[:-1]]).astype(np.int32)
        pool = self.pool
        return [
            q, q.shape[1], *out, first, np.array(counts, np.int32), positions, slots,
            self.pages, self.pages.shape[1], pool.address, pool.shape.page_bytes, pool.shape.layer_bytes, pool.shape.block_bytes,
            heads_per_tile, window,
        ]  # fmt: skip

    def reference(self, items: Sequence[Item], window: int = 0) -> NDArray[np.float64]:
        shape = self.shape
        q = self.queries(items)[:, : shape.heads * shape.head_size].astype(np.float64).reshape(-1, shape.heads, shape.head_size)
        rows = [(slot, position + row) for slot, position, count in items for row in range(count)]
        out = np.zeros_like(q)
        for row, (slot, position) in enumerate(rows):
            seen = slice(max(0, position - window + 1) if window else 0, position + 1)
            for head in range(shape.heads):
                scores = self.keys[slot][seen, head // shape.sharing] @ q[row, head]
                if shape.softcap:
                    scores = shape.softcap * np.tanh(scores / shape.softcap)
                p = np.exp(scores - scores.max())
                out[row, head] = p @ self.values[slot][seen, head // shape.sharing] / p.sum()
        return out.reshape(len(q), -1)


def attended(
    build_kernel: Any,
    target: Target,
    held: Held,
    items: Sequence[Item],
    *,
    window: int = 0,
    heads_per_tile: int = 0,
    order: Sequence[int] = (),
    q: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Float32 rows of the items; tiles are run in `order`, else in turn."""
    shape, each = held.shape, heads_per_tile or held.shape.sharing
    q = held.queries(items) if q is None else q
    out = np.zeros((len(q), shape.heads * shape.head_size), np.float32)
    run = build_kernel(builder(shape), target, shape.scratch_bytes(ITEM_ROWS_MAX))
    run(held.words(items, q, [0, 0, 0, 0, out], each, window), order or range(len(items) * shape.tiles_per_item(each)))
    return out


def cut(slot: int, first: int, end: int, rows: int) -> list[Item]:
    """Rows `first` to `end - 1` of a slot as items of at most `rows` rows."""
    return [(slot, position, min(rows, end - position)) for position in range(first, end, rows)]


@pytest.mark.parametrize("window", [0, 50, *(pytest.param(window, marks=pytest.mark.long) for window in (1, 64, 100))])
@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
def test_rows_of_ragged_sequences_are_those_of_float64(build_kernel: Any, shape: AttentionShape, window: int) -> None:
    held = Held(shape, [200, 1, 64, 131])
    items = [(0, 0, 16), (1, 0, 1), (2, 60, 4), (0, 120, 9), (3, 130, 1), (3, 62, 5), (0, 199, 1)]
    found = attended(build_kernel, host_target(), held, items, window=window)
    np.testing.assert_allclose(found, held.reference(items, window), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", NARROW_SHAPES, ids=name_of)
def test_all_widths_give_the_same_bits(build_kernel: Any, shape: AttentionShape) -> None:
    held = Held(shape, [150])
    items = [*cut(0, 0, 20, 7), (0, 60, 16), (0, 149, 1)]
    for window in (0, 70):
        found = [attended(build_kernel, each, held, items, window=window) for each in narrower_targets()]
        np.testing.assert_allclose(found[0], held.reference(items, window), rtol=0, atol=1e-5)
        assert len({each.tobytes() for each in found}) == 1


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_rows_bits_depend_on_nothing_beside_it(build_kernel: Any, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([SMALL, msgspec.structs.replace(SMALL, element="f16", softcap=10.0)]))
    window, heads_per_tile = data.draw(st.sampled_from([0, 1, 40, 64, 90])), data.draw(st.sampled_from([1, 3]))
    first, rows = data.draw(st.integers(0, 150)), data.draw(st.integers(1, 40))
    items, position = [], first
    while position < first + rows:
        count = min(data.draw(st.integers(1, ITEM_ROWS_MAX)), first + rows - position)
        items.append((0, position, count))
        position += count
    tiles = range(len(items) * shape.tiles_per_item(heads_per_tile))
    order = data.draw(st.permutations(tiles))
    held = Held(shape, [first + rows])
    alone = attended(build_kernel, host_target(), held, cut(0, first, first + rows, 1), window=window)
    found = attended(build_kernel, host_target(), held, items, window=window, heads_per_tile=heads_per_tile, order=order)
    assert found.tobytes() == alone.tobytes()


def test_what_earlier_uses_left_in_pages_changes_no_bit(build_kernel: Any) -> None:
    items = [(0, 60, 9), (1, 0, 3), (0, 129, 1)]
    found = [
        attended(build_kernel, host_target(), Held(SMALL, [130, 3], rubbish=rubbish), items, window=window).tobytes()
        for rubbish in (0.0, np.nan, -1e30)
        for window in (0, 5)
    ]
    assert len(set(found)) == 2 and found[:2] == found[2:4] == found[4:]


def test_later_rows_of_an_item_change_nothing_even_if_they_are_not_finite(build_kernel: Any) -> None:
    held = Held(SMALL, [75])
    wanted = attended(build_kernel, host_target(), held, [(0, 60, 15)])
    page, column = held.pages[0, 1], 70 - 64
    held.pool.keys[page, 1, :, :, column] = np.nan
    held.pool.values[page, 1, :, column] = np.inf
    found = attended(build_kernel, host_target(), held, [(0, 60, 15)])
    assert found[:10].tobytes() == wanted[:10].tobytes()
    assert np.isnan(found[10:]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_query_that_is_not_finite_gives_nan_to_its_head_only(build_kernel: Any, bad: float) -> None:
    held, items = Held(SMALL, [100]), [(0, 90, 4)]
    q = held.queries(items)
    wanted = attended(build_kernel, host_target(), held, items)
    q[2, 32 + 5] = bad
    found = attended(build_kernel, host_target(), held, items, q=q)
    assert np.isnan(found[2, 32:64]).all()
    found[2, 32:64] = wanted[2, 32:64]
    assert found.tobytes() == wanted.tobytes()


def test_scores_far_apart_leave_the_largest(build_kernel: Any) -> None:
    held, items = Held(SMALL, [150]), [(0, 149, 1)]
    q = held.queries(items) * np.float32(3e4)
    found = attended(build_kernel, host_target(), held, items, q=q)
    for head in range(SMALL.heads):
        scores = held.keys[0][:, head // 3] @ q[0, head * 32 : head * 32 + 32].astype(np.float64)
        np.testing.assert_array_equal(found[0, head * 32 : head * 32 + 32], held.values[0][scores.argmax(), head // 3])


@pytest.mark.parametrize("shape", [SMALL, AttentionShape(heads=2, kv_heads=1, head_size=128, element="f16")], ids=name_of)
def test_rows_can_be_given_quantised(build_kernel: Any, shape: AttentionShape) -> None:
    held, items = Held(shape, [100]), [(0, 90, 6), (0, 50, 2)]
    rows = attended(build_kernel, host_target(), held, items)
    size = rows.size
    direct, later = (
        [
            np.zeros(size, np.int16),
            np.zeros(size // 32, np.float32),
            np.zeros(size // 16, np.int32),
            np.zeros(size // 16, np.float32),
        ]
        for _ in range(2)
    )
    build_kernel(build_quantise, host_target())([rows, rows.shape[1], rows.shape[1], *later, 0], range(len(rows)))
    run = build_kernel(builder(shape), host_target(), shape.scratch_bytes(ITEM_ROWS_MAX))
    words = held.words(items, held.queries(items), [*direct, 0], shape.sharing, 0)
    run(words, range(len(items) * shape.kv_heads))
    for found, wanted in zip(direct, later, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_rows_can_take_the_place_of_their_queries(build_kernel: Any) -> None:
    held, items = Held(SMALL, [100]), [(0, 90, 6), (0, 50, 2)]
    wanted = attended(build_kernel, host_target(), held, items)
    q = held.queries(items)[:, : wanted.shape[1]].copy()
    run = build_kernel(builder(SMALL), host_target(), SMALL.scratch_bytes(ITEM_ROWS_MAX))
    run(held.words(items, q, [0, 0, 0, 0, q], 3, 0), range(len(items) * SMALL.kv_heads))
    np.testing.assert_array_equal(q, wanted)


@pytest.mark.parametrize(
    ("head_size", "supported"),
    [(8, True), (64, True), (80, True), (256, True), (0, False), (20, False), (264, False), (576, False)],
)
def test_head_sizes_are_multiples_of_eight_up_to_256(head_size: int, supported: bool) -> None:
    assert supports(head_size) is supported
    if not supported:
        with pytest.raises(ValueError, match=f"{head_size} elements"):
            build_attention(ir.Module(), host_target(), msgspec.structs.replace(SMALL, head_size=head_size))
