"""Attention of a step's groups over pages on a device: gathered, scored, masked, summed, by matrix products and nothing else.

One backend, called `math` by torch's own names, is written out here rather than chosen by the library at each call: so the same step
always takes the same path, soft-caps have their place between scores and mask, and nothing depends on switches of the process. Products
are in the pool's elements; scores, softmax and what comes out are float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

from tripower.backends.picolm.accelerated.kv_pool import KvPool
from tripower.backends.picolm.accelerated.step_inputs import Sight, StepInputs
from tripower.backends.picolm.layers import softcap


@attrs.frozen
class Look:
    """What a group sees through one window."""

    blocks: torch.Tensor
    hidden: torch.Tensor
    """bool [sequences, 1, query heads per kv head * rows each, keys], or one that broadcasts to it."""


class StepAttention:
    """Attention for one step. Made where a step begins, on the device; a capture records it with the rest."""

    def __init__(self, inputs: StepInputs, pool: KvPool, windows: Sequence[int], queries_per_key: int) -> None:
        self._pool, self._shape, self._queries_per_key = pool, inputs.shape, queries_per_key
        self._places = pool.row_index(inputs.device.places)
        self._looks: list[dict[int, Look]] = []
        start = 0
        for group, sights in zip(inputs.shape.groups, inputs.device.sights, strict=True):
            end = start + group.sequences * group.rows
            positions = inputs.device.positions[start:end].view(group.sequences, group.rows)
            self._looks.append({w: self._look(positions, sight, w) for w, sight in zip(windows, sights, strict=True)})
            start = end

    def attend(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        window: int,
        scale: float,
        cap: float,
    ) -> torch.Tensor:
        """Store the rows' keys and values, then attend.

        `queries` float32 [rows, heads, head_size], `keys` and `values` [rows, kv_heads, head_size], positions already turned into
        queries and keys. Returns float32 [rows, heads * head_size].
        """
        self._pool.write(layer, self._places, keys, values)
        attended, start = [], 0
        for group, looks in zip(self._shape.groups, self._looks, strict=True):
            end = start + group.sequences * group.rows
            attended.append(self._attend_group(layer, group.sequences, looks[window], queries[start:end], scale, cap))
            start = end
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def _attend_group(
        self, layer: int, sequences: int, look: Look, queries: torch.Tensor, scale: float, cap: float
    ) -> torch.Tensor:
        keys, values = self._pool.read(layer, look.blocks, sequences)
        kv_heads, head_size = keys.shape[1], keys.shape[3]
        split = queries.view(sequences, -1, kv_heads, self._queries_per_key, head_size)
        beside = split.permute(0, 2, 3, 1, 4).reshape(sequences, kv_heads, -1, head_size).to(keys.dtype)
        scores = softcap((beside @ keys.transpose(-1, -2)).float() * scale, cap)
        weights = torch.softmax(scores.masked_fill(look.hidden, -torch.inf), dim=-1)
        attended = (weights.to(values.dtype) @ values).float()
        split = attended.view(sequences, kv_heads, self._queries_per_key, -1, head_size)
        return split.permute(0, 3, 1, 2, 4).reshape(len(queries), -1)

    def _look(self, positions: torch.Tensor, sight: Sight[torch.Tensor], window: int) -> Look:
        """Masked by position, never by page: a padded page lies beyond every query by construction."""
        keys = sight.pages.shape[1] * self._pool.page_positions
        key = (sight.first[:, None] + torch.arange(keys, device=positions.device))[:, None, :]
        query = positions[:, :, None]
        hidden = key > query
        if window:
            hidden = hidden | (key <= query - window)
        if positions.shape[1] > 1:
            hidden = hidden[:, None].expand(-1, self._queries_per_key, -1, -1).reshape(len(positions), -1, keys)
        return Look(self._pool.block_index(sight.pages), hidden[:, None])
