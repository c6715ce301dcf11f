"""What the native draw knows of each sequence: one record of 64-bit words, filled by Python when a job begins.

Whatever takes part in a comparison (the logarithm of min-p) is computed here by the same expression as in `backends.sampling`, so
that both ways filter alike. Which tokens a constraint allows is stated step by step, with `set_mask`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tripower.backends.picolm.native.emit import F64, I64, PTR, Function, Value, i64
from tripower.backends.sampling import is_plain_greedy
from tripower.runtime.engine.constraint import TokenMask
from tripower.runtime.engine.sampling_parameters import SamplingParameters

SETTINGS = np.dtype(
    [
        ("plain_greedy", np.int64),
        ("temperature", np.float64),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("score_min", np.float64),
        ("repeat_penalty", np.float64),
        ("repeat_last_n", np.int64),
        ("presence_penalty", np.float64),
        ("frequency_penalty", np.float64),
        ("seed", np.uint64),
        ("choice", np.uint64),
        ("bias_tokens", np.int64),
        ("bias_values", np.int64),
        ("bias_count", np.int64),
        ("history", np.int64),
        ("history_length", np.int64),
        ("history_capacity", np.int64),
        ("prompt_length", np.int64),
        ("banned", np.int64),
        ("banned_count", np.int64),
        ("banned_until", np.int64),
        ("mask", np.int64),
    ]
)
"""`score_min` is the log of min-p, -inf for none. `bias_tokens`, `bias_values`, `history` and `banned` are addresses of int32, float64,
int32 and int32 arrays; `history` is 0 where no penalty looks at it. `mask` is the address of a `TokenMask`, 0 where all may come."""

WORDS = {name: index for index, name in enumerate(SETTINGS.names or ())}
Arrays: TypeAlias = tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.int32], NDArray[np.int32]]
NOTHING: Arrays = (np.zeros(0, np.int32), np.zeros(0, np.float64), np.zeros(0, np.int32), np.zeros(0, np.int32))
MASK_BITS = 32


class SamplingSettings:
    """Records for `slots_max` sequences, and the arrays that they point to."""

    def __init__(self, slots_max: int, vocabulary_size: int) -> None:
        self.records: NDArray[Any] = np.zeros(slots_max, SETTINGS)
        self._arrays = [NOTHING] * slots_max
        masks = np.zeros((slots_max, -(-vocabulary_size // MASK_BITS)), np.uint32)
        self._masks = list(masks)
        self._mask_addresses = [mask.ctypes.data for mask in self._masks]
        self._mask_in_use = self.records["mask"]

    @property
    def address(self) -> int:
        """Of the first record."""
        return int(self.records.ctypes.data)

    def fill(
        self, slot: int, parameters: SamplingParameters, *, history: Sequence[int], prompt_length: int, tokens_more: int
    ) -> None:
        """State how a slot draws. `history`, prompt and output up to what the next step evaluates, is copied if a penalty needs it,
        with room for `tokens_more` that the job will add."""
        tokens = np.array([token for token, _ in parameters.logit_bias], np.int32)
        values = np.array([bias for _, bias in parameters.logit_bias], np.float64)
        banned = np.array(parameters.banned, np.int32)
        kept = np.zeros(0, np.int32)
        if looks_back(parameters):
            kept = np.zeros(len(history) + tokens_more, np.int32)
            kept[: len(history)] = history
        self._arrays[slot] = (tokens, values, kept, banned)
        words = 2**64 - 1
        self.records[slot] = (
            is_plain_greedy(parameters),
            parameters.temperature,
            parameters.top_k,
            parameters.top_p,
            min(math.log(parameters.min_p), 0.0) if parameters.min_p > 0 else -math.inf,
            parameters.repeat_penalty,
            parameters.repeat_last_n,
            parameters.presence_penalty,
            parameters.frequency_penalty,
            parameters.seed & words,
            parameters.choice & words,
            tokens.ctypes.data,
            values.ctypes.data,
            len(tokens),
            kept.ctypes.data if len(kept) else 0,
            len(history) if len(kept) else 0,
            len(kept),
            prompt_length,
            banned.ctypes.data,
            len(banned),
            parameters.banned_until,
            0,
        )

    def set_mask(self, slot: int, mask: TokenMask | None) -> None:
        """What may be drawn for a slot from now on; None: everything. Copied; a token that a short mask does not know is not allowed."""
        if mask is None:
            self._mask_in_use[slot] = 0
            return
        own = self._masks[slot]
        if len(mask) == len(own):
            own[:] = mask
        else:
            words = min(len(mask), len(own))
            own[:words], own[words:] = mask[:words], 0
        self._mask_in_use[slot] = self._mask_addresses[slot]

    def append_history(self, slot: int, token: int) -> None:
        """Add a token to what is kept of a slot, where a penalty looks at it. No kernel may run."""
        length = int(self.records["history_length"][slot])
        if length < self.records["history_capacity"][slot]:
            self._arrays[slot][2][length] = token
            self.records["history_length"][slot] = length + 1

    def history(self, slot: int) -> list[int]:
        """What is kept of a slot's tokens so far; empty where no penalty looks at it."""
        kept = self._arrays[slot][2]
        return [int(token) for token in kept[: self.records["history_length"][slot]]]

    def clear(self) -> None:
        """Let go of all arrays. No kernel may run."""
        self.records[:] = np.zeros((), SETTINGS)
        self._arrays = [NOTHING] * len(self._arrays)


def looks_back(parameters: SamplingParameters) -> bool:
    """Whether a draw depends on the tokens before it."""
    repeats = parameters.repeat_penalty != 1 and parameters.repeat_last_n != 0
    return repeats or bool(parameters.presence_penalty or parameters.frequency_penalty)


class Record:
    """A record as kernels read it."""

    def __init__(self, function: Function, records: Value, slot: Value) -> None:
        self._function = function
        self.address = function.at(records, function.b.mul(slot, i64(len(WORDS))), I64)

    def number(self, name: str) -> Value:
        """A field as int64."""
        return self._function.load(self.address, WORDS[name], I64)

    def float(self, name: str) -> Value:
        """A field as float64."""
        return self._function.load(self.address, WORDS[name], F64)

    def pointer(self, name: str) -> Value:
        """A field as an address."""
        return self._function.load(self.address, WORDS[name], PTR)


def emit_append_history(function: Function, records: Value, slot: Value, token: Value) -> None:
    """Add an int32 token to the history of an int64 slot, if it has one with room: for whoever decides what is evaluated next."""
    b = function.b
    record = Record(function, records, slot)
    length = record.number("history_length")
    with b.if_then(b.icmp_signed("<", length, record.number("history_capacity"))):
        function.store(token, record.pointer("history"), length)
        function.store(b.add(length, i64(1)), record.address, WORDS["history_length"])


assert all(SETTINGS.fields is not None and SETTINGS.fields[name][1] == 8 * index for name, index in WORDS.items())
