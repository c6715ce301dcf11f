"""Where the key and the value of a position lie in the pool, and how its elements become float32 and back.

    pool[page][layer][kv head][keys: head_size x 64 positions | values: 64 positions x head_size]

Keys are transposed, so that one element of 64 positions is one contiguous run: scores of a page are then sums of long vectors, with
no sum across lanes. A position's page is `pages[slot][position / 64]`, its column `position % 64`.

Float16 is widened and rounded (half to even) by the processor where it can; otherwise by the integer arithmetic here, since no
library for it is linked to generated code.
"""

from __future__ import annotations

from typing import Any, Literal

from tripower.backends.picolm.native.emit import F16, F32, I16, I32, I64, Function, Kernel, Value, constant, i64, vector
from tripower.backends.picolm.native.target import Target

PAGE_POSITIONS = 64
KvElement = Literal["f32", "f16"]
POOL_WORDS = 6

_MAGNITUDE, _SIGN = 0x7FFF, 0x8000
_EXPONENT_SHIFT = 13
"""Float16 has 10 bits of fraction, float32 23."""
_REBIAS = 2.0**112
"""Float32 exponents are biased by 127, float16's by 15."""
_SUBNORMAL_ROUNDING = 0.5
"""A magnitude below 2**-14 added to this float32 is rounded to float16's subnormal step, 2**-24."""


def element_bytes(element: KvElement) -> int:
    return 4 if element == "f32" else 2


class PoolAddresses:
    """Addresses of one layer's blocks. Words from `word` on: pages int32 [slots][pages_per_slot], pages_per_slot, the pool's address,
    bytes of a page, offset of the layer in a page in bytes, bytes of a kv head's block.
    """

    def __init__(self, kernel: Kernel, word: int, slot: Value, kv_head: Value | None = None) -> None:
        b = self._b = kernel.b
        self._kernel = kernel
        self._pages = kernel.at(kernel.pointer(word), b.mul(slot, kernel.number(word + 1)), I32)
        self._page_bytes, self._block_bytes = kernel.number(word + 3), kernel.number(word + 5)
        self._layer = b.add(kernel.number(word + 2), kernel.number(word + 4))
        if kv_head is not None:
            self._layer = b.add(self._layer, b.mul(kv_head, self._block_bytes))

    def page(self, index: Value) -> Value:
        """The address, as an int64, of the block for the slot's page `index`: of the first kv head, or of the one given at first."""
        page = self._b.sext(self._kernel.load(self._pages, index, I32), I64)
        return self._b.add(self._layer, self._b.mul(page, self._page_bytes))

    def block(self, page: Value, kv_head: Value) -> Value:
        """The address, as an int64, of a kv head's block in a page."""
        return self._b.add(page, self._b.mul(kv_head, self._block_bytes))


class Elements:
    """Loads and stores of the pool's elements, as float32."""

    def __init__(self, function: Function, target: Target, element: KvElement) -> None:
        self._function = function
        self._wide, self.bytes = element == "f32", element_bytes(element)
        self._native = not (target.architecture == "x86_64" and target.lanes < 8)

    @property
    def kind(self) -> Any:
        """The scalar type that addresses are counted in."""
        return F32 if self._wide else I16

    def load(self, pointer: Value, index: Value | int, lanes: int) -> Value:
        """`lanes` elements from element `index` on."""
        if self._wide:
            return self._function.load_vector(pointer, index, F32, lanes)
        return self.widen(self._function.load_vector(pointer, index, I16, lanes))

    def widen(self, bits: Value) -> Value:
        """Float32 of float16 bits, an int16 or a vector of them."""
        b, lanes = self._function.b, _lanes(bits)
        if self._native:
            return b.fpext(b.bitcast(bits, vector(F16, lanes)), vector(F32, lanes))
        kind = vector(I32, lanes)
        wide = b.zext(bits, kind)
        magnitude = b.and_(wide, constant(kind, _MAGNITUDE))
        shifted = b.bitcast(b.shl(magnitude, constant(kind, _EXPONENT_SHIFT)), vector(F32, lanes))
        scaled = b.bitcast(b.fmul(shifted, constant(vector(F32, lanes), _REBIAS)), kind)
        special = b.icmp_unsigned(">=", magnitude, constant(kind, 0x7C00))
        infinite = b.or_(scaled, constant(kind, 0x7F800000))
        sign = b.shl(b.and_(wide, constant(kind, _SIGN)), constant(kind, 16))
        return b.bitcast(b.or_(b.select(special, infinite, scaled), sign), vector(F32, lanes))

    def narrow(self, value: Value) -> Value:
        """The element of a float32, or a vector of them: as it is, or the bits of float16."""
        b, lanes = self._function.b, _lanes(value)
        if self._wide:
            return value
        if self._native:
            return b.bitcast(b.fptrunc(value, vector(F16, lanes)), vector(I16, lanes))
        kind = vector(I32, lanes)
        bits = b.bitcast(value, kind)
        magnitude = b.and_(bits, constant(kind, 0x7FFFFFFF))
        sign = b.and_(b.lshr(bits, constant(kind, 16)), constant(kind, _SIGN))
        found = self._narrow_magnitude(magnitude, lanes)
        return b.trunc(b.or_(found, sign), vector(I16, lanes))

    def _narrow_magnitude(self, magnitude: Value, lanes: int) -> Value:
        b, kind = self._function.b, vector(I32, lanes)
        # normal: rebias, then add half of the last place kept, less one unless that place is odd
        odd = b.and_(b.lshr(magnitude, constant(kind, _EXPONENT_SHIFT)), constant(kind, 1))
        rounded = b.add(b.sub(magnitude, constant(kind, 112 << 23)), b.add(odd, constant(kind, 0xFFF)))
        normal = b.lshr(rounded, constant(kind, _EXPONENT_SHIFT))
        # below 2**-14: the addition rounds
        half = constant(vector(F32, lanes), _SUBNORMAL_ROUNDING)
        added = b.fadd(b.bitcast(magnitude, vector(F32, lanes)), half)
        small = b.sub(b.bitcast(added, kind), b.bitcast(half, kind))
        found = b.select(b.icmp_unsigned("<", magnitude, constant(kind, 113 << 23)), small, normal)
        # 65520 and above: infinity; NaN: a quiet one with the upper bits kept, as the processor does
        found = b.select(b.icmp_unsigned(">=", magnitude, constant(kind, 0x477FF000)), constant(kind, 0x7C00), found)
        payload = b.and_(b.lshr(magnitude, constant(kind, _EXPONENT_SHIFT)), constant(kind, 0x3FF))
        nan = b.or_(payload, constant(kind, 0x7E00))
        return b.select(b.icmp_unsigned(">", magnitude, constant(kind, 0x7F800000)), nan, found)


def _lanes(value: Value) -> int:
    return getattr(value.type, "count", 1)


def pieces(count: int, widest: int = 16) -> list[tuple[int, int]]:
    """`count` elements as vectors, (first element, lanes) each: the widest first, then each power of two at most once."""
    found, first = [], 0
    while first < count:
        lanes = widest
        while lanes > count - first:
            lanes //= 2
        found.append((first, lanes))
        first += lanes
    return found


def pool_position(kernel: Kernel, position: Value) -> tuple[Value, Value]:
    """Index of a position's page and its column there, int64 each."""
    b = kernel.b
    return b.lshr(position, i64(6)), b.and_(position, i64(PAGE_POSITIONS - 1))
