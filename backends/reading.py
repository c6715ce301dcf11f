"""Copying a piece of an open file."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray


def read_at(descriptor: int, offset: int, target: NDArray[np.uint8]) -> None:
    """Fill `target`, uint8 [bytes], from `offset` on; what lies behind the end of the file stays as it was. Blocks."""
    view, done = target.data, 0
    while done < target.nbytes:
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if not count:
            return
        done += count
