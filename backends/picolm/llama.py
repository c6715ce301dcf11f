"""The `llama` architecture: Llama 1 to 3, Mistral, SmolLM2 and others of that form. Read top to bottom.

A layer is attention and a gated feed-forward, each behind an RMS norm and added to what came in. Positions enter by turning adjacent
pairs of queries and keys. The head is the embedding where the file has no `output.weight`. Projections may have biases.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from tripower.backends.picolm.attention import Batch
from tripower.backends.picolm.hyperparameters import EMBEDDING, Hyperparameters, read_llama
from tripower.backends.picolm.layers import ROPE_FACTORS, Rope, linear, rms_norm, turn_adjacent
from tripower.backends.picolm.weights import Wanted, Weights

read_hyperparameters = read_llama


def wanted(shape: Hyperparameters) -> Iterator[Wanted]:
    """Every tensor of the file, with its shape."""
    yield Wanted(EMBEDDING, (shape.vocabulary_size, shape.width))
    yield Wanted("output_norm.weight", (shape.width,))
    yield Wanted("output.weight", (shape.vocabulary_size, shape.width), optional=True)
    yield Wanted(ROPE_FACTORS, (shape.rope.dimensions // 2,), optional=True)
    for layer in range(shape.layers):
        yield from _wanted_of_layer(shape, f"blk.{layer}.")


def _wanted_of_layer(shape: Hyperparameters, prefix: str) -> Iterator[Wanted]:
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    yield Wanted(f"{prefix}attn_norm.weight", (shape.width,))
    yield Wanted(f"{prefix}ffn_norm.weight", (shape.width,))
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
        yield Wanted(f"{prefix}{name}.bias", (outputs,), f"{prefix}{into}.bias", optional=True)


class Layer:
    """The weights of one layer. `qkv` is queries, keys and values stacked; `gate_up` likewise."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self.attention_norm = weights[f"{prefix}attn_norm.weight"]
        self.qkv, self.qkv_bias = _projection(weights, f"{prefix}attn_qkv")
        self.output, self.output_bias = _projection(weights, f"{prefix}attn_output")
        self.feed_forward_norm = weights[f"{prefix}ffn_norm.weight"]
        self.gate_up, self.gate_up_bias = _projection(weights, f"{prefix}ffn_gate_up")
        self.down, self.down_bias = _projection(weights, f"{prefix}ffn_down")


class Model:
    """A `llama` model resident in float32."""

    def __init__(self, shape: Hyperparameters, weights: Weights) -> None:
        self.shape = shape
        self.embedding = weights[EMBEDDING]
        self.layers = [Layer(weights, f"blk.{layer}.") for layer in range(shape.layers)]
        self.norm = weights["output_norm.weight"]
        self.head = weights.get("output.weight", self.embedding)
        self.rope = Rope(shape.rope, weights.get(ROPE_FACTORS))

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits of the rows `batch.drawn`, float32 [drawn, vocabulary]; keys and values of all rows go to their pages."""
        turns = self.rope.turns(batch.positions)
        states = functional.embedding(batch.tokens, self.embedding)
        for index, layer in enumerate(self.layers):
            normed = rms_norm(states, layer.attention_norm, self.shape.norm_epsilon)
            states = states + self._attention(index, layer, normed, batch, turns)
            normed = rms_norm(states, layer.feed_forward_norm, self.shape.norm_epsilon)
            states = states + self._feed_forward(layer, normed)
        return linear(rms_norm(states[batch.drawn], self.norm, self.shape.norm_epsilon), self.head)

    def _attention(self, index: int, layer: Layer, normed: torch.Tensor, batch: Batch, turns: torch.Tensor) -> torch.Tensor:
        shape = self.shape
        heads = linear(normed, layer.qkv, layer.qkv_bias).view(batch.rows, -1, shape.head_size)
        turned = turn_adjacent(heads[:, : shape.heads + shape.kv_heads], turns)
        queries, keys = turned[:, : shape.heads].contiguous(), turned[:, shape.heads :]
        values = heads[:, shape.heads + shape.kv_heads :]
        attended = batch.attend(index, queries, keys, values, window=0, scale=shape.attention_scale)
        return linear(attended, layer.output, layer.output_bias)

    def _feed_forward(self, layer: Layer, normed: torch.Tensor) -> torch.Tensor:
        gate, up = linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return linear(functional.silu(gate) * up, layer.down, layer.down_bias)


def _projection(weights: Weights, name: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    return weights[f"{name}.weight"], weights.get(f"{name}.bias")
