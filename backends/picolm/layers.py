"""The pieces that architectures are made of, in plain torch and float32: this is the reference that faster paths are checked against."""

from __future__ import annotations

import torch
from torch.nn import functional

from tripower.backends.picolm.hyperparameters import RopeShape
from tripower.runtime.kernel.errors import ModelRefused

ROPE_FACTORS = "rope_freqs.weight"
NARROW_ROWS = 8


def linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`states @ weight.T + bias`: [rows, inputs] with [outputs, inputs] to [rows, outputs], contiguous.

    A few rows are computed as `weight @ states.T`, and a single one beside a copy of itself: with the large operand first the CPU
    library reads the weights once at the speed of memory, which it does not for a matrix times a vector (2 to 3 times as fast in
    float32 with MKL). The products and their number are the same; the order of summation is the library's in both cases.
    """
    rows = len(states)
    if not 0 < rows <= NARROW_ROWS:
        return functional.linear(states, weight, bias)
    columns = states.expand(2, -1).contiguous().t() if rows == 1 else states.t()
    result = torch.mm(weight, columns)[:, :rows].t().contiguous()
    return result if bias is None else result.add_(bias)


def rms_norm(states: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """`states / sqrt(mean(states ** 2) + epsilon) * weight` over the last dimension."""
    return functional.rms_norm(states, weight.shape, weight, epsilon)


class Rope:
    """Rotary position embedding (Su et al., "RoFormer", 2021): pairs of elements are turned by an angle that grows with position.

    `factors`, float32 [dimensions / 2], divide the frequencies, as the file's `rope_freqs.weight` says (Llama 3 stretches the slow
    ones); `ModelRefused` if one is not above zero. Angles are computed in float64, since a float32 product is off by a thousandth of a turn at position 10,000.
    """

    def __init__(self, shape: RopeShape, factors: torch.Tensor | None = None) -> None:
        exponents = torch.arange(0, shape.dimensions, 2, dtype=torch.float64) / shape.dimensions
        self._frequencies = shape.scale * shape.base**-exponents
        if factors is not None:
            if not (torch.isfinite(factors) & (factors > 0)).all():
                raise ModelRefused("a factor of RoPE frequencies is not above zero", code="bad_value", param=ROPE_FACTORS)
            self._frequencies /= factors

    def turns(self, positions: torch.Tensor) -> torch.Tensor:
        """Turns for int64 [rows] positions: unit complex numbers, complex64 [rows, 1, dimensions / 2]."""
        angles = positions[:, None, None] * self._frequencies
        return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def turn_adjacent(states: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turn elements (0, 1), (2, 3), … of each head, [rows, heads, head_size]; those beyond the turns stay. GGUF's `norm` order."""
    size = 2 * turns.shape[-1]
    pairs = torch.view_as_complex(states[..., :size].reshape(*states.shape[:-1], -1, 2))
    turned = torch.view_as_real(pairs * turns).flatten(-2)
    return turned if size == states.shape[-1] else torch.cat((turned, states[..., size:]), dim=-1)


def turn_halves(states: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turn elements (0, n), (1, n + 1), … of each head, n half the turned size. GGUF's `neox` order."""
    half = turns.shape[-1]
    first, second, rest = states[..., :half], states[..., half : 2 * half], states[..., 2 * half :]
    cosine, sine = turns.real, turns.imag
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine, rest), dim=-1)
