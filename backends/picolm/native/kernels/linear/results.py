"""What the inner loops of all linear kernels share: where strips begin, where results are kept, how they are written out."""

from __future__ import annotations

from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, I8, I64, PTR, Function, Value, Variable, constant, i64, vector
from tripower.backends.picolm.native.kernels.linear.tiles import AHEAD_SHIFT
from tripower.backends.picolm.native.kernels.linear.words import Word
from tripower.backends.picolm.native.target import Target


def smaller(f: Function, a: Value, b: Value) -> Value:
    """The smaller of two int64."""
    return f.b.select(f.b.icmp_signed("<", a, b), a, b)


def tile_strips(f: Function, word: Value, strips: int) -> Value:
    """Strips of a tile, of the word `TILE`: whole sets of as many as a kernel takes at a time, at least one."""
    stated = f.b.and_(word, i64((1 << AHEAD_SHIFT) - 1))
    whole = f.b.mul(f.b.udiv(f.b.add(stated, i64(strips - 1)), i64(strips)), i64(strips))
    return f.b.select(f.b.icmp_signed("==", whole, i64(0)), i64(strips), whole)


def ahead_bytes(f: Function, size: Value, strips: int) -> Value:
    """How many bytes further on weights are asked for, for strips of `size` bytes; for a function of `emit_rows`' kind."""
    word = f.load(f.args[0], Word.TILE, I64)
    stated = f.b.lshr(word, i64(AHEAD_SHIFT))
    default = f.b.shl(tile_strips(f, word, strips), i64(1))
    ahead = f.b.select(f.b.icmp_signed("==", stated, i64(0)), default, stated)
    return f.b.mul(size, ahead)


def internal_function(module: ir.Module, name: str, parameters: list[ir.Type]) -> Function:
    """A function that kernels of this module call; never inlined, so that its registers are its own."""
    f = Function(module, name, parameters)
    f.value.linkage = "internal"
    f.value.attributes.add("noinline")
    return f


def strip_pointers(f: Function, strips: int, lanes: int, size: Value) -> list[Value]:
    """Addresses of strips that a function of `emit_rows`' kind was called for; past the last strip, the last one again."""
    b, (words, weights, strip, _, _) = f.b, f.args
    last = b.sdiv(b.sub(f.load(words, Word.N, I64), i64(1)), i64(lanes))
    return [f.at(weights, b.mul(smaller(f, b.add(strip, i64(index)), last), size), I8) for index in range(strips)]


class Results:
    """y[row][strip] while sums run: in registers where there are enough of them, else in the memory where it must end anyway."""

    def __init__(self, f: Function, y: Value, rows: int, strips: int, lanes: int, *, registers: bool) -> None:
        self._f, self._y, self._strips, self._lanes = f, y, strips, lanes
        zero = constant(vector(F32, lanes), 0.0)
        self._held: dict[tuple[int, int], Variable] = {}
        for row in range(rows):
            for strip in range(strips):
                if registers:
                    self._held[row, strip] = f.variable(vector(F32, lanes), zero)
                else:
                    self.set(row, strip, zero)

    def get(self, row: int, strip: int) -> Value:
        if self._held:
            return self._held[row, strip].get()
        return self._f.load_vector(self._y, (row * self._strips + strip) * self._lanes, F32, self._lanes)

    def set(self, row: int, strip: int, value: Value) -> None:
        if (row, strip) in self._held:
            self._held[row, strip].set(value)
        else:
            self._f.store_vector(value, self._y, (row * self._strips + strip) * self._lanes)

    def store(self) -> None:
        """To memory, at the end."""
        for (row, strip), held in self._held.items():
            self._f.store_vector(held.get(), self._y, (row * self._strips + strip) * self._lanes)


def emit_finish(module: ir.Module, target: Target, strips: int) -> ir.Function:
    """`finish(words, strip, out rows, rows, y)`: results [rows][strips][lanes] to `out`, with bias and what was there, if asked."""
    name, lanes = f"linear.finish.{target.lanes}.{strips}", target.lanes
    if name in module.globals:
        return module.globals[name]
    f = internal_function(module, name, [PTR, I64, PTR, I64, PTR])
    b, (words, strip, out_rows, rows, y) = f.b, f.args
    n, stride = f.load(words, Word.N, I64), f.load(words, Word.STRIDE, I64)
    bias, accumulate = f.load(words, Word.BIAS, PTR), f.load(words, Word.ACCUMULATE, I64)
    has_bias, adds = b.icmp_unsigned("!=", b.ptrtoint(bias, I64), i64(0)), b.icmp_signed("!=", accumulate, i64(0))
    out = f.load(words, Word.OUT, PTR)

    def put(row_out: Value, source: Value, output: Value, width: int) -> None:
        value = f.variable(vector(F32, width), f.load_vector(source, 0, F32, width))
        with b.if_then(has_bias):
            value.set(b.fadd(value.get(), f.load_vector(bias, output, F32, width)))
        with b.if_then(adds):
            value.set(b.fadd(f.load_vector(row_out, output, F32, width), value.get()))
        f.store_vector(value.get(), row_out, output)

    with f.loop(i64(0), rows) as row:
        row_out = f.at(out, b.mul(f.load(out_rows, row, I64), stride), F32)
        for index in range(strips):
            source = f.at(y, b.mul(b.add(b.mul(row, i64(strips)), i64(index)), i64(lanes)), F32)
            first = b.mul(b.add(strip, i64(index)), i64(lanes))
            with b.if_else(b.icmp_signed("<=", b.add(first, i64(lanes)), n)) as (whole, ragged):
                with whole:
                    put(row_out, source, first, lanes)
                with ragged, f.loop(first, n) as output:
                    put(row_out, f.at(source, b.sub(output, first), F32), output, 1)
    f.done()
    return f.value
