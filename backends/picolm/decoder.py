"""A decoder-only transformer as data: all that a forward pass must know besides the weights.

One description serves every path. `architectures` makes it from a model file, `torch_model` is the readable forward over it, and
faster paths are generated from it. So whatever distinguishes two families is a value here, never a branch on a family's name.

Weights go by their GGUF names, which every path shares: `token_embd.weight`, `output_norm.weight`, `output.weight` (absent: the
embedding is the head), `rope_freqs.weight`, and for layer N `blk.N.` with `attn_norm`, `attn_q`, `attn_k`, `attn_v`, `attn_output`,
`attn_q_norm`, `attn_k_norm`, `post_attention_norm`, `ffn_norm`, `ffn_gate`, `ffn_up`, `ffn_down`, `post_ffw_norm`, and with experts
`ffn_gate_inp`, `ffn_gate_exps`, `ffn_up_exps`, `ffn_down_exps`; each with `.weight`, a projection perhaps with `.bias`. Whether there
is a bias is what the file says by having the tensor.

A layer, `x` being the rows that come in and `norm` an RMS norm with the weights stored:

    h = attention(norm(x));    x = x + (post_attention_norm(h) if post_norms else h)
    h = feed_forward(norm(x)); x = x + (post_ffw_norm(h) if post_norms else h)

The forms and their defaults are those of llama.cpp, whose converter made the files.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tripower.runtime.kernel.errors import ModelRefused

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
ROPE_FACTORS = "rope_freqs.weight"
RAMP_WIDTH_MIN = 0.001
EXPERT_WEIGHT_SUM_MIN = 2.0**-14
"""The least sum that chosen experts' weights are divided by: llama.cpp clamps there, at float16's smallest normal number."""


class RopeShape(msgspec.Struct, frozen=True):
    """How positions turn queries and keys (Su et al., "RoFormer", 2021): pair `i` by `position * frequencies()[i]` radians."""

    dimensions: int
    """Elements of a head that turn, an even number; those behind them stay."""
    base: float
    scale: float = 1.0
    """What positions are multiplied with; below one for a context that is longer than the one trained."""
    amplitude: float = 1.0
    """What cosines and sines are multiplied with, hence queries and keys (YaRN's "mscale")."""
    extrapolation: float = 0.0
    """YaRN (Peng et al., 2023): how far fast pairs keep their unscaled frequency: 0 is plain linear scaling, 1 is YaRN."""
    context_original: int = 0
    """YaRN: positions that the model was first trained with, above zero where `extrapolation` is not zero."""
    beta_fast: float = 32.0
    """YaRN: a pair that turns as often as this over the original context, or more, is not scaled at all."""
    beta_slow: float = 1.0
    """YaRN: a pair that turns as often as this, or less, is scaled in full."""

    def frequencies(self, factors: NDArray[np.floating] | None = None) -> NDArray[np.float64]:
        """Radians per position of each pair, float64 [dimensions / 2].

        `factors`, [dimensions / 2], divide the unscaled frequencies, as `rope_freqs.weight` says (Llama 3 stretches the slow ones).
        Raises `ModelRefused` if one is not above zero. Multiply positions in float64: a float32 product is off by a thousandth of a
        turn at position 10,000.
        """
        unscaled: NDArray[np.float64] = self.base ** (-np.arange(0, self.dimensions, 2, dtype=np.float64) / self.dimensions)
        if factors is not None:
            if not (np.isfinite(factors) & (factors > 0)).all():
                raise ModelRefused("a factor of RoPE frequencies is not above zero", code="bad_value", param=ROPE_FACTORS)
            unscaled = unscaled / factors
        scaled = unscaled * self.scale
        if not self.extrapolation:
            return scaled
        kept = self.extrapolation * self._unscaled_share()
        return scaled * (1.0 - kept) + unscaled * kept

    def _unscaled_share(self) -> NDArray[np.float64]:
        """YaRN's ramp, float64 [dimensions / 2]: 1 for pairs that turn fast, 0 for those that turn slowly, linear in between."""
        low = max(0.0, math.floor(self._pair_of_turns(self.beta_fast)))
        high = min(self.dimensions - 1.0, math.ceil(self._pair_of_turns(self.beta_slow)))
        pairs = np.arange(self.dimensions // 2)
        scaled_share: NDArray[np.float64] = np.clip((pairs - low) / max(RAMP_WIDTH_MIN, high - low), 0.0, 1.0)
        return 1.0 - scaled_share

    def _pair_of_turns(self, turns: float) -> float:
        """The pair, as a real number, that makes so many turns over the original context."""
        return self.dimensions * math.log(self.context_original / (turns * math.tau)) / (2 * math.log(self.base))


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """The complete description of a decoder."""

    architecture: str
    """The family, for people: nothing is computed from it."""
    vocabulary_size: int
    context_trained: int
    layers: int
    width: int
    """Elements of a row between the layers."""
    feed_forward: int
    """Elements inside the dense feed-forward; 0 if every layer has experts."""
    heads: int
    kv_heads: int
    """Divides `heads`: query head `h` looks at kv head `h // (heads / kv_heads)`."""
    head_size: int
    norm_epsilon: float
    """Of every norm: `x / sqrt(mean(x ** 2) + norm_epsilon) * weight`."""
    attention_scale: float
    """What products of queries and keys are multiplied with, before `attention_softcap`."""
    embedding_scale: float = 1.0
    """What rows of the embedding are multiplied with on their way in; never when the embedding is the head."""
    activation: Literal["silu", "gelu"]
    """Of the gate, `down(activation(gate(x)) * up(x))`; `gelu` is the form with tanh."""
    rope_pairs: Literal["adjacent", "halves"]
    """Pair `i` of a head is elements `(2 i, 2 i + 1)`, or `(i, i + dimensions / 2)`. GGUF calls them `norm` and `neox`."""
    ropes: tuple[RopeShape, ...]
    layer_rope: tuple[int, ...]
    """For each layer an index into `ropes`."""
    windows: tuple[int, ...]
    """For each layer the positions a row sees, its own included; 0 is all of them."""
    attention_softcap: float = 0.0
    """Scores become `cap * tanh(scores / cap)` before the mask; 0 leaves them."""
    logit_softcap: float = 0.0
    """The same for logits; 0 leaves them."""
    query_key_norm: bool = False
    """Queries and keys have a norm over each head, before they are turned."""
    post_norms: bool = False
    """What attention and feed-forward give has a norm of its own, before it is added."""
    experts: int = 0
    """Experts of a layer with a mixture; 0 if the model has none."""
    experts_used: int = 0
    """How many of them a row passes: those that the router, `ffn_gate_inp`, scores highest."""
    expert_feed_forward: int = 0
    """Elements inside one expert."""
    expert_weights_normalised: bool = False
    """A row's experts are added up with the softmax of the router's scores over *all* experts as weights; if this is True, the
    weights of the chosen ones are divided by their sum (at least `EXPERT_WEIGHT_SUM_MIN`), which equals a softmax over the chosen
    alone. llama.cpp does that for `llama` with experts (Mixtral) and for `qwen3moe`, and leaves `qwen2moe` as it is."""
    expert_layers: tuple[bool, ...] = ()
    """For each layer whether its feed-forward is a mixture; empty if none is."""

    def has_experts(self, layer: int) -> bool:
        """Whether a layer's feed-forward is a mixture of experts."""
        return bool(self.expert_layers) and self.expert_layers[layer]
