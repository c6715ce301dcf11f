"""Projections on a device: a matrix in some form, and float32 rows times it.

Rows are float32 between the layers whatever a matrix is stored in; a projection rounds them to what its product takes and gives float32
back. Which form a matrix gets is decided by its type and shape alone, so that it can be said before anything is read.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional

from tripower.backends.picolm.accelerated.int4 import GROUP, INT4_TYPES, Int4Values

INT4_OUTPUTS = {"cuda": 8, "cpu": 16}
"""What the outputs of an int4 product must divide by, as torch's kernels have it."""
INT4_CAPABILITY = (8, 0)
"""The first CUDA architecture with the instruction that torch's int4 product is made of."""
TILE_INPUTS = 16
TRIED_INPUTS = (32, 64, 128, 512)
INT4_ERROR_MAX = 0.05
"""Relative; rounding to bfloat16 gives about 0.005, and anything misplaced more than 1."""


class Projection(Protocol):
    """`forward`: float32 [rows, inputs] to float32 [rows, outputs]. `nbytes`: what a step reads of it."""

    nbytes: int

    def forward(self, rows: torch.Tensor) -> torch.Tensor: ...


class Dense:
    """A matrix of floating-point numbers, [outputs, inputs]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight, self._bias = weight, bias
        self.nbytes = weight.nbytes

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return _biased(functional.linear(rows.to(self.weight.dtype), self.weight).float(), self._bias)


class Int4:
    """A matrix of 4-bit numbers with bfloat16 scales and zeros for each 32: the product is torch's own, in bfloat16."""

    def __init__(self, values: Int4Values, device: torch.device, bias: torch.Tensor | None = None) -> None:
        numbers = torch.from_numpy(values.numbers)
        pairs = torch.stack((torch.from_numpy(values.scales), torch.from_numpy(values.zeros)), dim=-1)
        self._pairs = pairs.transpose(0, 1).to(device, torch.bfloat16).contiguous()
        self._packed = _pack(numbers, device)
        self._bias = bias
        self._multiply = torch._weight_int4pack_mm if device.type == "cuda" else torch._weight_int4pack_mm_for_cpu
        self.nbytes = self._packed.nbytes + self._pairs.nbytes

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return _biased(self._multiply(rows.bfloat16().contiguous(), self._packed, GROUP, self._pairs).float(), self._bias)


class Stacked:
    """Projections of the same rows whose forms differ: their outputs side by side."""

    def __init__(self, parts: Sequence[Projection], bias: torch.Tensor | None = None) -> None:
        self._parts, self._bias = tuple(parts), bias
        self.nbytes = sum(part.nbytes for part in parts)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return _biased(torch.cat([part.forward(rows) for part in self._parts], dim=-1), self._bias)


def takes_int4(type_name: str, outputs: int, inputs: int, device: torch.device) -> bool:
    """Whether a matrix of this type and shape can stay in 4 bits on the device."""
    if type_name not in INT4_TYPES or outputs % INT4_OUTPUTS[device.type] or inputs % GROUP:
        return False
    return int4_works(device)


@functools.cache
def int4_works(device: torch.device) -> bool:
    """Whether the device's int4 product multiplies by what was packed for it, tried once for each order of packing.

    The product is not part of torch's public interface: what it reads is known from its source, and believed only where it is seen.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < INT4_CAPABILITY:
        return False  # an attempt would leave the device unusable
    random = np.random.default_rng(0)
    for inputs in TRIED_INPUTS:
        numbers = random.integers(0, 16, (16, inputs), np.uint8)
        scales, zeros = random.uniform(0.5, 1.0, (2, 16, inputs // GROUP)).astype(np.float32)
        values = Int4Values(numbers, scales, zeros)
        rows = torch.from_numpy(random.standard_normal((3, inputs)).astype(np.float32))
        expected = rows @ torch.from_numpy(values.values()).T
        try:
            found = Int4(values, device).forward(rows.to(device)).cpu()
        except (RuntimeError, NotImplementedError):
            return False
        if not float((found - expected).norm() / expected.norm()) < INT4_ERROR_MAX:
            return False
    return True


def _pack(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """In the order that the device's product reads; `numbers` uint8 [outputs, inputs]."""
    inner_tiles = next(tiles for tiles in (8, 4, 2) if numbers.shape[1] % (tiles * TILE_INPUTS) == 0)
    if device.type == "cuda":
        pairs = (numbers[:, ::2] << 4 | numbers[:, 1::2]).to(device).contiguous()
        return torch._convert_weight_to_int4pack(pairs, inner_tiles)
    return torch._convert_weight_to_int4pack_for_cpu(numbers.int(), inner_tiles)


def _biased(result: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return result if bias is None else result + bias
