"""Random weights in the k-quant types, which the package `gguf` reads but does not write."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np

BLOCK = 256
LAYOUT: dict[str, tuple[int, int, int | None, float]] = {
    "Q2_K": (84, 80, 82, 1.5),
    "Q3_K": (110, 108, None, 0.0),
    "Q4_K": (144, 0, 2, 7.5),
    "Q5_K": (176, 0, 2, 15.5),
    "Q6_K": (210, 208, None, 0.0),
}
"""Bytes of a block, where its float16 scale and its minimum's scale lie, and minimum over scale that centres the values."""


def random_blocks(kind: str, shape: tuple[int, ...], seed: int, size: float) -> Any:
    """uint8 [..., bytes of a row]: weights whose root of the mean square is about `size`."""
    size_bytes, scale_at, minimum_at, minimum = LAYOUT[kind]
    random = np.random.default_rng(seed)
    blocks = int(np.prod(shape)) // BLOCK
    raw = random.integers(0, 256, (blocks, size_bytes), dtype=np.uint8)
    spread = random.uniform(0.5, 1.5, blocks)

    def scale(factor: float) -> Any:
        for at, share in ((scale_at, 1.0), (minimum_at, minimum)):
            if at is not None:
                raw[:, at : at + 2] = (factor * share * spread).astype(np.float16).view(np.uint8).reshape(-1, 2)
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])

    scale(float(size / np.sqrt((scale(1.0) ** 2).mean())))
    return raw.reshape(*shape[:-1], -1)
