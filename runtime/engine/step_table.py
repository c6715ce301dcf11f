"""The table that a lane and the Trio loop share while steps run.

The loop fills the slots, the lane runs ahead. After each step the lane writes one row of `drawn` and `evaluated`, then raises
`steps_done`; a native loop then writes to the port's descriptor, and otherwise the lane signals at each boundary. The loop reads the
rows up to `steps_done`. The loop may set `stop` at any time; the lane ends at the next boundary. Everything a native loop needs sits in plain arrays, so that no Python object crosses the threads between steps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from tripower.runtime.engine.constraint import Constraint
from tripower.runtime.engine.drafting import Drafter, DraftTally
from tripower.runtime.engine.logprobs import NO_LOGPROBS, RowReport
from tripower.runtime.engine.row_sharing import Pace
from tripower.runtime.engine.sampling_parameters import SamplingParameters

STOP, STEPS_DONE, STEPS_MAX, SLOTS, SIGNAL_FD, TURN = range(6)
NOT_DRAWN = -1
INVALID_LOGITS = -2
"""In place of a token: the row's logits were not finite. It ends that sequence and no other."""


Runs = Mapping[int, tuple[int, ...]]
NO_RUNS: Runs = MappingProxyType({})
NO_DRAFTS: Mapping[int, int] = MappingProxyType({})


