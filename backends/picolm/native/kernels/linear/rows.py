"""The inner loop over groups of quantised weights: some rows by some strips, for all inputs."""

from __future__ import annotations

from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, I8, I32, I64, PTR, Function, Value, Variable, constant, i32, i64, vector
from tripower.backends.picolm.native.kernels.linear.dot import dot_pairs
from tripower.backends.picolm.native.kernels.linear.results import Results, ahead_bytes, internal_function, strip_pointers
from tripower.backends.picolm.native.kernels.linear.words import Word
from tripower.backends.picolm.native.kernels.weights.formats import BLOCK, STEP, Format
from tripower.backends.picolm.native.kernels.weights.strip_reader import StripReader, over, strip_bytes
from tripower.backends.picolm.native.target import Target

SUM_INPUTS = 16
"""Inputs of one entry of `sums` and `totals`."""
UNROLLED_DOTS_MAX = 32
"""Steps of a group are unrolled up to so many dot products; beyond that, code grows and speed does not."""


def emit_rows(module: ir.Module, name: str, form: Format, target: Target, rows: int, strips: int) -> Function:
    """`name(words, weights, strip, input rows, y)`: y[rows][strips][lanes] of strips `strip` and those after it."""
    f = internal_function(module, name, [PTR, PTR, I64, PTR, PTR])
    _Rows(f, form, target, rows, strips).emit()
    return f


class _Rows:
    """The function under construction: pointers to strips and rows, and the results so far."""

    def __init__(self, f: Function, form: Format, target: Target, rows: int, strips: int) -> None:
        self.f, self.form, self.target, self.rows, self.strips, self.lanes = f, form, target, rows, strips, target.lanes
        self.k = f.load(f.args[0], Word.K, I64)
        size = strip_bytes(f, form, self.k, self.lanes)
        self.ahead = ahead_bytes(f, size, strips)
        pointers = strip_pointers(f, strips, self.lanes, size)
        self.readers = [StripReader(f, form, target, pointer, self.k) for pointer in pointers]
        self.q = self._row_pointers(Word.Q, 2, 1)
        self.scale = self._row_pointers(Word.SCALE, 4, BLOCK)
        self.sums = self._row_pointers(Word.SUMS, 4, SUM_INPUTS) if form.offset else []
        self.totals = self._row_pointers(Word.TOTALS, 4, SUM_INPUTS) if form.minimum else []
        registers = 2 * rows * strips + 8 <= (32 if self.lanes == 16 else 16)
        self.y = Results(f, f.args[4], rows, strips, self.lanes, registers=registers)

    def _row_pointers(self, word: Word, size: int, inputs: int) -> list[Value]:
        """Where each row begins in an array with `size` bytes for every so many inputs."""
        f = self.f
        base, stride = f.load(f.args[0], word, PTR), f.b.mul(over(f, self.k, inputs), i64(size))
        return [f.at(base, f.b.mul(f.load(f.args[3], row, I64), stride), I8) for row in range(self.rows)]

    def emit(self) -> None:
        f, form = self.f, self.form
        steps = form.group // STEP
        unrolled = steps
        while unrolled > 1 and unrolled * STEP // 2 * self.rows * self.strips > UNROLLED_DOTS_MAX:
            unrolled //= 2
        with f.loop(i64(0), over(f, self.k, form.group)) as group:
            for reader in self.readers:
                reader.prefetch(group, self.ahead)
            sums = [[f.variable(vector(I32, self.lanes), start) for _ in self.readers] for start in self._starts(group)]
            first = f.b.mul(group, i64(steps))
            if unrolled == steps:
                self._steps(group, first, steps, sums)
            else:
                with f.loop(first, f.b.add(first, i64(steps)), unrolled) as step:
                    self._steps(group, step, unrolled, sums)
            self._add(group, sums)
        self.y.store()
        f.done()

    def _steps(self, group: Value, first: Value, count: int, sums: list[list[Variable]]) -> None:
        """Dot products of some steps."""
        f = self.f
        first_pair = self.readers[0].first_pair(group, first)
        q = [f.at(row, first_pair, I32) for row in self.q]
        now = [[held.get() for held in row] for row in sums]
        for index in range(count):
            step = f.b.add(first, i64(index)) if index else first
            weights = [reader.pairs(step) for reader in self.readers]
            for pair, offset in enumerate(self.form.pair_offsets):
                for row in range(self.rows):
                    inputs = f.splat(f.load(q[row], index * self.form.step_pairs + offset, I32), self.lanes)
                    for strip, weight in enumerate(weights):
                        now[row][strip] = dot_pairs(f, self.target, now[row][strip], weight[pair], inputs)
        for variables, values in zip(sums, now, strict=True):
            for held, value in zip(variables, values, strict=True):
                held.set(value)

    def _starts(self, group: Value) -> list[Value]:
        """Sums begin with what the offset of the quants takes away: it is the same for every output."""
        if not self.form.offset:
            return [constant(vector(I32, self.lanes), 0)] * self.rows
        f, found = self.f, []
        for row in self.sums:
            total = f.load(row, self._first_sum(group), I32)
            if self.form.group > SUM_INPUTS:
                total = f.b.add(total, f.load(row, f.b.add(self._first_sum(group), i64(1)), I32))
            found.append(f.splat(f.b.mul(total, i32(-self.form.offset)), self.lanes))
        return found

    def _first_sum(self, group: Value) -> Value:
        return self.f.b.mul(group, i64(self.form.group // SUM_INPUTS))

    def _add(self, group: Value, sums: list[list[Variable]]) -> None:
        """The group's sums, scaled, to the results."""
        f, floats = self.f, vector(F32, self.lanes)
        scales = [reader.scale(group) for reader in self.readers]
        minima = [reader.minimum(group) for reader in self.readers] if self.form.minimum else []
        for row in range(self.rows):
            scale = f.splat(f.load(self.scale[row], over(f, group, BLOCK // self.form.group), F32), self.lanes)
            total = self._total(group, row) if minima else None
            for strip in range(self.strips):
                value = f.b.sitofp(sums[row][strip].get(), floats)
                value = f.fma(value, f.b.fmul(scales[strip], scale), self.y.get(row, strip))
                if minima:
                    value = f.fma(minima[strip], total, value)
                self.y.set(row, strip, value)

    def _total(self, group: Value, row: int) -> Value:
        f, first = self.f, self._first_sum(group)
        total = f.load(self.totals[row], first, F32)
        if self.form.group > SUM_INPUTS:
            total = f.b.fadd(total, f.load(self.totals[row], f.b.add(first, i64(1)), F32))
        return f.splat(total, self.lanes)
