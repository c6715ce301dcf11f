"""Attention of rows over the pages of their own sequences, as small matrix products with an online soft-max between them.

A tile is an item (rows of one sequence at consecutive positions), a kv head, and some of the query heads that share it. Its queries,
one for each row and head, are served together: each vector of keys or values that is loaded is used for several queries. For each
page that a query can see, in ascending order of position:

    scores = q . keys; scores = cap * tanh(scores / cap) if there is a cap
    raised = max(maximum, scores); factor = exp(maximum - raised); maximum = raised
    p = exp(scores - maximum); sum = sum * factor + p; out = out * factor + p . values

(Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.) Pages are aligned to absolute positions, and every sum
has one order: over a key's elements and over positions it is ascending, the sum of probabilities has 16 lanes and then a tree. So a
query's bits do not depend on the rows and heads beside it, on how its prompt was cut into items, or on the machine's vectors.

What a query cannot see never takes part: scores there are replaced, and products with values leave those positions out, since even
zero times a left-over value could change a bit. Positions that all queries of a block see are done together, the few others alone.

Words of `attention`; tiles are numbered item by item, then kv head by kv head, then group by group:

     0 q float32 [rows][stride], turned and scaled     1 its row stride in elements
     2 destination of the rows, five words (`quantise.Destination`), of heads * head_size columns; q may be its float32 array.
       Unless the shape `quantises` there must be a float32 array, and nothing else is written
     7 item_row int32 [items]       8 item_rows int32 [items]
     9 row_position int32 [rows]   10 row_slot int32 [rows]
    11 pages, pages_per_slot, pool, bytes of a page, offset of the layer, bytes of a block: the six words of `kv.PoolAddresses`
    17 query heads per tile, which divides heads / kv_heads
    18 window: positions that a row sees, its own included; 0 is all of them
"""

from __future__ import annotations

import msgspec
from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, I8, I32, I64, PTR, Kernel, Value, constant, f32, i64, vector
from tripower.backends.picolm.native.kernels.attention.blocks import LANES, Blocks, Record, Size
from tripower.backends.picolm.native.kernels.attention.kv import PAGE_POSITIONS, KvElement, PoolAddresses, element_bytes, pieces
from tripower.backends.picolm.native.kernels.attention.softmax import LOWEST, build_softmax
from tripower.backends.picolm.native.kernels.quantise import BLOCK, Destination
from tripower.backends.picolm.native.target import Target

HEAD_SIZE_MAX = 256
HEAD_SIZE_STEP = 8
FETCH_NEAR_BYTES = 512
NEAR_HEAD_SIZE_MAX = 128


