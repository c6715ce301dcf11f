"""Pages behave like plain lists: shared, trimmed, forked, used again, and all back at the end."""

from __future__ import annotations

import itertools
from typing import Any

import psutil
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tripower.backends.picolm.kv_cache import KvCache, KvShape
from tripower.backends.picolm.page_table import NO_PAGE, PageChange, PageTable
from tripower.runtime.kernel.errors import DeviceFailed, InvalidRequest

PAGES, PAGE = 12, 4
SHAPE = KvShape(layers=2, kv_heads=2, head_size=2)


def written(cache: KvCache, sequence: int) -> list[float]:
    """What attention would read of a sequence, up to the end of its last page; values are keys plus a half where there are any."""
    pages = torch.tensor([cache.table.pages(sequence)], dtype=torch.int64)
    keys, values = cache.read(1, cache.block_index(pages), 1)
    length = cache.table.length(sequence)
    assert torch.equal(values[:, :, :length], keys[:, :, :length] + 0.5)
    return keys[0, 1, :, 1].tolist()


def append(cache: KvCache, sequence: int, values: list[float], *, commit: bool = True, ahead: int = 0) -> None:
    """Reserve for the values and for `ahead` positions more, which are not reached."""
    start = cache.table.length(sequence)
    cache.reserve(sequence, len(values) + ahead)
    places = [divmod(start + index, PAGE) for index in range(len(values))]
    pages = torch.tensor([cache.table.pages(sequence)[page] for page, _ in places], dtype=torch.int64)
    index = cache.row_index(pages, torch.tensor([offset for _, offset in places], dtype=torch.int64))
    data = torch.tensor(values)[:, None, None].expand(-1, SHAPE.kv_heads, SHAPE.head_size)
    for layer in range(SHAPE.layers):
        cache.write(layer, index, data, data + 0.5)
    if commit:
        cache.table.commit(sequence, len(values))


