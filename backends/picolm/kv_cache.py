"""Keys and values of all sequences, in pages of one block of memory.

The layout, which a native step may rely on: float32, C-contiguous, starting at a multiple of 64 bytes,

    pool[page][layer][0: keys, 1: values][kv head][position in page][element]

so that a page is one piece (copied, cleared and shared as a whole), and the positions of one kv head in one layer follow each other
without a gap for the length of a page. The address of a row is a sum of products of the indices; nothing is looked up but the page.

The block is mapped at once and zero; the system commits it as pages are first written, lowest first (see `page_table`), so a large
bound costs nothing until it is used. It never moves and never grows.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from tripower.backends.picolm.page_table import NO_PAGE, PageChange, PageTable

PAGE_POSITIONS = 64
FLOAT_BYTES = 4
ALIGNMENT_BYTES = 64
KEYS_AND_VALUES = 2


class KvShape(msgspec.Struct, frozen=True):
    """What one position takes."""

    layers: int
    kv_heads: int
    head_size: int

    @property
    def bytes_per_position(self) -> int:
        return self.layers * KEYS_AND_VALUES * self.kv_heads * self.head_size * FLOAT_BYTES


class KvCache:
    """The pages' memory and the table that says whose they are.

    Keys are stored with their position already turned into them, so a page can be shared by any sequence with the same beginning.
    """

    def __init__(self, shape: KvShape, *, pages_max: int, page_positions: int = PAGE_POSITIONS) -> None:
        self.shape = shape
        self.table = PageTable(pages_max=pages_max, page_positions=page_positions)
        self.pool = _zeros((pages_max, shape.layers, KEYS_AND_VALUES, shape.kv_heads, page_positions, shape.head_size))
        blocks = pages_max * shape.layers * KEYS_AND_VALUES * shape.kv_heads
        self._blocks = self.pool.view(blocks, page_positions * shape.head_size)
        self._rows = self.pool.view(blocks * page_positions, shape.head_size)

    @property
    def page_positions(self) -> int:
        return self.table.page_positions

    def reserve(self, sequence: int, rows: int) -> None:
        """Make `rows` more positions of a sequence writable. Raises `DeviceFailed` (`state_memory_exhausted`) without a change."""
        for change in self.table.reserve(sequence, rows):
            self._prepare(change)

    def block_index(self, pages: torch.Tensor) -> torch.Tensor:
        """Where the keys and values of `pages`, int64 [sequences, pages], lie in layer 0: int64 [2 * sequences * kv_heads * pages]."""
        shape = self.shape
        heads = torch.arange(KEYS_AND_VALUES * shape.kv_heads).view(KEYS_AND_VALUES, 1, shape.kv_heads, 1)
        first = pages * (shape.layers * KEYS_AND_VALUES * shape.kv_heads)
        return (heads + first[None, :, None, :]).flatten()

    def row_index(self, pages: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Where rows at `offsets` in `pages`, both int64 [rows], are written in layer 0: int64 [rows * 2 * kv_heads]."""
        shape = self.shape
        heads = torch.arange(KEYS_AND_VALUES * shape.kv_heads)
        block = pages[:, None] * (shape.layers * KEYS_AND_VALUES * shape.kv_heads) + heads
        return (block * self.page_positions + offsets[:, None]).flatten()

    def write(self, layer: int, row_index: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values, float32 [rows, kv_heads, head_size] each, at places from `row_index`."""
        first = layer * KEYS_AND_VALUES * self.shape.kv_heads * self.page_positions
        both = torch.stack((keys, values), dim=1).view(-1, self.shape.head_size)
        self._rows.index_copy_(0, row_index + first, both)

    def read(self, layer: int, block_index: torch.Tensor, sequences: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of keys and values, float32 [sequences, kv_heads, positions, head_size] each, of whole pages."""
        first = layer * KEYS_AND_VALUES * self.shape.kv_heads
        blocks = self._blocks.index_select(0, block_index + first)
        keys, values = blocks.view(KEYS_AND_VALUES, sequences, self.shape.kv_heads, -1, self.shape.head_size)
        return keys, values

    def close(self) -> None:
        """Give the memory back; the table stays, so that sequences can still be closed. Idempotent."""
        self.pool = self._blocks = self._rows = torch.empty(0)

    def _prepare(self, change: PageChange) -> None:
        page = self.pool[change.page]
        if change.source != NO_PAGE:
            page[..., : change.keep, :] = self.pool[change.source][..., : change.keep, :]
        page[..., change.keep : change.dirty, :] = 0


def _zeros(shape: Sequence[int]) -> torch.Tensor:
    """Zeros whose memory is committed when first written (`torch.zeros` would write them), aligned for wide loads."""
    padding = ALIGNMENT_BYTES // FLOAT_BYTES
    count = int(np.prod(shape, dtype=np.int64))
    memory = np.zeros(count + padding, np.float32)
    start = -memory.ctypes.data % ALIGNMENT_BYTES // FLOAT_BYTES
    return torch.from_numpy(memory[start : start + count]).view(*shape)
