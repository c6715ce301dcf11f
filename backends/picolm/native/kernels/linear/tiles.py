"""Sizes of tiles: which are worth measuring, how many there are, what memory they need. No size changes a bit of a result."""

from __future__ import annotations

from tripower.backends.picolm.native.kernels.weights.formats import AnyFormat, Format
from tripower.backends.picolm.native.target import Target

ROWS_PER_TILE_MAX = 256
"""Rows, or pairs of row and expert, of a tile."""
AHEAD_SHIFT = 32


def scratch_bytes(target: Target, rows: int, strips: int) -> int:
    """Scratch that a kernel of `rows` rows by `strips` strips needs: its results, and where each row comes from and goes."""
    return rows * strips * target.lanes * 4 + 2 * 8 * ROWS_PER_TILE_MAX


def tile_count(n: int, target: Target, strips: int, rows: int, rows_per_tile: int, tile_strips: int = 0) -> int:
    """Tiles of a layer with `n` outputs for so many rows (or pairs of row and expert)."""
    whole, width = -(-n // target.lanes), max(1, -(-tile_strips // strips)) * strips
    return -(-whole // width) * -(-rows // rows_per_tile)


def tile_word(tile_strips: int, ahead: int = 0) -> int:
    """The word `TILE`: strips of a tile, and how many strips further on weights are asked for while these are used.

    A kernel rounds the strips of a tile up to whole sets of those that it takes at a time.
    The best `ahead` is the distance to this thread's next strips, `tile_strips` times the number of threads: weights that another
    thread will use are of no use here. 0 means that of two threads, which does no harm to one.
    """
    return tile_strips | ahead << AHEAD_SHIFT


def row_sets(rows: int) -> list[int]:
    """Row counts that a kernel has code for: the largest first, one last."""
    return [rows, *(each for each in (8, 4, 3, 2, 1) if each < rows)]


def candidates(form: AnyFormat, target: Target, rows: int) -> list[tuple[int, int, int]]:
    """Tiles worth measuring for so many rows: (rows, strips, rows per tile), most promising first.

    Four rows by two strips fit the registers of every machine here, and serve fewer rows too. Eight rows by one strip convert weights
    half as often, which shows where that is much of the work; they need 32 registers.
    """
    blocks = sorted({min(rows, size) for size in (8, 16, 64)} if rows > 8 else {rows}, key=lambda size: abs(size - 16))
    shapes = [(4, 2)]
    if target.lanes == 16 and rows > 4:
        one_plane = isinstance(form, Format) and len(form.planes) == 1
        shapes.insert(1 if one_plane else 0, (8, 1))
    return [(*shape, block) for shape in shapes for block in blocks]