class PagesAgainstLists(RuleBasedStateMachine):
    """Every rule is done to the cache and to a dictionary of lists."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.cache = KvCache(SHAPE, pages_max=PAGES, page_positions=PAGE)
        self.lists: dict[int, list[float]] = {}
        self.names = itertools.count()
        self.values = itertools.count(1)

    @rule(target=sequences)
    def open(self) -> int:
        sequence = next(self.names)
        self.cache.table.open(sequence)
        self.lists[sequence] = []
        return sequence

    @rule(sequence=sequences)
    def open_again(self, sequence: int) -> None:
        self.cache.table.open(sequence)
        self.lists[sequence] = []

    @rule(sequence=sequences, count=st.integers(0, 2 * PAGE + 1), ahead=st.integers(0, 2 * PAGE), fail=st.booleans())
    def step(self, sequence: int, count: int, ahead: int, fail: bool) -> None:
        """A failed step writes NaN and is taken back; nobody may ever read it."""
        values = [float("nan") if fail else float(next(self.values)) for _ in range(count)]
        free = self.cache.table.pages_free
        try:
            append(self.cache, sequence, values, commit=not fail, ahead=ahead)
        except DeviceFailed as error:
            assert error.code == "state_memory_exhausted"
            assert self.cache.table.pages_free == free
            return
        if fail:
            self.cache.table.trim(sequence, len(self.lists[sequence]))
            return
        self.lists[sequence] += values
        assert len(self.cache.table.pages(sequence)) == -(-len(self.lists[sequence]) // PAGE)
        if values:
            assert not any(written(self.cache, sequence)[len(self.lists[sequence]) :])

    @rule(sequence=sequences, keep=st.floats(0, 1))
    def trim(self, sequence: int, keep: float) -> None:
        length = round(keep * len(self.lists[sequence]))
        self.cache.table.trim(sequence, length)
        del self.lists[sequence][length:]

    @rule(target=sequences, source=sequences, keep=st.floats(0, 1))
    def fork(self, source: int, keep: float) -> int:
        sequence = next(self.names)
        length = round(keep * len(self.lists[source]))
        self.cache.table.fork(source, sequence, length)
        self.lists[sequence] = self.lists[source][:length]
        return sequence

    @rule(sequence=consumes(sequences))
    def close(self, sequence: int) -> None:
        self.cache.table.close(sequence)
        del self.lists[sequence]

    @invariant()
    def every_sequence_reads_as_its_list(self) -> None:
        for sequence, values in self.lists.items():
            assert self.cache.table.length(sequence) == len(values)
            assert written(self.cache, sequence)[: len(values)] == values

    @invariant()
    def pages_are_counted(self) -> None:
        held = {page for sequence in self.lists for page in self.cache.table.pages(sequence)}
        assert len(held) + self.cache.table.pages_free == PAGES

    def teardown(self) -> None:
        for sequence in self.lists:
            self.cache.table.close(sequence)
        assert self.cache.table.pages_free == PAGES


TestPagesAgainstLists = PagesAgainstLists.TestCase
TestPagesAgainstLists.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)


def test_what_a_step_reads_behind_the_end_is_zero_even_after_a_failed_one() -> None:
    cache = KvCache(SHAPE, pages_max=2, page_positions=PAGE)
    cache.table.open(0)
    append(cache, 0, [1.0], commit=True)
    append(cache, 0, [float("nan")] * 6, commit=False)
    cache.table.trim(0, 1)
    append(cache, 0, [2.0])
    assert written(cache, 0) == [1.0, 2.0, 0.0, 0.0]


def test_a_page_of_a_closed_sequence_is_clean_for_the_next() -> None:
    cache = KvCache(SHAPE, pages_max=1, page_positions=PAGE)
    cache.table.open(0)
    append(cache, 0, [float("nan")] * PAGE)
    cache.table.close(0)
    cache.table.open(1)
    append(cache, 1, [5.0])
    assert written(cache, 1) == [5.0, 0.0, 0.0, 0.0]


def test_a_fork_shares_pages_and_copies_only_the_part_that_it_keeps() -> None:
    table = PageTable(pages_max=8, page_positions=4)
    table.open(0)
    assert table.reserve(0, 10) == []
    table.commit(0, 10)
    table.fork(0, 1, 9)
    assert table.pages(1) == table.pages(0) == [0, 1, 2]
    assert table.pages_free == 5
    assert table.reserve(1, 1) == [PageChange(3, source=2, keep=1, dirty=0)]
    assert table.pages(1) == [0, 1, 3]
    assert table.reserve(0, 1) == []


def test_a_fork_at_a_page_border_copies_nothing() -> None:
    table = PageTable(pages_max=8, page_positions=4)
    table.open(0)
    table.reserve(0, 10)
    table.commit(0, 10)
    table.fork(0, 1, 8)
    assert table.reserve(1, 1) == []
    assert table.pages(1) == [0, 1, 3]


def test_a_commit_of_a_part_gives_the_rest_back_as_it_was() -> None:
    table = PageTable(pages_max=8, page_positions=4)
    table.open(0)
    table.reserve(0, 20)
    table.commit(0, 5)
    assert (table.pages(0), table.length(0), table.pages_free) == ([0, 1], 5, 6)
    table.open(1)
    assert table.reserve(1, 12) == []  # pages 2, 3 and 4 were never written
    table.commit(1, 0)
    assert (table.pages(1), table.length(1), table.pages_free) == ([], 0, 6)


def test_a_commit_of_a_part_remembers_what_was_written_before() -> None:
    table = PageTable(pages_max=8, page_positions=4)
    table.open(0)
    table.reserve(0, 8)
    table.commit(0, 8)
    table.trim(0, 1)
    table.reserve(0, 7)
    table.commit(0, 1)
    table.open(1)
    assert table.reserve(1, 1) == [PageChange(1, NO_PAGE, keep=0, dirty=4)]


def test_a_commit_of_nothing_keeps_the_copy_of_a_shared_page() -> None:
    table = PageTable(pages_max=8, page_positions=4)
    table.open(0)
    table.reserve(0, 6)
    table.commit(0, 6)
    table.fork(0, 1, 6)
    table.reserve(1, 10)
    table.commit(1, 0)
    assert (table.pages(0), table.pages(1), table.length(1), table.pages_free) == ([0, 1], [0, 2], 6, 5)
    assert table.reserve(1, 1) == []


def test_what_lies_behind_a_trimmed_end_is_cleared_before_it_is_read_around() -> None:
    table = PageTable(pages_max=8, page_positions=4)
    table.open(0)
    table.reserve(0, 3)
    table.commit(0, 3)
    table.trim(0, 1)
    assert table.reserve(0, 1) == [PageChange(0, NO_PAGE, keep=1, dirty=3)]


def test_running_out_of_pages_changes_nothing() -> None:
    table = PageTable(pages_max=2, page_positions=4)
    table.open(0)
    with pytest.raises(DeviceFailed) as caught:
        table.reserve(0, 9)
    assert caught.value.code == "state_memory_exhausted"
    assert (table.pages(0), table.pages_free) == ([], 2)
    assert table.reserve(0, 8) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.length(7),
        lambda table: table.trim(7, 0),
        lambda table: table.trim(0, 4),
        lambda table: table.trim(0, -1),
        lambda table: table.fork(0, 0, 1),
        lambda table: table.fork(7, 1, 0),
        lambda table: table.fork(0, 1, 4),
        lambda table: table.reserve(7, 1),
    ],
)
def test_misuse_is_refused_and_changes_nothing(call: Any) -> None:
    table = PageTable(pages_max=4, page_positions=4)
    table.open(0)
    table.reserve(0, 3)
    table.commit(0, 3)
    with pytest.raises(InvalidRequest):
        call(table)
    assert (table.length(0), table.sequences(), table.pages_free) == (3, [0], 3)


def test_the_layout_is_the_one_that_is_written_down() -> None:
    cache = KvCache(SHAPE, pages_max=PAGES, page_positions=PAGE)
    cache.table.open(0)
    append(cache, 0, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    page = cache.table.pages(0)[1]
    assert cache.pool.is_contiguous() and cache.pool.dtype == torch.float32
    assert cache.pool.data_ptr() % 64 == 0
    assert set(cache.pool[page, :, 0, :, :2, :].flatten().tolist()) == {5.0, 6.0}
    assert set(cache.pool[page, :, 1, :, :2, :].flatten().tolist()) == {5.5, 6.5}
    flat = cache.pool.flatten()
    layer, head, position, element = 1, 1, 1, 1
    address = ((((page * 2 + layer) * 2 + 0) * 2 + head) * PAGE + position) * 2 + element
    assert flat[address] == 6.0


def test_a_large_bound_is_not_committed_before_it_is_used() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    cache = KvCache(KvShape(layers=32, kv_heads=8, head_size=64), pages_max=128, page_positions=64)
    cache.table.open(0)
    cache.reserve(0, 1)
    assert cache.pool.numel() * 4 == 1 << 30
    assert process.memory_info().rss - before < 1 << 28
