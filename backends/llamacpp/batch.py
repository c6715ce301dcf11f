"""The rows of one native call, in memory that is allocated once and written through numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tripower.backends.llamacpp.library import Library


class Batch:
    """A `llama_batch` over arrays of our own, for at most `rows_max` rows of one sequence each."""

    def __init__(self, library: Library, rows_max: int) -> None:
        self.rows_max = rows_max
        self._token, self._position, self._sequence = (np.zeros(rows_max, np.int32) for _ in range(3))
        self._wanted = np.zeros(rows_max, np.int8)
        self._counts = np.ones(rows_max, np.int32)  # each row belongs to one sequence …
        first = self._sequence.ctypes.data
        self._pointers = np.arange(rows_max, dtype=np.uintp) * np.uintp(4) + np.uintp(first)  # … whose id lies here
        ffi = library.ffi
        self.native = ffi.new("llama_batch *")[0]
        fields: dict[tuple[str, str], NDArray[Any]] = {
            ("token", "llama_token *"): self._token,
            ("pos", "llama_pos *"): self._position,
            ("n_seq_id", "int32_t *"): self._counts,
            ("seq_id", "llama_seq_id **"): self._pointers,
            ("logits", "int8_t *"): self._wanted,
        }
        for (field, kind), array in fields.items():
            setattr(self.native, field, ffi.cast(kind, array.ctypes.data))

    @property
    def rows(self) -> int:
        return int(self.native.n_tokens)

    @property
    def words(self) -> dict[str, int]:
        """Addresses of the arrays, for native code that fills them in."""
        arrays: dict[str, NDArray[Any]] = {
            "token": self._token,
            "row_position": self._position,
            "row_place": self._sequence,
            "wanted": self._wanted,
        }
        return {name: array.ctypes.data for name, array in arrays.items()}

    def clear(self) -> None:
        self.native.n_tokens = 0

    def add(self, sequence: int, position: int, tokens: Sequence[int], *, wanted: Sequence[int]) -> None:
        """Append the rows of one sequence; of those numbered `wanted` the logits are kept."""
        first: int = self.native.n_tokens
        end = first + len(tokens)
        self._token[first:end] = tokens
        self._position[first:end] = range(position, position + len(tokens))
        self._sequence[first:end] = sequence
        self._wanted[first:end] = 0
        self._wanted[[first + number for number in wanted]] = 1
        self.native.n_tokens = end
