"""The outer loops of a linear kernel: which rows and strips a tile has, and in what order they go by."""

from __future__ import annotations

from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, I8, I32, I64, Kernel, Value, i64
from tripower.backends.picolm.native.kernels.linear.floats import emit_float_rows
from tripower.backends.picolm.native.kernels.linear.results import emit_finish, smaller, tile_strips
from tripower.backends.picolm.native.kernels.linear.rows import emit_rows
from tripower.backends.picolm.native.kernels.linear.tiles import ROWS_PER_TILE_MAX, row_sets
from tripower.backends.picolm.native.kernels.linear.words import Word
from tripower.backends.picolm.native.kernels.weights.formats import AnyFormat, FloatFormat
from tripower.backends.picolm.native.target import Target


def emit_linear(module: ir.Module, name: str, form: AnyFormat, target: Target, rows: int, strips: int) -> Kernel:
    """Emit a layer's kernel, which takes `rows` rows by `strips` strips at a time; `Word` names its words.

    Tile = column block × row block, row block fastest. `out` is float32 [rows][stride].
    """
    frame = _Frame(module, name, form, target, rows, strips)
    kernel = frame.kernel
    first, end = frame.row_range(kernel.load(kernel.pointer(Word.ROWS), 0, I64))
    with kernel.loop(first, end) as row:
        frame.list_row(kernel.b.sub(row, first), row, row)
    frame.run(kernel.pointer(Word.WEIGHTS), kernel.b.sub(end, first))
    kernel.done()
    return kernel


def emit_expert_linear(module: ir.Module, name: str, form: AnyFormat, target: Target, rows: int, strips: int) -> Kernel:
    """The same for pairs of row and expert: pair `row * used + j` is multiplied with the weights of expert `ids[pair]`.

    `out` is float32 [pairs][stride]. Pairs of a tile that use the same expert go by together, so that its weights are read once. Ids
    are trusted: the router made them.
    """
    frame = _Frame(module, name, form, target, rows, strips)
    kernel, b = frame.kernel, frame.kernel.b
    used, per_pair = kernel.number(Word.USED), kernel.number(Word.X_PER_PAIR)
    ids, weights = kernel.pointer(Word.EXPERTS), kernel.pointer(Word.WEIGHTS)
    first, end = frame.row_range(b.mul(kernel.load(kernel.pointer(Word.ROWS), 0, I64), used))
    with kernel.loop(first, end) as pair:
        expert = kernel.load(ids, pair, I32)
        done = kernel.variable(I64)
        with kernel.loop(first, pair) as earlier:
            done.add(b.zext(b.icmp_signed("==", kernel.load(ids, earlier, I32), expert), I64))
        with b.if_then(b.icmp_signed("==", done.get(), i64(0))):
            count = kernel.variable(I64)
            with kernel.loop(pair, end) as other, b.if_then(b.icmp_signed("==", kernel.load(ids, other, I32), expert)):
                row = b.select(b.icmp_signed("!=", per_pair, i64(0)), other, b.sdiv(other, used))
                frame.list_row(count.get(), row, other)
                count.add(i64(1))
            own = b.mul(b.sext(expert, I64), kernel.number(Word.EXPERT_BYTES))
            frame.run(kernel.at(weights, own, I8), count.get())
    kernel.done()
    return kernel


class _Frame:
    """A kernel under construction. Rows of a tile are listed in scratch: for each the row of the inputs and the row of `out`."""

    def __init__(self, module: ir.Module, name: str, form: AnyFormat, target: Target, rows: int, strips: int) -> None:
        self._lanes, self._strips = target.lanes, strips
        self._inner = {count: _inner(module, form, target, count, strips) for count in row_sets(rows)}
        self._finish = emit_finish(module, target, strips)
        self.kernel = kernel = Kernel(module, name)
        self._inputs = kernel.at(kernel.scratch, rows * strips * target.lanes, F32)
        self._outputs = kernel.at(self._inputs, ROWS_PER_TILE_MAX, I64)
        self._column = i64(0)

    def row_range(self, rows: Value) -> tuple[Value, Value]:
        """First row of this tile and the one after its last, of `rows` rows."""
        kernel, b = self.kernel, self.kernel.b
        per_tile = kernel.number(Word.ROWS_PER_TILE)
        row_blocks = b.sdiv(b.add(rows, b.sub(per_tile, i64(1))), per_tile)
        self._column = b.sdiv(kernel.tile, row_blocks)
        first = b.mul(b.srem(kernel.tile, row_blocks), per_tile)
        return first, smaller(kernel, b.add(first, per_tile), rows)

    def list_row(self, index: Value, row_in: Value, row_out: Value) -> None:
        """Say where row `index` of the list comes from and goes to."""
        self.kernel.store(row_in, self._inputs, index)
        self.kernel.store(row_out, self._outputs, index)

    def run(self, weights: Value, rows: Value) -> None:
        """All strips of the tile for the first `rows` rows of the list."""
        kernel, b = self.kernel, self.kernel.b
        total = b.sdiv(b.add(kernel.number(Word.N), i64(self._lanes - 1)), i64(self._lanes))
        width = tile_strips(kernel, kernel.number(Word.TILE), self._strips)
        first = b.mul(self._column, width)
        with kernel.loop(first, smaller(kernel, b.add(first, width), total), self._strips) as strip:
            at = kernel.variable(I64)
            for count, inner in self._inner.items():
                with kernel.forever() as after:
                    now = at.get()
                    kernel.leave_if(b.icmp_signed(">", b.add(now, i64(count)), rows), after)
                    b.call(inner, [kernel.words, weights, strip, kernel.at(self._inputs, now, I64), kernel.scratch])
                    outputs = kernel.at(self._outputs, now, I64)
                    b.call(self._finish, [kernel.words, strip, outputs, i64(count), kernel.scratch])
                    at.add(i64(count))


def _inner(module: ir.Module, form: AnyFormat, target: Target, rows: int, strips: int) -> ir.Function:
    """The inner loop for so many rows and strips, one for all kernels of a module."""
    name = f"linear.{form.name}.{rows}x{strips}"
    if name not in module.globals:
        if isinstance(form, FloatFormat):
            emit_float_rows(module, name, form, target, rows, strips)
        else:
            emit_rows(module, name, form, target, rows, strips)
    return module.globals[name]
