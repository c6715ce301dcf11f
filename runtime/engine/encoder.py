"""The contract between the runtime and an engine that turns texts into vectors.

An *encoder* keeps no state between two requests and draws nothing: a row of token ids goes in, a vector of unit length comes out. It
lives on a lane, as an engine of rows does, and its work is cut into pieces there, so that whatever else the lane runs has its turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from tripower.runtime.engine.contract import EngineInfo, LoadedModel

Vectors = NDArray[np.float32]
"""float32 [rows, dimensions]."""


class EncoderEngine(Protocol):
    """One encoder resident on one device. All methods may block; none may be called off the lane."""

    info: EngineInfo
    """`context_max` is the most tokens that a row may have."""
    dimensions: int

    def encode(self, rows: Sequence[Sequence[int]], vectors: Vectors) -> Iterator[None]:
        """Write the vector of every row to the same place of `vectors`, and yield at every boundary where it can stop.

        Rows have 1 to `context_max` ids of the vocabulary. A row's vector depends on no other row, beyond rounding. Raises
        `DeviceFailed` where a vector is not finite.
        """

    def close(self) -> None:
        """Free everything. Idempotent."""


class EncoderText(Protocol):
    """Text to rows for one encoder. Synchronous; safe to use from any thread."""

    tokens_min: int
    """A row that says anything has that many tokens, with the ones that every row begins and ends with."""

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """A row for each text, however long. Raises `InvalidRequest` (`tokenizer_failed`)."""

    def cut(self, row: Sequence[int], length: int) -> list[int]:
        """A row of `tokenize` with `length` tokens at most, at least `tokens_min`: text is lost at its end only."""


class LoadedEncoder(msgspec.Struct, frozen=True):
    """An encoder and its tokenizer, made by a backend on the lane that will run it."""

    engine: EncoderEngine
    text: EncoderText


LaneModel = LoadedModel | LoadedEncoder
"""What a lane can hold."""
