"""The slots of a job: what the boundary reads and moves, filled from a step table before the job and read back after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tripower.backends.picolm.native.boundary import DRAWS_LAST
from tripower.backends.picolm.native.memory import address, zeros
from tripower.runtime.engine.logprobs import NO_LOGPROBS

Array = NDArray[Any]


class Slots:
    """Arrays int64 [slots_max], by the names that `boundary.WORDS` has for them, and the tokens of each slot."""

    def __init__(self, slots_max: int, vocabulary_size: int) -> None:
        self._vocabulary_size = vocabulary_size
        self._moved = zeros((6, slots_max), np.int64)
        """What a step moves."""
        self.next, self.end, self.remaining, self.output_index, self.alive, self.position = self._moved
        self.ends, self.tokens = (zeros(slots_max, np.int64) for _ in range(2))
        self.step_rows, self.all_rows, self.first_logits, self.draw_at = (zeros(slots_max, np.int64) for _ in range(4))
        self.drafted, self.draws = (zeros(slots_max, np.int64) for _ in range(2))
        self.report_top = zeros(slots_max, np.int64)
        """Alternatives to report at each row of logits; -1: no report."""
        self._buffers: list[Array] = []
        self._end_marks: dict[frozenset[int], Array] = {}

    def clear(self) -> None:
        """Empty all slots."""
        self._buffers.clear()
        self.alive[:] = 0
        self.step_rows[:] = 0
        self.all_rows[:] = 0
        self.drafted[:] = 0
        self.draws[:] = DRAWS_LAST
        self.draw_at[:] = -1
        self.report_top[:] = NO_LOGPROBS

    def add(self, *, position: int, pending: Sequence[int], remaining: int, output_index: int, ends: frozenset[int]) -> None:
        """Fill the next slot with the tokens that it has to evaluate; without any it takes no part."""
        slot = len(self._buffers)
        buffer = np.empty(len(pending) + remaining, np.int32)
        buffer[: len(pending)] = pending
        self._buffers.append(buffer)
        self.tokens[slot] = address(buffer)
        self.next[slot], self.end[slot] = 0, len(pending)
        self.remaining[slot], self.output_index[slot], self.position[slot] = remaining, output_index, position
        self.alive[slot] = 1 if pending else 0
        self.ends[slot] = address(self._marks(ends))

    def pending(self, slot: int) -> list[int]:
        """Tokens that are still to be evaluated; none if the slot has ended."""
        if not self.alive[slot]:
            return []
        return [int(token) for token in self._buffers[slot][self.next[slot] : self.end[slot]]]

    def step_tokens(self, slot: int) -> list[int]:
        """The tokens that the last step evaluated, and the one behind them if it is known."""
        end = int(self.next[slot])
        return [int(token) for token in self._buffers[slot][end - self.step_rows[slot] : min(end + 1, int(self.end[slot]))]]

    def put_drafts(self, slot: int, tokens: Sequence[int], draws: int) -> None:
        """Let guesses follow a slot's last token in the next step, with logits at all rows."""
        end = int(self.end[slot])
        self._buffers[slot][end : end + len(tokens)] = tokens
        self.end[slot] = end + len(tokens)
        self.drafted[slot], self.draws[slot], self.all_rows[slot] = len(tokens), draws, 1

    def take_run(self, slot: int, run: Sequence[int], *, goes_on: bool) -> None:
        """Move a slot with guesses on, from where it stood before the step, by what was drawn. The last token may be none."""
        count = len(run)
        end, known = int(self.end[slot]), [token for token in run if token >= 0]
        self._buffers[slot][end : end + len(known)] = known
        self.next[slot] += count
        self.position[slot] += count
        self.end[slot] = end + len(known)
        self.output_index[slot] += count
        self.remaining[slot] -= count
        self.alive[slot] = int(goes_on)

    def drop_drafts(self, slots: Sequence[int]) -> None:
        """The step with guesses is over: these slots draw as ever."""
        self.drafted[slots], self.draws[slots], self.all_rows[slots] = 0, DRAWS_LAST, 0

    def save(self) -> Array:
        """What a step moves, to be put back by `restore`."""
        return self._moved.copy()

    def restore(self, saved: Array, slot: int | None = None) -> None:
        """Take a step back, for all slots or one."""
        if slot is None:
            self._moved[:] = saved
        else:
            self._moved[:, slot] = saved[:, slot]

    def _marks(self, ends: frozenset[int]) -> Array:
        """uint8 [vocabulary], 1 at end tokens; one array for each set that was ever asked for, since they are few."""
        if ends not in self._end_marks:
            marks = zeros(self._vocabulary_size, np.uint8)
            marks[[token for token in ends if 0 <= token < self._vocabulary_size]] = 1
            self._end_marks[ends] = marks
        return self._end_marks[ends]