class AttentionShape(msgspec.Struct, frozen=True, kw_only=True):
    """What an `attention` kernel is generated for. The window is a word of the kernel, not part of the shape."""

    heads: int
    kv_heads: int
    head_size: int
    softcap: float = 0.0
    """0 leaves scores as they are."""
    element: KvElement = "f32"

    @property
    def sharing(self) -> int:
        """Query heads for each kv head."""
        return self.heads // self.kv_heads

    @property
    def block_bytes(self) -> int:
        """Of one kv head in one layer of a page."""
        return 2 * PAGE_POSITIONS * self.head_size * element_bytes(self.element)

    @property
    def quantises(self) -> bool:
        """Whether rows can be given in quantised form: blocks may not reach over heads."""
        return self.head_size % BLOCK == 0

    def tiles_per_item(self, heads_per_tile: int) -> int:
        """Tiles of one item."""
        return self.kv_heads * (self.sharing // heads_per_tile)

    def scratch_bytes(self, rows_max: int) -> int:
        """Memory that a kernel needs of its thread for items of at most `rows_max` rows."""
        return rows_max * self.sharing * Record(self.head_size).bytes


def supports(head_size: int) -> bool:
    """Whether there is a kernel for heads of this size: a multiple of 8, at most 256."""
    return 0 < head_size <= HEAD_SIZE_MAX and head_size % HEAD_SIZE_STEP == 0


def build_attention(module: ir.Module, target: Target, shape: AttentionShape, name: str = "attention") -> None:
    """Emit the kernel `name`. Raises `ValueError` for a head size that is not supported."""
    if not supports(shape.head_size):
        raise ValueError(f"no attention kernel for heads of {shape.head_size} elements")
    blocks = Blocks(module, target, shape.head_size, shape.element, name)
    softmax = build_softmax(module, shape.head_size, shape.softcap, f"{name}_softmax")
    kernel = Kernel(module, name)
    tile = _Tile(kernel, target, shape, blocks)
    tile.start()
    with kernel.loop(tile.first_page, tile.end_page) as page:
        tile.take_page(page, softmax)
    tile.finish()
    kernel.done()


class _Tile:
    """The queries of a tile: those of a row follow each other, rows follow each other."""

    def __init__(self, kernel: Kernel, target: Target, shape: AttentionShape, blocks: Blocks) -> None:
        b = kernel.b
        self._kernel, self._target, self._shape, self._blocks = kernel, target, shape, blocks
        self._record = Record(shape.head_size)
        self._heads = kernel.number(17)
        groups = b.sdiv(i64(shape.sharing), self._heads)
        tiles_per_item = b.mul(i64(shape.kv_heads), groups)
        item, rest = b.sdiv(kernel.tile, tiles_per_item), b.srem(kernel.tile, tiles_per_item)
        self._kv_head = b.sdiv(rest, groups)
        self._head = b.add(b.mul(self._kv_head, i64(shape.sharing)), b.mul(b.srem(rest, groups), self._heads))
        self._row = self._entry(7, item)
        self._rows = self._entry(8, item)
        self._queries = b.mul(self._rows, self._heads)
        self._position = self._entry(9, self._row)
        self._addresses = PoolAddresses(kernel, 11, self._entry(10, self._row), self._kv_head)
        self._window = kernel.number(18)
        last = b.sub(b.add(self._position, self._rows), i64(1))
        self.first_page = b.sdiv(self._low(self._position), i64(PAGE_POSITIONS))
        self.end_page = b.add(b.sdiv(last, i64(PAGE_POSITIONS)), i64(1))

    def start(self) -> None:
        """Fill the records."""
        k, b, record = self._kernel, self._kernel.b, self._record
        with k.loop(i64(0), self._rows) as row, k.loop(i64(0), self._heads) as head:
            position = b.add(self._position, row)
            state = record.at(k, k.scratch, b.add(b.mul(row, self._heads), head))
            where = b.mul(b.add(self._row, row), k.number(1))
            query = k.at(k.pointer(0), b.add(where, b.mul(b.add(self._head, head), i64(self._shape.head_size))), F32)
            for first, lanes in pieces(self._shape.head_size):
                k.store_vector(k.load_vector(query, first, F32, lanes), state, Record.QUERY + first)
                k.store_vector(constant(vector(F32, lanes), 0.0), state, record.output + first)
            k.store_vector(constant(vector(F32, LANES), 0.0), state, Record.SUMS)
            k.store(f32(LOWEST), state, Record.MAXIMUM)
            k.store(self._low(position), k.at(state, Record.LOW, F32), 0)
            k.store(b.add(position, i64(1)), k.at(state, Record.HIGH, F32), 0)

    def take_page(self, page: Value, softmax: Value) -> None:
        """Scores, soft-max and values of one page."""
        k, b, blocks = self._kernel, self._kernel.b, self._blocks
        block = self._addresses.page(page)
        keys, values = (b.inttoptr(b.add(block, i64(half * (self._shape.block_bytes // 2))), PTR) for half in (0, 1))
        after_keys, after_values = self._ahead(page, keys, values)
        start = b.mul(page, i64(PAGE_POSITIONS))
        blocks.for_each(k, self._queries, lambda size, index: blocks.scores(k, size, self._state(index), keys, after_keys))
        b.call(softmax, [k.scratch, self._queries, start])
        blocks.for_each(k, self._queries, lambda size, index: self._take_values(size, index, values, after_values, start))

    def _ahead(self, page: Value, keys: Value, values: Value) -> tuple[Value, Value]:
        """What to fetch while keys, and while values are read: what follows them, or in short float32 rows what is near, where the
        processor's own guesses are good up to the ends of its pages. Both were measured to be the faster ones of the two.
        """
        k, b = self._kernel, self._kernel.b
        if self._shape.element == "f32" and self._shape.head_size <= NEAR_HEAD_SIZE_MAX:
            return k.at(keys, FETCH_NEAR_BYTES, I8), k.at(values, FETCH_NEAR_BYTES, I8)
        following = k.intrinsic("smin", [I64], [b.add(page, i64(1)), b.sub(self.end_page, i64(1))])
        return values, b.inttoptr(self._addresses.page(following), PTR)

    def _take_values(self, size: Size, index: Value, values: Value, ahead: Value, start: Value) -> None:
        """Positions that all queries of the block see are added together, those before and after them alone."""
        k, b = self._kernel, self._kernel.b
        queries = size[0]
        first, last = self._state(index), self._state(b.add(index, i64(queries - 1)))
        low, high = self._record.sight(k, last, start)[0], self._record.sight(k, first, start)[1]
        common = b.icmp_signed("<", low, high)
        low, high = (b.select(common, value, i64(PAGE_POSITIONS)) for value in (low, high))
        ragged = b.icmp_signed("<", b.sub(high, low), i64(PAGE_POSITIONS))
        with b.if_then(ragged):
            self._take_alone(queries, index, values, start, None, low)
        with b.if_then(common):
            self._blocks.values(k, size, first, values, ahead, low, high)
        with b.if_then(ragged):
            self._take_alone(queries, index, values, start, high, None)

    def _take_alone(
        self, queries: int, index: Value, values: Value, start: Value, low: Value | None, high: Value | None
    ) -> None:
        """Each query's own positions from `low` on, or before `high`."""
        k, b = self._kernel, self._kernel.b
        with k.loop(index, b.add(index, i64(queries))) as one:
            state = self._state(one)
            own_low, own_high = self._record.sight(k, state, start)
            if low is not None:
                own_low = k.intrinsic("smax", [I64], [own_low, low])
            if high is not None:
                own_high = k.intrinsic("smin", [I64], [own_high, high])
            with b.if_then(b.icmp_signed("<", own_low, own_high)):
                self._blocks.values(k, (1, True), state, values, values, own_low, own_high)

    def finish(self) -> None:
        """Divide outputs by the sums of probabilities and give them to their destination."""
        k, b, size = self._kernel, self._kernel.b, self._shape.head_size
        columns = i64(self._shape.heads * size)
        with k.loop(i64(0), self._rows) as row:
            destination = Destination(k, self._target, 2, b.add(self._row, row), columns)
            with k.loop(i64(0), self._heads) as head:
                state = self._state(b.add(b.mul(row, self._heads), head))
                total = k.sum_lanes(k.load_vector(state, Record.SUMS, F32, LANES))
                found = []
                for first, lanes in pieces(size):
                    value = k.load_vector(state, self._record.output + first, F32, lanes)
                    found.append(b.fdiv(value, k.splat(total, lanes)))
                self._give(destination, b.add(self._head, head), found)

    def _give(self, destination: Destination, head: Value, values: list[Value]) -> None:
        k, b, size = self._kernel, self._kernel.b, self._shape.head_size
        if self._shape.quantises:
            per_block = BLOCK // LANES
            for block in range(size // BLOCK):
                index = b.add(b.mul(head, i64(size // BLOCK)), i64(block))
                destination.store(values[block * per_block : (block + 1) * per_block], index)
            return
        for (first, _), value in zip(pieces(size), values, strict=True):
            k.store_vector(value, destination.floats, b.add(b.mul(head, i64(size)), i64(first)))

    def _state(self, index: Value) -> Value:
        return self._record.at(self._kernel, self._kernel.scratch, index)

    def _low(self, position: Value) -> Value:
        """The first position that a row at `position` sees."""
        k, b = self._kernel, self._kernel.b
        limited = k.intrinsic("smax", [I64], [b.add(b.sub(position, self._window), i64(1)), i64(0)])
        return b.select(b.icmp_signed(">", self._window, i64(0)), limited, i64(0))

    def _entry(self, word: int, index: Value) -> Value:
        """An int32 of an array, as int64."""
        return self._kernel.b.sext(self._kernel.load(self._kernel.pointer(word), index, I32), I64)
