"""The pieces that the reference model is made of, in plain torch and float32: what faster paths are checked against."""

from __future__ import annotations

import torch
from torch.nn import functional

from tripower.backends.picolm.decoder import EXPERT_WEIGHT_SUM_MIN, RopeShape

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


def softcap(states: torch.Tensor, cap: float) -> torch.Tensor:
    """`cap * tanh(states / cap)`, or `states` themselves if `cap` is 0."""
    return torch.tanh(states / cap) * cap if cap else states


class Rope:
    """One RoPE of a decoder. See `RopeShape` for its frequencies; `factors` are those of `rope_freqs.weight`, float32 [pairs].

    Raises `ModelRefused` if one of these is not above zero.
    """

    def __init__(self, shape: RopeShape, factors: torch.Tensor | None = None) -> None:
        self._frequencies = torch.from_numpy(shape.frequencies(None if factors is None else factors.numpy()))
        self._amplitude = torch.tensor(shape.amplitude, dtype=torch.float64)

    def turns(self, positions: torch.Tensor) -> torch.Tensor:
        """Turns for int64 [rows] positions: complex numbers of length `amplitude`, complex64 [rows, 1, pairs]."""
        angles = positions[:, None, None] * self._frequencies
        return torch.polar(self._amplitude.expand_as(angles), angles).to(torch.complex64)


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


def choose_experts(scores: torch.Tensor, used: int, *, normalised: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The `used` experts that a router scores highest, of float32 [rows, experts]: their weights and their numbers, [rows, used].

    Weights are the softmax over all experts; if `normalised`, divided by the sum of the chosen ones.
    """
    weights, chosen = torch.softmax(scores, dim=-1).topk(used, dim=-1)
    if normalised:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=EXPERT_WEIGHT_SUM_MIN)
    return weights, chosen
