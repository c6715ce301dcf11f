"""Keys and values of all sequences in the layout that native kernels read: pages of one block of memory.

    pool[page][layer][kv head][keys: head_size x 64 positions | values: 64 positions x head_size]

C-contiguous float32 or float16, starting at a multiple of 64 bytes. A page is one piece, shared as a whole; in a block the
keys are transposed, for the reason in `kernels.kv`.

The block is mapped at once and zero; the system commits it as pages are first written, lowest first (see `page_table`), so a large
bound costs nothing until it is used. It never moves and never grows.

What an earlier use left behind a sequence's end is not cleared. Nothing there reaches a result of `kernels.attention`, NaN included:
positions out of sight take no part in any sum. (The torch path masks by adding, so there `kv_cache` has to clear.)
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tripower.backends.picolm.native.kernels.attention.kv import PAGE_POSITIONS, KvElement, element_bytes
from tripower.backends.picolm.native.memory import address, zeros
from tripower.backends.picolm.page_table import NO_PAGE, PageChange, PageTable

KEYS_AND_VALUES = 2
KINDS: dict[KvElement, np.dtype[np.floating]] = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16)}


class KvPoolShape(msgspec.Struct, frozen=True, kw_only=True):
    """What one position takes."""

    layers: int
    kv_heads: int
    head_size: int
    element: KvElement = "f32"

    @property
    def bytes_per_position(self) -> int:
        return KEYS_AND_VALUES * self.layers * self.kv_heads * self.head_size * element_bytes(self.element)

    @property
    def block_bytes(self) -> int:
        """Of one kv head in one layer of a page: from one kv head to the next."""
        return KEYS_AND_VALUES * PAGE_POSITIONS * self.head_size * element_bytes(self.element)

    @property
    def layer_bytes(self) -> int:
        """From one layer to the next."""
        return self.kv_heads * self.block_bytes

    @property
    def page_bytes(self) -> int:
        """From one page to the next."""
        return self.layers * self.layer_bytes


class KvPool:
    """The pages' memory and the table that says whose they are: sequences are opened, committed, trimmed, forked and closed there.

    Keys are stored with their position already turned into them, so a page can be shared by any sequence with the same beginning.
    Whoever writes into the memory, kernels do, must have reserved the positions.
    """

    def __init__(self, shape: KvPoolShape, *, pages_max: int) -> None:
        self.shape = shape
        self.table = PageTable(pages_max=pages_max, page_positions=PAGE_POSITIONS)
        blocks = (pages_max, shape.layers, shape.kv_heads, KEYS_AND_VALUES, PAGE_POSITIONS * shape.head_size)
        memory = zeros(blocks, KINDS[shape.element])
        self._memory: NDArray[np.floating] | None = memory
        self.address = address(memory)
        """Of the pool's first byte, a multiple of 64."""

    @property
    def bytes_per_position(self) -> int:
        return self.shape.bytes_per_position

    @property
    def keys(self) -> NDArray[np.floating]:
        """A view, [page, layer, kv head, element, position in page]."""
        return self._part(0, (self.shape.head_size, PAGE_POSITIONS))

    @property
    def values(self) -> NDArray[np.floating]:
        """A view, [page, layer, kv head, position in page, element]."""
        return self._part(1, (PAGE_POSITIONS, self.shape.head_size))

    def reserve(self, sequence: int, rows: int) -> None:
        """Make `rows` more positions of a sequence writable: copies what a page shared with another sequence holds of this one.

        Raises `DeviceFailed` (`state_memory_exhausted`) without a change.
        """
        for change in self.table.reserve(sequence, rows):
            if change.source != NO_PAGE:
                self._copy(change)

    def pages_row(self, sequence: int) -> list[int]:
        """The pages of a sequence in order of position, reserved ones included."""
        return list(self.table.pages(sequence))

    def close(self) -> None:
        """Give the memory back; no kernel may use it any more. Idempotent. Sequences can still be closed."""
        self._memory = None

    def _part(self, part: int, block: tuple[int, int]) -> NDArray[np.floating]:
        assert self._memory is not None, "the pool is closed"
        memory = self._memory[:, :, :, part]
        return memory.reshape(*memory.shape[:3], *block)

    def _copy(self, change: PageChange) -> None:
        keys, values = self.keys, self.values
        keys[change.page, ..., : change.keep] = keys[change.source, ..., : change.keep]
        values[change.page, ..., : change.keep, :] = values[change.source, ..., : change.keep, :]
