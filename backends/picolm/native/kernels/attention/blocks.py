"""The two small matrix products of attention, for blocks of queries: scores of a page's keys, and sums of its values.

Both are `out[query][column] += a[query][k] * b[k][column]` with k ascending: for scores, k is the element of a head and a column a
position; for values, k is the position and a column an element. A block of queries times a group of columns stays in registers for
the whole sum, so that a vector of `b` is loaded once for all queries of the block. Each result is its own sum, in its own order:
how queries and columns are grouped changes no bit.

A query's state is one `Record` of the thread's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, I8, I64, PTR, VOID, Function, Kernel, Value, i32, i64, vector
from tripower.backends.picolm.native.kernels.attention.kv import PAGE_POSITIONS, Elements, KvElement, pieces
from tripower.backends.picolm.native.target import Target

Size: TypeAlias = tuple[int, bool]
"""Queries of a block, and whether what is read next is fetched meanwhile: the last block of a tile does."""

LANES = 16
QUERIES_MAX = 6
"""Queries of a block."""
SUMS_PER_PASS = 12
REPEATS_MAX = 8
"""A pass of a loop is repeated until it feeds 12 vectors of sums, 8 times at most: else counting would take as long as the sums."""
CACHE_LINE_BYTES = 64
FETCH_LOCALITY = 2
"""To the second level: in the first there is no room for a block that is read and one that will be."""


class Record:
    """The state of one query, counted in float32: scores of a page, 16 lanes of the sum of probabilities, the largest score so far,
    the first position in sight and the one after the last (int64), the query, and the output.
    """

    SCORES = 0
    SUMS = PAGE_POSITIONS
    MAXIMUM = SUMS + LANES
    LOW = MAXIMUM + 2
    HIGH = LOW + 2
    QUERY = SUMS + 2 * LANES

    def __init__(self, head_size: int) -> None:
        self.output = self.QUERY + head_size
        self.stride = self.output + head_size

    @property
    def bytes(self) -> int:
        return 4 * self.stride

    def at(self, function: Function, records: Value, index: Value) -> Value:
        """The address of record `index`."""
        return function.at(records, function.b.mul(index, i64(self.stride)), F32)

    def sight(self, function: Function, record: Value, start: Value) -> tuple[Value, Value]:
        """Positions in the page that begins at `start` which a query sees, from and to, int64; equal if it sees none."""
        found = []
        for field in (self.LOW, self.HIGH):
            position = function.b.sub(function.load(function.at(record, field, F32), 0, I64), start)
            at_least = function.intrinsic("smax", [I64], [position, i64(0)])
            found.append(function.intrinsic("smin", [I64], [at_least, i64(PAGE_POSITIONS)]))
        return found[0], found[1]


class Blocks:
    """Functions over 1 to `QUERIES_MAX` queries, emitted once into a kernel's module."""

    def __init__(self, module: ir.Module, target: Target, head_size: int, element: KvElement, name: str) -> None:
        self._module, self._target, self._element, self._name = module, target, element, name
        self._head_size, self._record = head_size, Record(head_size)
        sizes = [(QUERIES_MAX, False), *((queries, True) for queries in range(1, QUERIES_MAX + 1))]
        self._scores = {size: self._build_scores(*size) for size in sizes}
        self._values = {size: self._build_values(*size) for size in sizes}

    def scores(self, kernel: Kernel, size: Size, records: Value, keys: Value, ahead: Value) -> None:
        """Scores of all positions of the page at `keys`, for the records of a block. What is at `ahead` will be read next."""
        kernel.b.call(self._scores[size], [records, keys, ahead])

    def values(self, kernel: Kernel, size: Size, records: Value, values: Value, ahead: Value, low: Value, high: Value) -> None:
        """Add positions `low` to `high - 1` of the page at `values` to the outputs; `low` is at most `high`."""
        kernel.b.call(self._values[size], [records, values, ahead, low, high])

    def for_each(self, kernel: Kernel, count: Value, action: Callable[[Size, Value], None]) -> None:
        """`action(size, index of the first query)` for blocks that make up `count` queries: emitted once for each size."""
        b = kernel.b
        whole = b.mul(b.sdiv(b.sub(count, i64(1)), i64(QUERIES_MAX)), i64(QUERIES_MAX))
        with kernel.loop(i64(0), whole, QUERIES_MAX) as index:
            action((QUERIES_MAX, False), index)
        left = b.sub(count, whole)
        for queries in range(1, QUERIES_MAX + 1):
            with b.if_then(b.icmp_signed("==", left, i64(queries))):
                action((queries, True), whole)

    def _build_scores(self, queries: int, fetches: bool) -> Value:
        function = self._function(f"scores_{queries}{'_fetch' * fetches}", [PTR, PTR, PTR])
        records, keys, ahead = function.args
        columns = [(first, LANES) for first in range(0, PAGE_POSITIONS, LANES)]
        for group in _groups(columns, self.sums_kept // queries):
            product = _Product(self, function, queries, group, ahead if fetches else None)
            product.add(records, Record.QUERY, keys, PAGE_POSITIONS, i64(0), i64(self._head_size))
            product.store(records, Record.SCORES)
        function.done()
        return function.value

    def _build_values(self, queries: int, fetches: bool) -> Value:
        function = self._function(f"values_{queries}{'_fetch' * fetches}", [PTR, PTR, PTR, I64, I64])
        records, values, ahead, low, high = function.args
        for group in _groups(pieces(self._head_size), self.sums_kept // queries):
            product = _Product(self, function, queries, group, ahead if fetches else None)
            product.load(records, self._record.output)
            product.add(records, Record.SCORES, values, self._head_size, low, high)
            product.store(records, self._record.output)
        function.done()
        return function.value

    def _function(self, name: str, parameters: Sequence[object]) -> Function:
        function = Function(self._module, f"{self._name}_{name}", parameters)
        function.value.linkage = "internal"
        function.value.attributes.add("noinline")
        return function

    @property
    def sums_kept(self) -> int:
        """Vectors of 16 sums that stay in registers, with some left for what is multiplied."""
        if self._target.lanes == LANES:
            return 24
        return 6 if self._target.lanes == 8 or self._target.architecture != "x86_64" else 3

    @property
    def stride(self) -> int:
        """From record to record, in float32."""
        return self._record.stride

    def elements(self, function: Function) -> Elements:
        return Elements(function, self._target, self._element)


class _Product:
    """Sums of one block of queries and one group of columns, `(first column, lanes)` each, in registers."""

    def __init__(
        self, blocks: Blocks, function: Function, queries: int, columns: Sequence[tuple[int, int]], ahead: Value | None
    ) -> None:
        self._function, self._columns, self._stride = function, columns, blocks.stride
        self._sums_kept = blocks.sums_kept
        self._elements, self._ahead = blocks.elements(function), ahead
        self._sums = [[function.variable(vector(F32, lanes), 0.0) for _, lanes in columns] for _ in range(queries)]

    def load(self, records: Value, field: int) -> None:
        """Begin with what `field` of the records holds."""
        for query, sums in enumerate(self._sums):
            for (first, lanes), total in zip(self._columns, sums, strict=True):
                total.set(self._function.load_vector(records, query * self._stride + field + first, F32, lanes))

    def store(self, records: Value, field: int) -> None:
        for query, sums in enumerate(self._sums):
            for (first, _), total in zip(self._columns, sums, strict=True):
                self._function.store_vector(total.get(), records, query * self._stride + field + first)

    def add(self, records: Value, field: int, matrix: Value, row: int, low: Value, high: Value) -> None:
        """`field` of the records times rows `low` to `high - 1` of `matrix`, whose rows have `row` elements."""
        f, b = self._function, self._function.b
        repeats, most = 1, min(SUMS_PER_PASS, 2 * self._sums_kept) // (len(self._sums) * len(self._columns))
        while 2 * repeats <= min(most, REPEATS_MAX):
            repeats *= 2
        even = b.add(low, b.and_(b.sub(high, low), i64(-repeats)))
        with f.loop(low, even, repeats) as k:
            for repeat in range(repeats):
                self._add_row(records, field, matrix, row, b.add(k, i64(repeat)))
        if repeats > 1:
            with f.loop(even, high) as k:
                self._add_row(records, field, matrix, row, k)

    def _add_row(self, records: Value, field: int, matrix: Value, row: int, k: Value) -> None:
        f, b = self._function, self._function.b
        line = f.at(matrix, b.mul(k, i64(row)), self._elements.kind)
        if self._ahead is not None:
            self._fetch(f.at(self._ahead, b.mul(k, i64(row)), self._elements.kind))
        loaded = [self._elements.load(line, first, lanes) for first, lanes in self._columns]
        for query, sums in enumerate(self._sums):
            factor = f.load(records, b.add(k, i64(query * self._stride + field)), F32)
            for (_, lanes), element, total in zip(self._columns, loaded, sums, strict=True):
                total.set(f.fma(f.splat(factor, lanes), element, total.get()))

    def _fetch(self, line: Value) -> None:
        """Ask for this group's columns of a row that will be read later."""
        f, size = self._function, self._elements.bytes
        lines = {first * size // CACHE_LINE_BYTES for first, _ in self._columns}
        for number in sorted(lines):
            where = f.at(line, number * CACHE_LINE_BYTES, I8)
            f.intrinsic("prefetch", [PTR], [where, i32(0), i32(FETCH_LOCALITY), i32(1)], VOID)


def _groups(columns: Sequence[tuple[int, int]], size: int) -> list[Sequence[tuple[int, int]]]:
    """Columns in as few groups of at most `size` as possible, of about equal width."""
    count = -(-len(columns) // max(1, size))
    width = -(-len(columns) // count)
    return [columns[first : first + width] for first in range(0, len(columns), width)]
