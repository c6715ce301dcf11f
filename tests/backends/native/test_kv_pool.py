"""Pages of the native layout behave like plain lists; what a kernel reads lies where the layout says."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tripower.backends.picolm.native.kernels.attention.kv import PAGE_POSITIONS, KvElement
from tripower.backends.picolm.native.kv_pool import KvPool, KvPoolShape
from tripower.runtime.kernel.errors import DeviceFailed

PAGES = 8
SHAPE = KvPoolShape(layers=2, kv_heads=2, head_size=8, element="f16")


def append(pool: KvPool, sequence: int, values: list[int]) -> None:
    """Keys hold the value, values its negative, in each layer, head and element."""
    start = pool.table.length(sequence)
    pool.reserve(sequence, len(values))
    pages = pool.pages_row(sequence)
    for position, value in enumerate(values, start):
        page, column = pages[position // PAGE_POSITIONS], position % PAGE_POSITIONS
        pool.keys[page, ..., column] = value
        pool.values[page, ..., column, :] = -value
    pool.table.commit(sequence, len(values))


def held(pool: KvPool, sequence: int) -> list[int]:
    """What all layers, heads and elements agree upon."""
    pages = pool.pages_row(sequence)
    keys = np.moveaxis(pool.keys[pages], -1, 1).reshape(-1, SHAPE.layers * SHAPE.kv_heads * SHAPE.head_size)
    values = np.moveaxis(pool.values[pages], -2, 1).reshape(keys.shape)
    length = pool.table.length(sequence)
    assert (keys[:length] == keys[:length, :1]).all() and (values[:length] == -keys[:length]).all()
    return [int(key) for key in keys[:length, 0]]


class PagesAgainstLists(RuleBasedStateMachine):
    """Every rule is done to the pool and to a dictionary of lists."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.pool = KvPool(SHAPE, pages_max=PAGES)
        self.lists: dict[int, list[int]] = {}
        self.names, self.values = itertools.count(), itertools.count(1)

    @rule(target=sequences)
    def open(self) -> int:
        sequence = next(self.names)
        self.pool.table.open(sequence)
        self.lists[sequence] = []
        return sequence

    @rule(sequence=sequences, count=st.integers(1, 2 * PAGE_POSITIONS))
    def step(self, sequence: int, count: int) -> None:
        values = [next(self.values) % 2048 for _ in range(count)]
        try:
            append(self.pool, sequence, values)
        except DeviceFailed as error:
            assert error.code == "state_memory_exhausted"
        else:
            self.lists[sequence] += values

    @rule(sequence=sequences, keep=st.floats(0, 1))
    def trim(self, sequence: int, keep: float) -> None:
        length = round(keep * len(self.lists[sequence]))
        self.pool.table.trim(sequence, length)
        del self.lists[sequence][length:]

    @rule(target=sequences, source=sequences, keep=st.floats(0, 1))
    def fork(self, source: int, keep: float) -> int:
        sequence = next(self.names)
        length = round(keep * len(self.lists[source]))
        self.pool.table.fork(source, sequence, length)
        self.lists[sequence] = self.lists[source][:length]
        return sequence

    @rule(sequence=consumes(sequences))
    def close(self, sequence: int) -> None:
        self.pool.table.close(sequence)
        del self.lists[sequence]

    @invariant()
    def every_sequence_reads_as_its_list(self) -> None:
        for sequence, values in self.lists.items():
            assert held(self.pool, sequence) == values


TestPagesAgainstLists = PagesAgainstLists.TestCase
TestPagesAgainstLists.settings = settings(deadline=None, max_examples=30, stateful_step_count=20)


@pytest.mark.parametrize(("element", "kind"), [("f32", np.float32), ("f16", np.float16)])
def test_the_layout_is_the_one_that_is_written_down(element: KvElement, kind: Any) -> None:
    shape = KvPoolShape(layers=3, kv_heads=2, head_size=24, element=element)
    pool = KvPool(shape, pages_max=4)
    assert pool.address % 64 == 0
    assert pool.bytes_per_position == 2 * 3 * 2 * 24 * kind().itemsize == shape.page_bytes // PAGE_POSITIONS
    page, layer, head, position, element_index = 2, 1, 1, 37, 19
    pool.keys[page, layer, head, element_index, position] = 5.0
    pool.values[page, layer, head, position, element_index] = 7.0
    block = pool.address + page * shape.page_bytes + layer * shape.layer_bytes + head * shape.block_bytes
    elements = np.frombuffer(ctypes.string_at(block, shape.block_bytes), kind)
    assert elements[element_index * PAGE_POSITIONS + position] == 5.0
    assert elements[24 * PAGE_POSITIONS + position * 24 + element_index] == 7.0
    assert np.count_nonzero(elements) == 2


def test_a_fork_copies_the_kept_part_of_the_last_page_only() -> None:
    pool = KvPool(SHAPE, pages_max=4)
    pool.table.open(0)
    append(pool, 0, list(range(1, 101)))
    pool.table.fork(0, 1, 90)
    append(pool, 1, [500])
    first, second = pool.pages_row(0), pool.pages_row(1)
    assert first[0] == second[0] and first[1] != second[1]
    assert held(pool, 0) == list(range(1, 101))
    assert held(pool, 1) == [*range(1, 91), 500]
    assert not pool.keys[second[1], ..., 27:].any() and not pool.values[second[1], ..., 27:, :].any()


def test_a_large_bound_is_not_committed_before_it_is_used() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    shape = KvPoolShape(layers=32, kv_heads=8, head_size=64)
    pool = KvPool(shape, pages_max=128)
    pool.table.open(0)
    pool.reserve(0, 1)
    pool.keys[pool.pages_row(0)[0]] = 1.0
    assert 128 * shape.page_bytes == 1 << 30
    assert process.memory_info().rss - before < 1 << 28


def test_a_closed_pool_has_no_memory_but_lets_sequences_go() -> None:
    pool = KvPool(SHAPE, pages_max=2)
    pool.table.open(0)
    pool.reserve(0, 1)
    pool.close()
    pool.close()
    pool.table.close(0)
    assert pool.table.pages_free == 2
    with pytest.raises(AssertionError, match="closed"):
        pool.keys  # noqa: B018 - reading it is the test
