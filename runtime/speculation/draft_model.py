"""A small model that writes ahead for a larger one: its engine, what its steps cost, and its states.

Each of the target's sequences has a state here under the same id, opened when it is first asked for. A state agrees with its text
except for what was guessed behind the text's end; whoever asks says how far it agrees, and what has come since is evaluated in the same job as the
next guess. All of it runs on the lane of the target, between two of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tripower.runtime.engine import SamplingParameters, StepEngine, StepRow, StepTable
from tripower.runtime.engine.logprobs import NO_LOGPROBS
from tripower.runtime.engine.row_costs import costs_of
from tripower.runtime.engine.step_table import NOT_DRAWN
from tripower.runtime.speculation.settings import DRAFT_BOUND

ROWS_AT_A_TIME = 256
"""Rows of a prompt that are evaluated between two steps of the target: what others wait for at most, and a stop."""
NO_ENDS: frozenset[int] = frozenset()


class DraftModel:
    """Belongs to the lane of its target; `step_cost` and `price` may be read from anywhere. Closed with the target."""

    def __init__(self, engine: StepEngine, *, step_cost: float) -> None:
        """`step_cost`: what a step of one row costs, in such steps of the target. Positive."""
        assert 0 < step_cost < math.inf
        self.engine, self.step_cost = engine, step_cost
        self._costs = costs_of(engine.info.row_costs)
        self._table = StepTable(slots_max=1, steps_max=4 * DRAFT_BOUND, rows_max=ROWS_AT_A_TIME)

    def price(self, rows: int) -> float:
        """What a step with so many rows costs, in steps of the target with one row."""
        return self.step_cost * self._costs.step(rows)

    def length(self, sequence: int) -> int:
        """Positions evaluated so far; 0 for a sequence that it has not heard of."""
        return self.engine.length(sequence) if sequence in self.engine.sequences() else 0

    def trim(self, sequence: int, length: int) -> None:
        """Forget positions from `length` on, if there are any."""
        if self.length(sequence) > length:
            self.engine.trim(sequence, length)

    def read(self, sequence: int, tokens: Sequence[int]) -> None:
        """Evaluate tokens without drawing; the sequence is opened if need be. Blocks. Raises as `StepEngine.step` does."""
        self._open(sequence)
        self.engine.step([StepRow(sequence, self.engine.length(sequence), tuple(tokens), draw=False)])

    def guess(
        self,
        sequence: int,
        text: Sequence[int],
        most: int,
        *,
        prompt_length: int,
        sampling: SamplingParameters,
        sure: float = 0.0,
    ) -> list[int]:
        """At most `most` tokens that may follow `text`, of which the state holds less than all. Blocks for as many steps.

        Each is drawn with the settings and the random number that the target will draw with in its place, so that two models that
        agree guess right at any temperature. The guess ends in front of a token less likely than `sure`. Raises as `StepEngine.run`.
        """
        self._open(sequence)
        table, start = self._table, self.engine.length(sequence)
        most = min(most, self.engine.info.context_max - len(text) + 1, DRAFT_BOUND)
        if most < 1:
            return []
        table.clear(steps_max=len(table.drawn))
        table.add(
            sequence=sequence,
            position=start,
            pending=text[start:],
            remaining=most,
            output_index=len(text) - prompt_length,
            sampling=sampling,
            ends=NO_ENDS,
            history=text if looks_back(sampling) else (),
            prompt_length=prompt_length,
            logprobs=0 if sure else NO_LOGPROBS,
        )
        for _ in self.engine.run(table):
            pass
        guesses = self._drawn(sure)
        self.trim(sequence, len(text) + max(len(guesses) - 1, 0))
        return guesses

    def fork(self, source: int, sequence: int, length: int) -> None:
        """Let a sequence begin as another one does, as far as that one has come."""
        length = min(length, self.length(source))
        if length:
            self.engine.fork(source, sequence, length)

    def retain(self, sequence: int, length: int) -> None:
        """Keep the beginning for forks: see `StepEngine.retain`."""
        if reached := self.length(sequence):
            self.engine.retain(sequence, min(length, reached))

    def forget(self, sequence: int) -> None:
        """Free the state, if there is one."""
        self.engine.close_sequence(sequence)

    def close(self) -> None:
        """Free everything. Idempotent."""
        self.engine.close()

    def _open(self, sequence: int) -> None:
        if sequence not in self.engine.sequences():
            self.engine.open_sequence(sequence)

    def _drawn(self, sure: float) -> list[int]:
        """What the job has drawn, up to the first token that is none or that is not likely enough."""
        table, guesses = self._table, list[int]()
        for step, token in enumerate(table.drawn[: table.steps_done, 0].tolist()):
            if token == NOT_DRAWN:
                continue  # a step inside what had come
            report = table.reports.get(step, {}).get(0)
            unsure = sure and report is not None and report.drawn is not None and math.exp(report.drawn.logprob) < sure
            if token < 0 or unsure:
                break
            guesses.append(token)
        return guesses


def looks_back(sampling: SamplingParameters) -> bool:
    """Whether a draw depends on the tokens before."""
    return bool(sampling.repeat_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty)
