"""Elements of the pool become float32 and back exactly as numpy says, with and without the processor's instructions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from llvmlite import ir

from tripower.backends.picolm.native.emit import F32, I16, Kernel, i64
from tripower.backends.picolm.native.kernels.attention.kv import Elements, pieces
from tripower.backends.picolm.native.target import Target


def build_widen(module: ir.Module, target: Target, name: str) -> None:
    """Words: 0 float16 [16 * tiles], 1 float32 [16 * tiles]."""
    kernel = Kernel(module, name)
    first = kernel.b.mul(kernel.tile, i64(16))
    kernel.store_vector(Elements(kernel, target, "f16").load(kernel.pointer(0), first, 16), kernel.pointer(1), first)
    kernel.done()


def build_narrow(module: ir.Module, target: Target, name: str) -> None:
    """Words: 0 float32 [16 * tiles], 1 float16 [16 * tiles]; the last two one by one."""
    kernel = Kernel(module, name)
    b, elements = kernel.b, Elements(kernel, target, "f16")
    for offset, lanes in ((0, 8), (8, 4), (12, 2), (14, 1), (15, 1)):
        first = b.add(b.mul(kernel.tile, i64(16)), i64(offset))
        kernel.store_vector(elements.narrow(kernel.load_vector(kernel.pointer(0), first, F32, lanes)), kernel.pointer(1), first)
    assert elements.kind == I16
    kernel.done()


def interesting() -> Iterator[np.float32]:
    """Each float16, what lies half way to the next and just beside that, and what no float16 is near to."""
    exact = np.arange(1 << 15, dtype=np.uint16).view(np.float16)[:0x7C01].astype(np.float32)
    half_way = (exact[:-2] + exact[1:-1]) / 2
    beside = [np.nextafter(half_way, np.float32(direction)) for direction in (0, np.inf)]
    odd = np.array([65519.99, 65520.0, 1e9, 3e38, 1e-8, 1e-30, 1e-45, np.inf], np.float32)
    yield from np.concatenate([exact, half_way, *beside, odd])


def test_each_float16_is_widened_exactly(build_kernel: Any, target: Target) -> None:
    source = np.arange(1 << 16, dtype=np.uint16)
    out = np.zeros(1 << 16, np.float32)
    build_kernel(build_widen, target)([source, out], range(len(source) // 16))
    np.testing.assert_array_equal(out, source.view(np.float16).astype(np.float32))
    assert (np.signbit(out) == (source >= 0x8000)).all()


def test_float32_is_rounded_half_to_even(build_kernel: Any, target: Target) -> None:
    positive = np.fromiter(interesting(), np.float32)
    source = np.concatenate([positive, -positive])
    source = np.resize(source, -(-len(source) // 16) * 16)
    out = np.zeros(len(source), np.uint16)
    build_kernel(build_narrow, target)([source, out], range(len(source) // 16))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out, source.astype(np.float16).view(np.uint16))


def test_nan_stays_nan_with_the_same_bits_at_every_width(build_kernel: Any, target: Target) -> None:
    bits = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFF812345] * 16, np.uint32)
    out = np.zeros(len(bits), np.uint16)
    build_kernel(build_narrow, target)([bits, out], range(len(bits) // 16))
    assert np.isnan(out.view(np.float16)).all()
    np.testing.assert_array_equal(out[:5], [0x7E00, 0xFE00, 0x7E00, 0x7FFF, 0xFE09])


@pytest.mark.parametrize(("count", "wanted"), [(0, []), (16, [(0, 16)]), (43, [(0, 16), (16, 16), (32, 8), (40, 2), (42, 1)])])
def test_pieces_cover_a_count_with_the_widest_vectors_first(count: int, wanted: list[tuple[int, int]]) -> None:
    assert pieces(count) == wanted
