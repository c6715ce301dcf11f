"""The words of a linear kernel, by name; see the package's own text."""

from __future__ import annotations

import enum


class Word(enum.IntEnum):
    """Index of each word. Addresses are bytes; counts are elements."""

    WEIGHTS = 0
    Q = 1
    SCALE = 2
    SUMS = 3
    TOTALS = 4
    OUT = 5
    STRIDE = 6
    """Elements from one row of `out` to the next."""
    K = 7
    N = 8
    ROWS = 9
    """Address of the int64 count of rows (for experts: rows of the step, not pairs)."""
    ROWS_PER_TILE = 10
    BIAS = 11
    """float32 [n], or 0."""
    ACCUMULATE = 12
    """1: results are added to what `out` holds."""
    X = 13
    """float32 rows, for float weights."""
    EXPERTS = 14
    """int32 [rows][used]: which expert a pair uses."""
    EXPERT_BYTES = 15
    USED = 16
    """Experts of a row."""
    X_PER_PAIR = 17
    """1: inputs have a row for each pair; 0: one for each row of the step."""
    TILE = 18
    """Strips of a tile and how far weights are asked for ahead; see `tile_word`. 0: one set of strips."""


WORDS = len(Word)
