"""The 4-bit types of GGUF as whole numbers from 0 to 15 with a scale and an offset for each 32 of them.

`Q4_0`, `Q4_1` and `Q4_K` all mean `value = scale * (number - 8) + zero` for groups of 32 elements, which is the form that torch's int4
product takes: `Q4_0` stores the scale alone, `Q4_1` scale and minimum, `Q4_K` both as six bits each below two scales for 256 elements.
Numbers are taken over as they are. Scales and zeros are exact here, in float32; the product wants them in bfloat16 and rounds them.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tripower.backends.gguf.layout import TensorInfo

GROUP = 32
MIDDLE = 8
"""What torch's int4 product takes from each number before it multiplies."""
INT4_TYPES = frozenset({"Q4_0", "Q4_1", "Q4_K"})

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class Int4Values(msgspec.Struct, frozen=True):
    """A matrix: `numbers` uint8 [outputs, inputs] from 0 to 15, `scales` and `zeros` float32 [outputs, inputs / 32]."""

    numbers: Bytes
    scales: Floats
    zeros: Floats

    def values(self) -> Floats:
        """What they stand for, float32 [outputs, inputs]."""
        grouped = self.numbers.reshape(*self.scales.shape, GROUP).astype(np.float32) - MIDDLE
        found: Floats = (grouped * self.scales[..., None] + self.zeros[..., None]).reshape(self.numbers.shape)
        return found


def unpack_int4(tensor: TensorInfo, data: Bytes) -> Int4Values:
    """Take the blocks of a matrix apart; `data` uint8 [nbytes], the type one of `INT4_TYPES`. Blocks for the arithmetic."""
    outputs, inputs = int(np.prod(tensor.shape[:-1], dtype=np.int64)), tensor.shape[-1]
    unpack = {"Q4_0": _unpack_q4_0, "Q4_1": _unpack_q4_1, "Q4_K": _unpack_q4_k}[tensor.type_name]
    numbers, scales, zeros = unpack(data.reshape(outputs, tensor.row_bytes))
    return Int4Values(numbers.reshape(outputs, inputs), scales.reshape(outputs, -1), zeros.reshape(outputs, -1))


def _unpack_q4_0(rows: Bytes) -> tuple[Bytes, Floats, Floats]:
    """Blocks of 32: a float16 scale, then 16 bytes whose low halves come first."""
    blocks = rows.reshape(-1, 18)
    scales = _halves(blocks[:, :2])
    return _nibbles(blocks[:, 2:]), scales, np.zeros_like(scales)


def _unpack_q4_1(rows: Bytes) -> tuple[Bytes, Floats, Floats]:
    """The same with a float16 minimum behind the scale."""
    blocks = rows.reshape(-1, 20)
    scales, minima = _halves(blocks[:, :2]), _halves(blocks[:, 2:4])
    return _nibbles(blocks[:, 4:]), scales, minima + MIDDLE * scales


def _unpack_q4_k(rows: Bytes) -> tuple[Bytes, Floats, Floats]:
    """Blocks of 256: two float16 scales, 12 bytes with eight scales and eight minima of six bits, four times 32 bytes of halves."""
    blocks = rows.reshape(-1, 144)
    packed = blocks[:, 4:16]
    low, high = packed[:, :4], packed[:, 4:8]
    rest, tops = packed[:, 8:], 0x30
    scales = np.concatenate((low & 63, (rest & 15) | ((low >> 2) & tops)), axis=1)
    minima = np.concatenate((high & 63, (rest >> 4) | ((high >> 2) & tops)), axis=1)
    each = scales.astype(np.float32) * _halves(blocks[:, :2])
    offsets = minima.astype(np.float32) * _halves(blocks[:, 2:4])
    return _nibbles(blocks[:, 16:].reshape(-1, 32)), each, MIDDLE * each - offsets


def _nibbles(data: Bytes) -> Bytes:
    """The low halves of a block's bytes, then the high ones."""
    return np.concatenate((data & 15, data >> 4), axis=1)


def _halves(data: Bytes) -> Floats:
    """float16 numbers, [blocks, 2] bytes to float32 [blocks, 1]."""
    found: Floats = np.ascontiguousarray(data).view("<f2").astype(np.float32)
    return found
