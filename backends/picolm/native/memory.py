"""Memory that native code works on: numpy arrays that start on a cache line, and their addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT_BYTES = 64


def zeros(shape: int | tuple[int, ...], kind: Any) -> NDArray[Any]:
    """Zeros, C-contiguous, at a multiple of 64 bytes; committed by the system when first written."""
    dtype = np.dtype(kind)
    sizes = (shape,) if isinstance(shape, int) else shape
    count = int(np.prod(sizes, dtype=np.int64)) * dtype.itemsize
    memory = np.zeros(count + ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT_BYTES
    aligned: NDArray[Any] = memory[start : start + count].view(dtype).reshape(sizes)
    return aligned


def address(array: NDArray[Any]) -> int:
    """Where the array begins. Whoever stores it must keep the array."""
    assert array.flags.c_contiguous
    return int(array.ctypes.data)
