"""A decoder in plain torch and float32: one forward for every architecture, read top to bottom. It is the reference.

`Decoder` says what is computed and names the weights; here is only how. Faster paths must agree with this one, and this one with
llama.cpp and transformers. Projections that share an input are one product, as `architectures.tensors` stacks them: queries, keys
and values, and the two halves of a gate.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from tripower.backends.picolm.attention import Batch
from tripower.backends.picolm.decoder import EMBEDDING, HEAD, ROPE_FACTORS, Decoder
from tripower.backends.picolm.layers import Rope, choose_experts, linear, rms_norm, softcap, turn_adjacent, turn_halves
from tripower.backends.picolm.weights import Weights


class Layer:
    """The weights of one layer; what the decoder does not have is None."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self.attention_norm = weights[f"{prefix}attn_norm.weight"]
        self.qkv, self.qkv_bias = _projection(weights, f"{prefix}attn_qkv")
        self.query_norm = weights.get(f"{prefix}attn_q_norm.weight")
        self.key_norm = weights.get(f"{prefix}attn_k_norm.weight")
        self.output, self.output_bias = _projection(weights, f"{prefix}attn_output")
        self.attention_post_norm = weights.get(f"{prefix}post_attention_norm.weight")
        self.feed_forward_norm = weights[f"{prefix}ffn_norm.weight"]
        self.feed_forward = Mixture(weights, prefix) if f"{prefix}ffn_gate_inp.weight" in weights else Gated(weights, prefix)
        self.feed_forward_post_norm = weights.get(f"{prefix}post_ffw_norm.weight")


class Gated:
    """A dense feed-forward: `down(activation(gate(x)) * up(x))`."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self.gate_up, self.gate_up_bias = _projection(weights, f"{prefix}ffn_gate_up")
        self.down, self.down_bias = _projection(weights, f"{prefix}ffn_down")

    def forward(self, states: torch.Tensor, decoder: Decoder) -> torch.Tensor:
        """float32 [rows, width] to [rows, width]."""
        gate, up = linear(states, self.gate_up, self.gate_up_bias).chunk(2, dim=-1)
        return linear(_activate(gate, decoder) * up, self.down, self.down_bias)


class Mixture:
    """A mixture of experts: each row passes the few that the router scores highest, and their results are added by weight."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self.router = weights[f"{prefix}ffn_gate_inp.weight"]
        self.gate = weights[f"{prefix}ffn_gate_exps.weight"]
        self.up = weights[f"{prefix}ffn_up_exps.weight"]
        self.down = weights[f"{prefix}ffn_down_exps.weight"]

    def forward(self, states: torch.Tensor, decoder: Decoder) -> torch.Tensor:
        """float32 [rows, width] to [rows, width]."""
        scores = linear(states, self.router)
        weights, chosen = choose_experts(scores, decoder.experts_used, normalised=decoder.expert_weights_normalised)
        result = torch.zeros_like(states)
        for expert in sorted(set(chosen.flatten().tolist())):
            rows, places = (chosen == expert).nonzero(as_tuple=True)
            inside = _activate(linear(states[rows], self.gate[expert]), decoder) * linear(states[rows], self.up[expert])
            result.index_add_(0, rows, linear(inside, self.down[expert]) * weights[rows, places, None])
        return result


class TorchModel:
    """A decoder resident in float32."""

    def __init__(self, decoder: Decoder, weights: Weights) -> None:
        self.decoder = decoder
        self.embedding = weights[EMBEDDING]
        self.layers = [Layer(weights, f"blk.{layer}.") for layer in range(decoder.layers)]
        self.norm = weights["output_norm.weight"]
        self.head = weights.get(HEAD, self.embedding)
        self.ropes = [Rope(shape, weights.get(ROPE_FACTORS)) for shape in decoder.ropes]

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits of the rows `batch.drawn`, float32 [drawn, vocabulary]; keys and values of all rows go to their pages."""
        decoder = self.decoder
        turns = [rope.turns(batch.positions) for rope in self.ropes]
        states = functional.embedding(batch.tokens, self.embedding) * decoder.embedding_scale
        for index, layer in enumerate(self.layers):
            normed = self._norm(states, layer.attention_norm)
            attended = self._attention(index, layer, normed, batch, turns[decoder.layer_rope[index]])
            states = states + self._norm(attended, layer.attention_post_norm)
            fed = layer.feed_forward.forward(self._norm(states, layer.feed_forward_norm), decoder)
            states = states + self._norm(fed, layer.feed_forward_post_norm)
        return softcap(linear(self._norm(states[batch.drawn], self.norm), self.head), decoder.logit_softcap)

    def _attention(self, index: int, layer: Layer, normed: torch.Tensor, batch: Batch, turns: torch.Tensor) -> torch.Tensor:
        decoder = self.decoder
        heads = linear(normed, layer.qkv, layer.qkv_bias).view(batch.rows, -1, decoder.head_size)
        queries, keys, values = torch.split(heads, [decoder.heads, decoder.kv_heads, decoder.kv_heads], dim=1)
        turn = turn_adjacent if decoder.rope_pairs == "adjacent" else turn_halves
        attended = batch.attend(
            index,
            turn(self._norm(queries, layer.query_norm), turns),
            turn(self._norm(keys, layer.key_norm), turns),
            values,
            window=decoder.windows[index],
            scale=decoder.attention_scale,
            softcap=decoder.attention_softcap,
        )
        return linear(attended, layer.output, layer.output_bias)

    def _norm(self, states: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """The norm with this weight, or `states` themselves where the decoder has none."""
        return states if weight is None else rms_norm(states, weight, self.decoder.norm_epsilon)


def _projection(weights: Weights, name: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    return weights[f"{name}.weight"], weights.get(f"{name}.bias")


def _activate(gate: torch.Tensor, decoder: Decoder) -> torch.Tensor:
    return functional.silu(gate) if decoder.activation == "silu" else functional.gelu(gate, approximate="tanh")
