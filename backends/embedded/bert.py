"""BERT in plain torch and float32, read top to bottom, and the mean over its tokens.

As in Devlin et al. 2019: norms behind the sums, GELU with the error function, learned positions, one kind of segment. Padded places are
given no attention and no part in the mean; they are computed and thrown away.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from tripower.backends.embedded.shape import EncoderShape
from tripower.backends.embedded.weights import Weights


class Bert:
    """An encoder resident in float32."""

    def __init__(self, shape: EncoderShape, weights: Weights) -> None:
        self.shape = shape
        self._weights = weights

    def encode(self, tokens: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Ids, int64 [rows, length], and which of them are no padding, bool of that shape, to float32 [rows, width] of unit length.

        At least one place of every row is real. Blocks.
        """
        states = self._embed(tokens)
        mask = real[:, None, None, :]
        for layer in range(self.shape.layers):
            prefix = f"encoder.layer.{layer}."
            attended = self._linear(f"{prefix}attention.output.dense", self._attend(prefix, states, mask))
            states = self._norm(f"{prefix}attention.output.LayerNorm", attended + states)
            inner = functional.gelu(self._linear(f"{prefix}intermediate.dense", states))
            states = self._norm(f"{prefix}output.LayerNorm", self._linear(f"{prefix}output.dense", inner) + states)
        return functional.normalize(_mean(states, real), dim=-1)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        weights = self._weights
        words = functional.embedding(tokens, weights["embeddings.word_embeddings.weight"])
        positions = weights["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        segment = weights["embeddings.token_type_embeddings.weight"][0]
        return self._norm("embeddings.LayerNorm", words + segment + positions)

    def _attend(self, prefix: str, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, length, width = states.shape

        def heads(part: str) -> torch.Tensor:
            projected = self._linear(f"{prefix}attention.self.{part}", states)
            return projected.view(rows, length, self.shape.heads, -1).transpose(1, 2)

        attended = functional.scaled_dot_product_attention(heads("query"), heads("key"), heads("value"), attn_mask=mask)
        return attended.transpose(1, 2).reshape(rows, length, width)

    def _linear(self, name: str, states: torch.Tensor) -> torch.Tensor:
        return functional.linear(states, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, name: str, states: torch.Tensor) -> torch.Tensor:
        weights, shape = self._weights, self.shape
        return functional.layer_norm(
            states, (shape.width,), weights[f"{name}.weight"], weights[f"{name}.bias"], shape.norm_epsilon
        )


def _mean(states: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """float32 [rows, length, width] to [rows, width], over the real places."""
    share = real.unsqueeze(-1).to(states.dtype)
    return (states * share).sum(dim=1) / share.sum(dim=1)
