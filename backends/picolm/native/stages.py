"""The list of stages that the executor runs, built by name and turned into the arrays of int64 that native code reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tripower.backends.picolm.native import executor
from tripower.backends.picolm.native.memory import address


class Part(msgspec.Struct, frozen=True):
    """A kernel over tiles: `columns` of them for each block of `rows_per_tile` rows of a count."""

    kernel: str
    words: tuple[int, ...]
    columns: int
    count: int
    """Which of the boundary's counts: `boundary.ROWS`, …"""
    rows_per_tile: int = 1


class Stages:
    """Stages in the order in which they run; the last one must be the boundary."""

    def __init__(self) -> None:
        self._stages: list[Sequence[Part]] = []

    def __iter__(self) -> Iterator[Sequence[Part]]:
        return iter(self._stages)

    def add(self, *parts: Part) -> None:
        """A stage begins when all tiles of the one before are done; its parts run side by side."""
        assert parts
        self._stages.append(parts)

    def link(self, address_of: Callable[[str], int], counts: NDArray[np.int64], boundary_words: NDArray[np.int64]) -> Linked:
        """Addresses in place of names. The boundary, the last part, works on its words as they are when a step ends."""
        parts = [part for stage in self._stages for part in stage]
        words = [np.array(part.words, np.int64) for part in parts]
        part_words = np.zeros((len(parts), executor.PART_WORDS), np.int64)
        for index, (part, arguments) in enumerate(zip(parts, words, strict=True)):
            record = part_words[index]
            record[executor.PART_KERNEL] = address_of(part.kernel)
            record[executor.PART_ARGUMENTS] = address(arguments)
            record[executor.PART_COLUMNS] = part.columns
            record[executor.PART_COUNT] = address(counts) + part.count * counts.itemsize
            record[executor.PART_ROWS] = part.rows_per_tile
        part_words[-1, executor.PART_ARGUMENTS] = address(boundary_words)
        stage_words = np.zeros((len(self._stages), executor.STAGE_WORDS), np.int64)
        first = 0
        for index, stage in enumerate(self._stages):
            stage_words[index, executor.STAGE_FIRST_PART], stage_words[index, executor.STAGE_PARTS] = first, len(stage)
            first += len(stage)
        return Linked(stage_words, part_words, words)


class Linked(msgspec.Struct):
    """Arrays for the executor; `words` are kept because the parts point to them."""

    stages: NDArray[np.int64]
    parts: NDArray[np.int64]
    words: list[NDArray[Any]]
