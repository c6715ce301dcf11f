"""The rows of one step, and attention of each row over the pages of its own sequence.

All rows pass the linear layers together; attention is the one place where sequences differ. Sequences that bring the same number of
rows and see about as many pages form a group, and a group is one call: its pages are gathered, keys that a row may not see are
masked, and query heads that share a kv head stand side by side as rows. Sixteen streams that each decode one token are one or two
groups, so the work for a layer does not grow with the number of sequences.

Positions are masked by where they are, never by which slot they came from: a padded page lies beyond every query by construction.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from tripower.backends.picolm.kv_cache import KvCache
from tripower.backends.picolm.layers import softcap


class Segment(msgspec.Struct, frozen=True):
    """Rows of one sequence in a step, at positions `position`, `position + 1`, …"""

    sequence: int
    position: int
    tokens: Sequence[int]


class Group(msgspec.Struct, frozen=True):
    """Sequences that one attention call serves."""

    sequences: int
    rows: torch.Tensor | None
    """Their rows in the step, int64 [sequences * rows each]; None if these are all rows, in order."""
    blocks: torch.Tensor
    mask: torch.Tensor
    """float32 [sequences, 1, query heads per kv head * rows each, keys]: 0 where a row may look, else -inf."""


class Batch:
    """One step: what is evaluated, at which positions, and for which rows logits are wanted.

    Pages for all segments must be reserved. `windows` are the attention windows that the model's layers use, 0 for none.
    """

    def __init__(
        self, cache: KvCache, segments: Sequence[Segment], *, drawn: Sequence[int], windows: frozenset[int], heads: int
    ) -> None:
        self._cache = cache
        self._segments = segments
        self._queries_per_key = heads // cache.shape.kv_heads
        self.tokens = torch.tensor([token for segment in segments for token in segment.tokens])
        self.positions = torch.cat([_positions(segment) for segment in segments])
        self.drawn = torch.tensor(drawn, dtype=torch.int64)
        """Rows whose logits are wanted, int64."""
        self._places = self._find_places()
        self._groups = {window: self._group(window) for window in windows}

    @property
    def rows(self) -> int:
        return len(self.tokens)

    def attend(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        window: int,
        scale: float,
        softcap: float = 0.0,
    ) -> torch.Tensor:
        """Store the rows' keys and values, then attend.

        `queries` float32 [rows, heads, head_size], `keys` and `values` [rows, kv_heads, head_size], positions already turned into
        queries and keys. A row sees its own position and those before it, the last `window` of them unless that is 0. Scores are
        soft-capped unless `softcap` is 0. Returns [rows, heads * head_size].
        """
        self._cache.write(layer, self._places, keys, values)
        groups = self._groups[window]
        if len(groups) == 1:
            return self._attend_group(layer, groups[0], queries, scale, softcap)
        attended = queries.new_empty(self.rows, queries.shape[1] * queries.shape[2])
        for group in groups:
            attended[group.rows] = self._attend_group(layer, group, queries[group.rows], scale, softcap)
        return attended

    def _attend_group(self, layer: int, group: Group, queries: torch.Tensor, scale: float, softcap: float) -> torch.Tensor:
        keys, values = self._cache.read(layer, group.blocks, group.sequences)
        sequences, kv_heads, _, head_size = keys.shape
        split = queries.view(sequences, -1, kv_heads, self._queries_per_key, head_size)
        beside = split.permute(0, 2, 3, 1, 4).reshape(sequences, kv_heads, -1, head_size)
        if softcap:
            attended = _softcapped_attention(beside, keys, values, group.mask, scale, softcap)
        else:
            attended = torch.nn.functional.scaled_dot_product_attention(beside, keys, values, attn_mask=group.mask, scale=scale)
        split = attended.view(sequences, kv_heads, self._queries_per_key, -1, head_size)
        return split.permute(0, 3, 1, 2, 4).reshape(len(queries), -1)

    def _find_places(self) -> torch.Tensor:
        page_positions = self._cache.page_positions
        pages = [
            torch.tensor(self._cache.table.pages(segment.sequence))[_positions(segment) // page_positions]
            for segment in self._segments
        ]
        return self._cache.row_index(torch.cat(pages), self.positions % page_positions)

    def _group(self, window: int) -> list[Group]:
        """Group by rows and by pages in sight, the latter up to the next power of two: at most half of what is read is padding."""
        alike: dict[tuple[int, int], list[int]] = {}
        for index, segment in enumerate(self._segments):
            first, end = self._sight(segment, window)
            alike.setdefault((len(segment.tokens), (end - first - 1).bit_length()), []).append(index)
        return [self._make_group(indices, window, everything=len(alike) == 1) for indices in alike.values()]

    def _make_group(self, indices: list[int], window: int, *, everything: bool) -> Group:
        segments = [self._segments[index] for index in indices]
        sights = [self._sight(segment, window) for segment in segments]
        width = max(end - first for first, end in sights)
        pages = []
        for segment, (first, end) in zip(segments, sights, strict=True):
            seen = self._cache.table.pages(segment.sequence)[first:end]
            pages.append(seen + seen[:1] * (width - len(seen)))  # padding must be finite: a page of its own
        positions = torch.stack([_positions(segment) for segment in segments])
        return Group(
            sequences=len(segments),
            rows=None if everything else self._rows_of(indices),
            blocks=self._cache.block_index(torch.tensor(pages)),
            mask=self._mask(positions, torch.tensor([first for first, _ in sights]), width, window),
        )

    def _mask(self, positions: torch.Tensor, first_page: torch.Tensor, pages: int, window: int) -> torch.Tensor:
        size = self._cache.page_positions
        key = (first_page[:, None] * size + torch.arange(pages * size))[:, None, :]
        query = positions[:, :, None]
        hidden = key > query
        if window:
            hidden |= key <= query - window
        mask = torch.zeros(hidden.shape, dtype=torch.float32).masked_fill_(hidden, -torch.inf)[:, None]
        if positions.shape[1] == 1:
            return mask  # one row: the same for every query head
        return mask.expand(-1, self._queries_per_key, -1, -1).reshape(len(positions), 1, -1, pages * size)

    def _sight(self, segment: Segment, window: int) -> tuple[int, int]:
        """First page that any row of the segment sees, and the page after the last."""
        first = max(0, segment.position - window + 1) if window else 0
        last = segment.position + len(segment.tokens) - 1
        return first // self._cache.page_positions, last // self._cache.page_positions + 1

    def _rows_of(self, indices: list[int]) -> torch.Tensor:
        starts = [0]
        for segment in self._segments:
            starts.append(starts[-1] + len(segment.tokens))
        return torch.cat([torch.arange(starts[index], starts[index + 1]) for index in indices])


def _softcapped_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float, cap: float
) -> torch.Tensor:
    """As `scaled_dot_product_attention`, which has no place for a cap between scores and mask."""
    scores = softcap(queries @ keys.transpose(-1, -2) * scale, cap)
    return torch.softmax(scores + mask, dim=-1) @ values


def _positions(segment: Segment) -> torch.Tensor:
    return torch.arange(segment.position, segment.position + len(segment.tokens))
