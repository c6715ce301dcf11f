"""Blocks of a GGUF file taken apart: bit planes of the quants, and scales as they are.

Each function gets the blocks of one type, uint8 [n, block bytes], and gives `Parts`. The layouts are ggml's, as the `gguf` package
reads them; a test compares every type with that package's values.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]


class Parts(msgspec.Struct):
    """Blocks of one type."""

    planes: tuple[Bytes, ...]
    """Fields of each plane, lowest bits first: uint8 [n, inputs]."""
    coarse: Bytes
    """The bytes of float16 values, [n, entries * 2]."""
    fine: Bytes | None = None
    """uint8 [n, groups, entries]; k-quants only."""
    words: Words | None = None
    """The lowest plane as words, uint32 [n, words], where that needs no fields; `planes` then begins with the next one."""


def _halves(packed: Bytes) -> Words:
    """Bytes by fours to words that hold the first and the third byte in the lower half, the others in the upper one."""
    words = np.ascontiguousarray(packed).view(np.uint32)
    differing = words >> np.uint32(8)
    differing ^= words
    differing &= np.uint32(0xFF00)
    swapped = words ^ differing
    differing <<= np.uint32(8)
    swapped ^= differing
    return swapped


def _nibbles(packed: Bytes, run: int) -> Bytes:
    """Runs of `run` bytes: first the lower nibbles of a run, then the upper ones."""
    runs = packed.reshape(len(packed), -1, 1, run)
    return np.concatenate([runs & 15, runs >> 4], axis=2).reshape(len(packed), -1)


def _fields(packed: Bytes, bits: int, run: int) -> Bytes:
    """The same for fields of 1 or 2 bits: a run's lowest fields first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    return ((packed.reshape(len(packed), -1, 1, run) >> shifts) & np.uint8((1 << bits) - 1)).reshape(len(packed), -1)


def _bits(packed: Bytes) -> Bytes:
    return np.unpackbits(packed, axis=1, bitorder="little")


def _q4_0(raw: Bytes) -> Parts:
    return Parts((), raw[:, :2], words=_halves(raw[:, 2:]))


def _q4_1(raw: Bytes) -> Parts:
    return Parts((), raw[:, :4], words=_halves(raw[:, 4:]))


def _q5_0(raw: Bytes) -> Parts:
    return Parts((_bits(raw[:, 2:6]),), raw[:, :2], words=_halves(raw[:, 6:]))


def _q5_1(raw: Bytes) -> Parts:
    return Parts((_bits(raw[:, 4:8]),), raw[:, :4], words=_halves(raw[:, 8:]))


def _q8_0(raw: Bytes) -> Parts:
    words = _halves(raw[:, 2:])
    words ^= np.uint32(0x80808080)
    return Parts((), raw[:, :2], words=words)


def _q2_k(raw: Bytes) -> Parts:
    return Parts((_fields(raw[:, 16:80], 2, 32),), raw[:, 80:84], raw[:, :16, None])


def _q3_k(raw: Bytes) -> Parts:
    low, high = _fields(raw[:, 32:96], 2, 32), _fields(raw[:, :32], 1, 32)
    four, two = _nibbles(raw[:, 96:104], 8), _fields(raw[:, 104:108], 2, 4)
    scales = (four | (two << np.uint8(4))) - np.uint8(32)
    return Parts((low, high), raw[:, 108:110], scales[:, :, None])


def _scales_and_minima(packed: Bytes) -> Bytes:
    """Twelve bytes to eight scales and eight minima of six bits."""
    scale, minimum, mixed = (packed[:, at : at + 4] for at in (0, 4, 8))
    scales = np.concatenate([scale & 63, (mixed & 15) | ((scale >> 2) & 48)], axis=1)
    minima = np.concatenate([minimum & 63, (mixed >> 4) | ((minimum >> 2) & 48)], axis=1)
    return np.stack([scales, minima], axis=2)


def _q4_k(raw: Bytes) -> Parts:
    return Parts((_nibbles(raw[:, 16:], 32),), raw[:, :4], _scales_and_minima(raw[:, 4:16]))


def _q5_k(raw: Bytes) -> Parts:
    return Parts((_nibbles(raw[:, 48:], 32), _fields(raw[:, 16:48], 1, 32)), raw[:, :4], _scales_and_minima(raw[:, 4:16]))


def _q6_k(raw: Bytes) -> Parts:
    planes = (_nibbles(raw[:, :128], 64), _fields(raw[:, 128:192], 2, 32))
    return Parts(planes, raw[:, 208:210], raw[:, 192:208, None])


TAKE_APART: dict[str, tuple[int, Callable[[Bytes], Parts]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
"""Bytes of a block, and how it is taken apart."""
