"""Which tile each linear layer uses for each class of row counts.

No entry changes a bit of any result; it only decides how much of a layer one thread does at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from tripower.backends.picolm.native.kernels.weights.packing import Packed


class Tile(NamedTuple):
    """`rows` rows by `strips` strips at a time in registers; a tile has up to `rows_per_tile` rows."""

    rows: int
    strips: int
    rows_per_tile: int


Shape = tuple[str, int, int]
TileTable = dict[Shape, tuple[Tile, ...]]
"""For each shape, a tile for each class of `boundary.CLASS_MAX`."""


def shape_of(packed: Packed) -> Shape:
    """Layers of one shape share their tiles: (weight type, outputs, inputs)."""
    return packed.format.name, packed.n, packed.k
