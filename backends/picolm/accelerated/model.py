"""A decoder on a device: `torch_model` again, over static inputs, with projections in whatever form they are stored.

Rows are float32 between the layers, in norms and in the softmax. Turns of RoPE are a table, made on the host in float64 as the
reference makes them, so that no device has a sine of its own. Nothing here asks the host for anything, except a mixture of experts.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from tripower.backends.picolm.accelerated.attention import StepAttention
from tripower.backends.picolm.accelerated.kv_pool import KvPool
from tripower.backends.picolm.accelerated.linear import Dense, Projection
from tripower.backends.picolm.accelerated.step_inputs import StepInputs
from tripower.backends.picolm.accelerated.weights import DeviceWeights
from tripower.backends.picolm.decoder import EMBEDDING, HEAD, ROPE_FACTORS, Decoder
from tripower.backends.picolm.layers import Rope, choose_experts, rms_norm, softcap, turn_adjacent, turn_halves


class Layer:
    """The weights of one layer; what the decoder does not have is None."""

    def __init__(self, weights: DeviceWeights, prefix: str) -> None:
        vectors, projections = weights.vectors, weights.projections
        self.attention_norm = vectors[f"{prefix}attn_norm.weight"]
        self.qkv = projections[f"{prefix}attn_qkv.weight"]
        self.query_norm = vectors.get(f"{prefix}attn_q_norm.weight")
        self.key_norm = vectors.get(f"{prefix}attn_k_norm.weight")
        self.output = projections[f"{prefix}attn_output.weight"]
        self.attention_post_norm = vectors.get(f"{prefix}post_attention_norm.weight")
        self.feed_forward_norm = vectors[f"{prefix}ffn_norm.weight"]
        router = projections.get(f"{prefix}ffn_gate_inp.weight")
        self.feed_forward = Gated(weights, prefix) if router is None else Mixture(router, weights, prefix)
        self.feed_forward_post_norm = vectors.get(f"{prefix}post_ffw_norm.weight")


class Gated:
    """A dense feed-forward: `down(activation(gate(x)) * up(x))`."""

    def __init__(self, weights: DeviceWeights, prefix: str) -> None:
        self._gate_up = weights.projections[f"{prefix}ffn_gate_up.weight"]
        self._down = weights.projections[f"{prefix}ffn_down.weight"]

    def forward(self, states: torch.Tensor, decoder: Decoder) -> torch.Tensor:
        """float32 [rows, width] to [rows, width]."""
        gate, up = self._gate_up.forward(states).chunk(2, dim=-1)
        return self._down.forward(_activate(gate, decoder) * up)


class Mixture:
    """A mixture of experts. Which of them a step needs is asked for by the host, which then launches those: it cannot be captured."""

    def __init__(self, router: Projection, weights: DeviceWeights, prefix: str) -> None:
        self._router = router
        self._gate, self._up, self._down = (
            weights.experts[f"{prefix}ffn_{part}_exps.weight"] for part in ("gate", "up", "down")
        )

    def forward(self, states: torch.Tensor, decoder: Decoder) -> torch.Tensor:
        """float32 [rows, width] to [rows, width]."""
        scores = self._router.forward(states)
        weights, chosen = choose_experts(scores, decoder.experts_used, normalised=decoder.expert_weights_normalised)
        result = torch.zeros_like(states)
        for expert in sorted(set(chosen.flatten().tolist())):
            rows, places = (chosen == expert).nonzero(as_tuple=True)
            inside = _activate(self._gate[expert].forward(states[rows]), decoder) * self._up[expert].forward(states[rows])
            result.index_add_(0, rows, self._down[expert].forward(inside) * weights[rows, places, None])
        return result


class DeviceModel:
    """A decoder resident on a device."""

    def __init__(self, decoder: Decoder, weights: DeviceWeights, *, context: int, device: torch.device) -> None:
        self.decoder = decoder
        self.device = device
        self.windows = tuple(sorted(set(decoder.windows)))
        embedding = weights.projections[EMBEDDING]
        assert isinstance(embedding, Dense), "the embedding is looked up, hence dense"
        self._embedding = embedding.weight
        self._layers = [Layer(weights, f"blk.{layer}.") for layer in range(decoder.layers)]
        self._norm_weight = weights.vectors["output_norm.weight"]
        self._head = weights.projections.get(HEAD, embedding)
        factors = weights.vectors.get(ROPE_FACTORS)
        self._turns = [
            Rope(shape, None if factors is None else factors.cpu()).turns(torch.arange(context)).to(device)
            for shape in decoder.ropes
        ]

    def forward(self, inputs: StepInputs, pool: KvPool) -> torch.Tensor:
        """Logits of the rows that are drawn from, float32 [drawn, vocabulary]; keys and values of all rows go to their places."""
        decoder, given = self.decoder, inputs.device
        attention = StepAttention(inputs, pool, self.windows, decoder.heads // decoder.kv_heads)
        turns = [table.index_select(0, given.positions) for table in self._turns]
        states = functional.embedding(given.tokens, self._embedding).float() * decoder.embedding_scale
        for index, layer in enumerate(self._layers):
            normed = self._norm(states, layer.attention_norm)
            attended = self._attention(index, layer, normed, attention, turns[decoder.layer_rope[index]])
            states = states + self._norm(attended, layer.attention_post_norm)
            fed = layer.feed_forward.forward(self._norm(states, layer.feed_forward_norm), decoder)
            states = states + self._norm(fed, layer.feed_forward_post_norm)
        if not inputs.shape.drawn:
            return states.new_empty(0, decoder.vocabulary_size)
        last = self._norm(states.index_select(0, given.drawn), self._norm_weight)
        return softcap(self._head.forward(last), decoder.logit_softcap)

    def _attention(
        self, index: int, layer: Layer, normed: torch.Tensor, attention: StepAttention, turns: torch.Tensor
    ) -> torch.Tensor:
        decoder = self.decoder
        heads = layer.qkv.forward(normed).view(len(normed), -1, decoder.head_size)
        queries, keys, values = torch.split(heads, [decoder.heads, decoder.kv_heads, decoder.kv_heads], dim=1)
        turn = turn_adjacent if decoder.rope_pairs == "adjacent" else turn_halves
        attended = attention.attend(
            index,
            turn(self._norm(queries, layer.query_norm), turns),
            turn(self._norm(keys, layer.key_norm), turns),
            values,
            window=decoder.windows[index],
            scale=decoder.attention_scale,
            cap=decoder.attention_softcap,
        )
        return layer.output.forward(attended)

    def _norm(self, states: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """The norm with this weight, or `states` themselves where the decoder has none."""
        return states if weight is None else rms_norm(states, weight, self.decoder.norm_epsilon)


def _activate(gate: torch.Tensor, decoder: Decoder) -> torch.Tensor:
    return functional.silu(gate) if decoder.activation == "silu" else functional.gelu(gate, approximate="tanh")
