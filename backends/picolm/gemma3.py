"""The `gemma3` architecture (Gemma Team, "Gemma 3 technical report", 2025). Read top to bottom.

Embeddings are multiplied by the square root of the width. A layer is attention and a GELU-gated feed-forward, each between two RMS
norms and added to what came in; queries and keys have a norm of their own over each head. Five layers of six see a window of
positions only and have a RoPE base of their own; positions turn the two halves of a head. The head is the embedding where the file
has no `output.weight`. Norm weights are used as stored: the "plus one" of the original is already in the file.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from tripower.backends.picolm.attention import Batch
from tripower.backends.picolm.hyperparameters import EMBEDDING, Hyperparameters, read_gemma3
from tripower.backends.picolm.layers import Rope, linear, rms_norm, turn_halves
from tripower.backends.picolm.weights import Wanted, Weights

read_hyperparameters = read_gemma3


def wanted(shape: Hyperparameters) -> Iterator[Wanted]:
    """Every tensor of the file, with its shape."""
    yield Wanted(EMBEDDING, (shape.vocabulary_size, shape.width))
    yield Wanted("output_norm.weight", (shape.width,))
    yield Wanted("output.weight", (shape.vocabulary_size, shape.width), optional=True)
    for layer in range(shape.layers):
        yield from _wanted_of_layer(shape, f"blk.{layer}.")


def _wanted_of_layer(shape: Hyperparameters, prefix: str) -> Iterator[Wanted]:
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
        yield Wanted(f"{prefix}{name}.weight", (shape.width,))
    for name in ("attn_q_norm", "attn_k_norm"):
        yield Wanted(f"{prefix}{name}.weight", (shape.head_size,))
    for name, into, outputs, inputs in (
        ("attn_q", "attn_qkv", queries, shape.width),
        ("attn_k", "attn_qkv", keys, shape.width),
        ("attn_v", "attn_qkv", keys, shape.width),
        ("attn_output", "attn_output", shape.width, queries),
        ("ffn_gate", "ffn_gate_up", shape.feed_forward, shape.width),
        ("ffn_up", "ffn_gate_up", shape.feed_forward, shape.width),
        ("ffn_down", "ffn_down", shape.width, shape.feed_forward),
    ):
        yield Wanted(f"{prefix}{name}.weight", (outputs, inputs), f"{prefix}{into}.weight")


class Layer:
    """The weights of one layer. `qkv` is queries, keys and values stacked; `gate_up` likewise."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self.attention_norm = weights[f"{prefix}attn_norm.weight"]
        self.qkv = weights[f"{prefix}attn_qkv.weight"]
        self.query_norm = weights[f"{prefix}attn_q_norm.weight"]
        self.key_norm = weights[f"{prefix}attn_k_norm.weight"]
        self.output = weights[f"{prefix}attn_output.weight"]
        self.attention_post_norm = weights[f"{prefix}post_attention_norm.weight"]
        self.feed_forward_norm = weights[f"{prefix}ffn_norm.weight"]
        self.gate_up = weights[f"{prefix}ffn_gate_up.weight"]
        self.down = weights[f"{prefix}ffn_down.weight"]
        self.feed_forward_post_norm = weights[f"{prefix}post_ffw_norm.weight"]


class Model:
    """A `gemma3` model resident in float32."""

    def __init__(self, shape: Hyperparameters, weights: Weights) -> None:
        assert shape.local_rope is not None
        self.shape = shape
        self.embedding = weights[EMBEDDING]
        self.layers = [Layer(weights, f"blk.{layer}.") for layer in range(shape.layers)]
        self.norm = weights["output_norm.weight"]
        self.head = weights.get("output.weight", self.embedding)
        self.rope, self.local_rope = Rope(shape.rope), Rope(shape.local_rope)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits of the rows `batch.drawn`, float32 [drawn, vocabulary]; keys and values of all rows go to their pages."""
        turns, local_turns = self.rope.turns(batch.positions), self.local_rope.turns(batch.positions)
        states = functional.embedding(batch.tokens, self.embedding) * self.shape.width**0.5
        for index, layer in enumerate(self.layers):
            here = local_turns if self.shape.windows[index] else turns
            attended = self._attention(index, layer, self._norm(states, layer.attention_norm), batch, here)
            states = states + self._norm(attended, layer.attention_post_norm)
            fed = self._feed_forward(layer, self._norm(states, layer.feed_forward_norm))
            states = states + self._norm(fed, layer.feed_forward_post_norm)
        return linear(self._norm(states[batch.drawn], self.norm), self.head)

    def _attention(self, index: int, layer: Layer, normed: torch.Tensor, batch: Batch, turns: torch.Tensor) -> torch.Tensor:
        shape = self.shape
        heads = linear(normed, layer.qkv).view(batch.rows, -1, shape.head_size)
        queries, keys, values = torch.split(heads, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        queries = turn_halves(self._norm(queries, layer.query_norm), turns)
        keys = turn_halves(self._norm(keys, layer.key_norm), turns)
        attended = batch.attend(index, queries, keys, values, window=shape.windows[index], scale=shape.attention_scale)
        return linear(attended, layer.output)

    def _feed_forward(self, layer: Layer, normed: torch.Tensor) -> torch.Tensor:
        gate, up = linear(normed, layer.gate_up).chunk(2, dim=-1)
        return linear(functional.gelu(gate, approximate="tanh") * up, layer.down)

    def _norm(self, states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(states, weight, self.shape.norm_epsilon)