class StepTable:
    """Slots for `slots_max` sequences and results for `steps_max` steps.

    Arrays, all C-contiguous: `control` int64 [8]; `sequence`, `position`, `output_index`, `remaining` int64 [slots_max]; `last`
    int64 [slots_max] (the token to evaluate next); `drawn` and `evaluated` int32 [steps_max, slots_max]; `ends` uint8
    [vocabulary_size] (1 at end-of-generation tokens). Python-only columns: `pending` (tokens still to evaluate), `history` (a native
    loop keeps it up only where a penalty looks at it), `sampling`, `prompt_length`, `constraint`, `logprobs`, `prompt_logprobs`,
    `drafter`.

    A slot whose guesses were right has drawn several tokens in one step: `drawn` is the last of them, those before it are in `runs`,
    and `evaluated` counts the rows that are kept, as many as tokens were drawn.
    """

    def __init__(self, *, slots_max: int, steps_max: int, rows_max: int, mixed_rows: int = 0) -> None:
        self.slots_max = slots_max
        self.rows_max = rows_max
        """Rows a step may evaluate."""
        self.mixed_rows = mixed_rows or rows_max
        """Prompt rows a step may evaluate while somebody decodes, besides one for each sequence: bounds how long a prompt stalls the
        others."""
        self.control = np.zeros(8, np.int64)
        self.sequence, self.position, self.output_index, self.remaining, self.last = (
            np.zeros(slots_max, np.int64) for _ in range(5)
        )
        self.drawn = np.zeros((steps_max, slots_max), np.int32)
        self.evaluated = np.zeros((steps_max, slots_max), np.int32)
        self.pending: list[list[int]] = []
        self.history: list[list[int]] = []
        self.sampling: list[SamplingParameters] = []
        self.ends: list[frozenset[int]] = []
        self.prompt_length: list[int] = []
        self.constraint: list[Constraint | None] = []
        self.logprobs: list[int] = []
        self.prompt_logprobs: list[int] = []
        self.drafter: list[Drafter | None] = []
        self.runs: dict[int, Runs] = {}
        """By step and slot, the tokens drawn before `drawn`: there before `steps_done` tells of the step, as all that follows."""
        self.proposed: dict[int, Mapping[int, int]] = {}
        """By step and slot, how many guesses were evaluated."""
        self.tally = DraftTally()
        """What guesses took since somebody last asked: it outlives `clear`."""
        self._paces: dict[int, Pace] = {}
        self.reports: dict[int, dict[int, RowReport]] = {}
        """By step and slot, for slots that asked for log probabilities: there before `steps_done` tells of the step."""

    @property
    def slots(self) -> int:
        return len(self.pending)

    @property
    def steps_max(self) -> int:
        return int(self.control[STEPS_MAX])

    @property
    def steps_done(self) -> int:
        return int(self.control[STEPS_DONE])

    @property
    def stop(self) -> bool:
        return bool(self.control[STOP])

    @property
    def turn(self) -> bool:
        """Whether a native loop was asked to come back."""
        return bool(self.control[TURN])

    @property
    def stepwise(self) -> bool:
        """Whether some slot needs Python between steps: a constraint or a drafter to ask, or log probabilities to report."""
        return any(each is not None for each in (*self.constraint, *self.drafter)) or any(
            wanted != NO_LOGPROBS for wanted in (*self.logprobs, *self.prompt_logprobs)
        )

    def request_stop(self) -> None:
        """Ask the lane to end at the next boundary. Synchronous, from any thread."""
        self.control[STOP] = 1

    def request_turn(self) -> None:
        """Ask a native loop to come back at the next boundary, so that another job of the lane gets its turn. From any thread."""
        self.control[TURN] = 1

    def take_turn(self) -> None:
        """A native loop has come back, and may go on when it is called again. On the lane."""
        self.control[TURN] = 0

    def set_signal_fd(self, descriptor: int) -> None:
        """Where a native loop writes after each step; -1 for nowhere."""
        self.control[SIGNAL_FD] = descriptor

    def clear(self, *, steps_max: int) -> None:
        """Empty all slots for a new job of at most `steps_max` steps."""
        assert 1 <= steps_max <= len(self.drawn)
        self.control[:] = 0
        self.control[STEPS_MAX] = steps_max
        self.control[SIGNAL_FD] = -1
        for column in (
            self.pending, self.history, self.sampling, self.ends, self.prompt_length,
            self.constraint, self.logprobs, self.prompt_logprobs, self.reports, self.drafter, self.runs, self.proposed,
        ):  # fmt: skip
            column.clear()

    def add(
        self,
        *,
        sequence: int,
        position: int,
        pending: Sequence[int],
        remaining: int,
        output_index: int,
        sampling: SamplingParameters,
        ends: frozenset[int],
        history: Sequence[int],
        prompt_length: int,
        constraint: Constraint | None = None,
        logprobs: int = NO_LOGPROBS,
        prompt_logprobs: int = NO_LOGPROBS,
        drafter: Drafter | None = None,
    ) -> None:
        """Fill the next slot. `pending` holds the tokens that are not evaluated yet, at least one.

        `constraint` stands where the output so far has brought it, a drawn token in `pending` included. `logprobs` and `prompt_logprobs` are numbers of
        alternatives at each drawn token, and at each token of the prompt.
        """
        slot = self.slots
        assert slot < self.slots_max and pending
        self.sequence[slot] = sequence
        self.position[slot] = position
        self.output_index[slot] = output_index
        self.remaining[slot] = remaining
        self.last[slot] = pending[-1]
        self.pending.append(list(pending))
        self.history.append(list(history))
        self.sampling.append(sampling)
        self.ends.append(ends)
        self.prompt_length.append(prompt_length)
        self.constraint.append(constraint)
        self.logprobs.append(logprobs)
        self.prompt_logprobs.append(prompt_logprobs)
        self.drafter.append(drafter)
        self.control[SLOTS] = slot + 1

    def paces(self) -> list[Pace]:
        """What each slot's sequence has waited for others' guesses, from job to job. Whoever has drawn nothing before this job begins anew."""
        known, slots = self._paces, self.slots
        self._paces = {
            sequence: known[sequence] if drawn and sequence in known else Pace()
            for sequence, drawn in zip(self.sequence[:slots].tolist(), self.output_index[:slots].tolist(), strict=True)
        }
        return list(self._paces.values())

    def commit(self, evaluated: Sequence[int], drawn: Sequence[int]) -> None:
        """Record one step: for each slot the rows evaluated and kept (0: not in the step) and the token drawn last (-1: none)."""
        step = self.steps_done
        self.evaluated[step, : len(evaluated)] = evaluated
        self.drawn[step, : len(drawn)] = drawn
        if step in self.proposed:
            self.tally.verify_seconds += time.perf_counter() - self.tally.ready_at
        self.control[STEPS_DONE] = step + 1
