"""Keys and values of all sequences on a device, in the pages that `page_table` gives out.

    pool[page][layer][0: keys, 1: values][kv head][position in page][element]

as in `kv_cache`, with two pages more. The *zero page* is read where a sequence has fewer pages than its shape class: nothing is ever
written there, so what a mask hides is finite. The *waste page* takes what padding rows write: nothing is ever read there.

An accelerator has no memory that is committed on first touch, so all of it is taken at once.
"""

from __future__ import annotations

import torch

from tripower.backends.picolm.kv_cache import KEYS_AND_VALUES, KvShape
from tripower.backends.picolm.page_table import NO_PAGE, PageChange, PageTable

EXTRA_PAGES = 2


class KvPool:
    """The pages' memory and the table that says whose they are."""

    def __init__(
        self, shape: KvShape, *, pages_max: int, page_positions: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        """May raise `torch.OutOfMemoryError`."""
        self.shape = shape
        self.table = PageTable(pages_max=pages_max, page_positions=page_positions)
        self.zero_page, self.waste_page = pages_max, pages_max + 1
        sizes = (pages_max + EXTRA_PAGES, shape.layers, KEYS_AND_VALUES, shape.kv_heads, page_positions, shape.head_size)
        self._pool = torch.zeros(sizes, dtype=dtype, device=device)
        blocks = sizes[0] * shape.layers * KEYS_AND_VALUES * shape.kv_heads
        self._blocks = self._pool.view(blocks, page_positions * shape.head_size)
        self._rows = self._pool.view(blocks * page_positions, shape.head_size)
        heads = torch.arange(KEYS_AND_VALUES * shape.kv_heads, device=device)
        self._row_heads = heads * page_positions
        self._block_heads = heads.view(KEYS_AND_VALUES, 1, shape.kv_heads, 1)
        self._page_blocks = shape.layers * KEYS_AND_VALUES * shape.kv_heads

    @property
    def page_positions(self) -> int:
        return self.table.page_positions

    @property
    def dtype(self) -> torch.dtype:
        return self._pool.dtype

    def reserve(self, sequence: int, rows: int) -> None:
        """Make `rows` more positions of a sequence writable. Raises `DeviceFailed` (`state_memory_exhausted`) without a change."""
        for change in self.table.reserve(sequence, rows):
            self._prepare(change)

    def block_index(self, pages: torch.Tensor) -> torch.Tensor:
        """Where keys and values of `pages`, int64 [sequences, pages], lie in layer 0: int64 [2 * sequences * kv_heads * pages]."""
        return (self._block_heads + (pages * self._page_blocks)[None, :, None, :]).flatten()

    def row_index(self, places: torch.Tensor) -> torch.Tensor:
        """Where rows are written in layer 0: int64 [rows * 2 * kv_heads] for `places`, int64 [rows], page * page_positions + offset."""
        pages, offsets = places // self.page_positions, places % self.page_positions
        first = pages * (self._page_blocks * self.page_positions) + offsets
        return (first[:, None] + self._row_heads).flatten()

    def write(self, layer: int, row_index: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values, float32 [rows, kv_heads, head_size] each, rounded to the pool's elements."""
        first = layer * KEYS_AND_VALUES * self.shape.kv_heads * self.page_positions
        both = torch.stack((keys, values), dim=1).view(-1, self.shape.head_size)
        self._rows.index_copy_(0, row_index + first, both.to(self.dtype))

    def read(self, layer: int, block_index: torch.Tensor, sequences: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of keys and values, [sequences, kv_heads, positions, head_size] each, of whole pages."""
        first = layer * KEYS_AND_VALUES * self.shape.kv_heads
        blocks = self._blocks.index_select(0, block_index + first)
        keys, values = blocks.view(KEYS_AND_VALUES, sequences, self.shape.kv_heads, -1, self.shape.head_size)
        return keys, values

    def close(self) -> None:
        """Give the memory back; the table stays, so that sequences can still be closed. Idempotent."""
        self._pool = self._blocks = self._rows = torch.empty(0)

    def _prepare(self, change: PageChange) -> None:
        page = self._pool[change.page]
        if change.source != NO_PAGE:
            page[..., : change.keep, :] = self._pool[change.source][..., : change.keep, :]
        page[..., change.keep : change.dirty, :] = 0
