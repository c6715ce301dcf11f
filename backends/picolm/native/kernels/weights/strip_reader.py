"""Reading a strip in emitted code: pairs of quants as 16-bit integers, and the float32 scales of a group.

The layout is that of `formats`. Everything here works on `lanes` outputs at once.
"""

from __future__ import annotations

from llvmlite import ir

from tripower.backends.picolm.native.emit import F16, F32, I8, I16, I32, PTR, VOID, Function, Value, constant, i32, i64, vector
from tripower.backends.picolm.native.kernels.weights.formats import BLOCK, STEP, Fine, Format
from tripower.backends.picolm.native.target import Target

LINE = 64
"""Bytes of a cache line."""
SECOND_LEVEL = 2
"""Prefetched weights wait in the second-level cache: the first is full of the rows' inputs."""


def strip_bytes(f: Function, form: Format, k: Value, lanes: int) -> Value:
    """Bytes of a strip of `k` inputs."""
    sizes = sections(f, form, k, lanes)
    total = sizes[0]
    for size in sizes[1:]:
        total = f.b.add(total, size)
    return total


def sections(f: Function, form: Format, k: Value, lanes: int) -> list[Value]:
    """Bytes of a strip's sections, as `Format.sections` counts them."""
    blocks = over(f, k, BLOCK)
    planes = [f.b.mul(blocks, i64(bits * lanes * 4)) for bits in form.planes]
    fine = _whole(f, f.b.mul(blocks, i64(form.fine_entries * lanes)), lanes)
    coarse = _whole(f, f.b.mul(over(f, k, form.coarse_inputs), i64(form.coarse_entries * lanes * 2)), lanes)
    return [*planes, fine, coarse]


def over(f: Function, value: Value, power: int) -> Value:
    """A count divided by a power of two."""
    return value if power == 1 else f.b.lshr(value, i64(power.bit_length() - 1))


def prefetch_lines(f: Function, pointer: Value, size: int) -> None:
    """Ask for `size` bytes. An address that is not mapped does no harm."""
    for at in range(0, size, LINE):
        f.intrinsic("prefetch", [PTR], [f.at(pointer, at, I8) if at else pointer, i32(0), i32(SECOND_LEVEL), i32(1)], VOID)


def _whole(f: Function, size: Value, lanes: int) -> Value:
    step = 4 * lanes
    return f.b.and_(f.b.add(size, i64(step - 1)), i64(-step))


class StripReader:
    """One strip at `pointer`, all its lanes or, if `lane` is given, that one alone.

    A step is four pairs; `first_pair` and `Format.pair_offsets` say which.
    """

    def __init__(self, f: Function, form: Format, target: Target, pointer: Value, k: Value, lane: Value | None = None) -> None:
        self._f, self._form, self._target = f, form, target
        self._stride, self._lane = target.lanes, lane
        self._lanes = target.lanes if lane is None else 1
        starts = [pointer]
        for size in sections(f, form, k, self._stride)[:-1]:
            starts.append(f.at(starts[-1], size, I8))
        *self._planes, self._fine, self._coarse = starts

    def prefetch(self, group: Value, ahead: Value) -> None:
        """Ask for the same group of the strip `ahead` bytes further on."""
        form, b = self._form, self._f.b
        sections = [(plane, bits * 4, BLOCK) for plane, bits in zip(self._planes, form.planes, strict=True)]
        sections.append((self._fine, form.fine_entries, BLOCK))
        if form.fine is Fine.NONE:
            sections.append((self._coarse, form.coarse_entries * 2, BLOCK))
        for section, size, inputs in sections:
            size = size * self._stride * form.group // inputs
            prefetch_lines(self._f, self._f.at(section, b.add(ahead, b.mul(group, i64(size))), I8), size)

    def first_pair(self, group: Value, step: Value) -> Value:
        """Number of the first pair of a step of a group, counted from the beginning of the row."""
        first = self._f.b.mul(step, i64(self._form.step_pairs))
        skipped = (STEP // 2 - self._form.step_pairs) * BLOCK // STEP
        return self._f.b.add(first, self._f.b.mul(group, i64(skipped))) if skipped else first

    def pairs(self, step: Value) -> list[Value]:
        """Quants of a step's four pairs, never negative: i32 lanes that hold two i16, the even input in the lower half."""
        found: list[Value] = []
        shift = 0
        for plane, bits in zip(self._planes, self._form.planes, strict=True):
            fields = self._fields(plane, bits, step, shift)
            found = [self._f.b.or_(low, high) for low, high in zip(found, fields, strict=True)] if found else fields
            shift += bits
        return found

    def _fields(self, plane: Value, bits: int, step: Value, to: int) -> list[Value]:
        """A plane's part of four pairs, moved to bit `to`."""
        b = self._f.b
        if bits == 8:
            first = b.shl(step, i64(1))
            words = [self._load(plane, at, I32) for at in (first, b.add(first, i64(1)))]
            return [self._field(word, at, bits, to, top=at == 8) for word in words for at in (0, 8)]
        steps = 4 // bits  # of one word
        word = self._load(plane, over(self._f, step, steps), I32)
        if steps > 1:
            at = b.mul(b.and_(step, i64(steps - 1)), i64(4 * bits))
            word = (
                b.lshr(word, self._f.splat(b.trunc(at, I32), self._lanes))
                if self._lanes > 1
                else b.lshr(word, b.trunc(at, I32))
            )
        return [self._field(word, pair * bits, bits, to, top=steps == 1 and pair == 3) for pair in range(STEP // 2)]

    def _field(self, word: Value, at: int, bits: int, to: int, *, top: bool) -> Value:
        """Bits `at` and those after it of both halves of a word, moved to bit `to`."""
        b, kind = self._f.b, vector(I32, self._lanes)
        if top and to == 0 and self._lanes > 1:  # the top field of a half: a 16-bit shift leaves nothing to mask
            halves = vector(I16, 2 * self._lanes)
            return b.bitcast(b.lshr(b.bitcast(word, halves), constant(halves, at)), kind)
        if at > to:
            word = b.lshr(word, constant(kind, at - to))
        elif at < to:
            word = b.shl(word, constant(kind, to - at))
        return b.and_(word, constant(kind, ((1 << bits) - 1) * 0x00010001 << to))

    def scale(self, group: Value) -> Value:
        """Scale of a group: float32 lanes."""
        scale = self._coarse_entry(group, 0)
        if self._form.fine is Fine.NONE:
            return scale
        return self._f.b.fmul(scale, self._fine_scale(group))

    def minimum(self, group: Value) -> Value:
        """What is added to every value of the group; float32 lanes. For types that have a minimum."""
        minimum = self._coarse_entry(group, 1)
        if self._form.fine is Fine.NONE:
            return minimum
        return self._f.b.fneg(self._f.b.fmul(minimum, self._fine_minimum(group)))

    def _coarse_entry(self, group: Value, entry: int) -> Value:
        at = over(self._f, group, self._form.coarse_inputs // self._form.group)
        return half_to_float(self._f, self._target, self._load(self._coarse, at, I16, entry, self._form.coarse_entries))

    def _fine_scale(self, group: Value) -> Value:
        b, kind = self._f.b, vector(I32, self._lanes)
        raw = self._fine_entry(group, 0)
        if self._form.fine is Fine.SIGNED:
            return b.sitofp(b.sext(raw, kind), vector(F32, self._lanes))
        wide = b.zext(raw, kind)
        if self._form.fine is Fine.NIBBLES:
            wide = b.and_(wide, constant(kind, 15))
        return b.sitofp(wide, vector(F32, self._lanes))

    def _fine_minimum(self, group: Value) -> Value:
        b, kind = self._f.b, vector(I32, self._lanes)
        if self._form.fine is Fine.NIBBLES:
            wide = b.lshr(b.zext(self._fine_entry(group, 0), kind), constant(kind, 4))
        else:
            wide = b.zext(self._fine_entry(group, 1), kind)
        return b.sitofp(wide, vector(F32, self._lanes))

    def _fine_entry(self, group: Value, entry: int) -> Value:
        return self._load(self._fine, group, I8, entry, self._form.group_entries)

    def _load(self, pointer: Value, index: Value, element: ir.Type, entry: int = 0, entries: int = 1) -> Value:
        """Entry `entry` of item `index`, where an item has so many entries of as many elements as a strip has lanes."""
        at = self._f.b.mul(index, i64(entries * self._stride))
        if entry:
            at = self._f.b.add(at, i64(entry * self._stride))
        if self._lane is not None:
            return self._f.load(pointer, self._f.b.add(at, self._lane), element)
        return self._f.load_vector(pointer, at, element, self._lanes)


def half_to_float(f: Function, target: Target, bits: Value) -> Value:
    """float16 given as i16 lanes (or one i16) to float32, exactly."""
    lanes = bits.type.count if isinstance(bits.type, ir.VectorType) else 1
    if target.architecture != "x86_64" or target.lanes >= 8:
        return f.b.fpext(f.b.bitcast(bits, vector(F16, lanes)), vector(F32, lanes))
    # no F16C: move exponent and fraction, then let a multiplication by 2^112 correct the bias, subnormals included
    b, kind, floats = f.b, vector(I32, lanes), vector(F32, lanes)
    wide = b.zext(bits, kind)
    magnitude = b.and_(wide, constant(kind, 0x7FFF))
    scaled = b.fmul(b.bitcast(b.shl(magnitude, constant(kind, 13)), floats), constant(floats, 2.0**112))
    special = b.or_(b.shl(magnitude, constant(kind, 13)), constant(kind, 0x7F800000))
    finite = b.icmp_unsigned("<", magnitude, constant(kind, 0x7C00))
    sign = b.shl(b.and_(wide, constant(kind, 0x8000)), constant(kind, 16))
    return b.bitcast(b.or_(b.select(finite, b.bitcast(scaled, kind), special), sign), floats)
