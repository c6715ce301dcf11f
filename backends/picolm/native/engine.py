"""The native engine: one model whose steps run in generated code, job after job, until somebody has to be heard.

A job begins in Python: slots are filled from the step table, pages are reserved for as far as the job may run, tables of angles are
made long enough. Then one native call runs steps until the boundary halts, on all threads, without Python and without the
interpreter lock. Afterwards what was reached is committed and the rest of the pages goes back. Where a constraint has to be asked or
log probabilities are told between steps, the lane enters native code once for each step instead: see `stepwise`.

A step that is asked for by itself (`step`, `logits`) is a job too, so there is one path and one arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np
from numpy.typing import NDArray

from tripower.backends.picolm.native.program import Program
from tripower.backends.picolm.native.stepwise import Stepwise, has_sound_logits, is_restricted, report_row, state_row
from tripower.backends.picolm.paged_engine import PagedEngine
from tripower.runtime.engine import Certificate, EngineInfo, StepRow, StepTable
from tripower.runtime.engine.step_table import INVALID_LOGITS, NOT_DRAWN
from tripower.runtime.kernel.errors import DeviceFailed

NO_ENDS: frozenset[int] = frozenset()


class NativeEngine(PagedEngine):
    """A `StepEngine`. See `runtime.engine.contract` for what its methods promise."""

    def __init__(self, program: Program, info: EngineInfo) -> None:
        super().__init__(program.pool.table)
        self.info = info
        self._program: Program | None = program
        self._own_table = StepTable(slots_max=program.slots_max, steps_max=1, rows_max=program.rows_max)

    def step(self, rows: Sequence[StepRow]) -> list[int]:
        """Evaluate all rows or none. More rows than the program holds, or more sequences, pass in several steps: no bit changes.

        `INVALID_LOGITS` stands where mask and bans leave nothing of sound logits. Raises as the contract says; `DeviceFailed` may have
        the codes `state_memory_exhausted` and `invalid_logits`.
        """
        self.check_rows(rows)
        drawn: list[int] = []
        done: list[StepRow] = []
        try:
            for first in range(0, len(rows), self._usable.slots_max):
                part = rows[first : first + self._usable.slots_max]
                done += part
                drawn += self._step_part(part)
        except BaseException:
            for row in done:
                self.trim(row.sequence, row.position)
            raise
        return drawn

    def run(self, table: StepTable) -> Iterator[None]:
        """Steps ahead in native code, until all is done or a stop is asked for. Yields where another job of the lane waits.

        What native code would trust is checked first. A sequence ends where the context does. Raises as `step` does.
        """
        self.check_rows(_rows_of(table))
        while _has_work(table):
            if table.stepwise:
                if self._run_stepwise(table):
                    return
            else:
                with self._job(table):
                    self._usable.run(table)
            table.take_turn()
            if _has_work(table):
                yield

    def logits(self, sequence: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append `tokens` to a sequence and return the logits of all of them, float32 [tokens, vocabulary].

        For references and tests: a step only computes the logits that it draws from.
        """
        program = self._usable
        self.check_rows([StepRow(sequence, self.length(sequence), tuple(tokens), draw=False)])
        found = np.empty((len(tokens), self.info.vocabulary_size), np.float32)
        size = min(program.drawn_max, program.rows_max)
        for first in range(0, len(tokens), size):
            part = tuple(tokens[first : first + size])
            self._run_rows([StepRow(sequence, self.length(sequence), part, draw=False)], draw_all=True)
            found[first : first + len(part)] = program.logits[: len(part)]
        return found

    def batch_logits(self, rows: Sequence[StepRow]) -> NDArray[np.float32]:
        """Evaluate rows of several sequences in one step and return the logits of all of them, float32 [rows, vocabulary].

        At most as many as the program's logits have room for, one token each: for the certificate and for tests.
        """
        self.check_rows(rows)
        assert len(rows) <= min(self._usable.slots_max, self._usable.drawn_max)
        self._run_rows(rows, draw_all=True)
        return self._usable.logits[: len(rows)].copy()

    @property
    def verify_rows_max(self) -> int:
        """Rows of one sequence that may have logits in one step."""
        return min(self._usable.drawn_max, self._usable.rows_max)

    def verify(self, sequence: int, tokens: Sequence[int]) -> None:
        """One step over at most `verify_rows_max` tokens with logits at all of them: to measure what it costs."""
        self._run_rows([StepRow(sequence, self.length(sequence), tuple(tokens), draw=False)], draw_all=True)

    def close(self) -> None:
        """End the threads, drop weights and states. Idempotent."""
        if self._program is not None:
            self._program.close()
            self._program = None

    @property
    def program_key(self) -> tuple[object, ...]:
        """What the code was generated from: the certificate holds for nothing else."""
        return self._usable.key

    def take_certificate(self, certificate: Certificate) -> None:
        """Say what was measured. An engine with a mismatch is not called exact."""
        exact = certificate.mismatches == 0
        self.info = msgspec.structs.replace(self.info, certificate=certificate, determinism="exact" if exact else "numeric")

    def take_row_costs(self, costs: tuple[float, ...]) -> None:
        """Say what was measured of steps with 1, 2, 4, … rows. Before the first job."""
        self.info = msgspec.structs.replace(self.info, row_costs=costs)

    @property
    def _usable(self) -> Program:
        assert self._program is not None, "the engine was closed"
        return self._program

    def _step_part(self, rows: Sequence[StepRow]) -> list[int]:
        """Rows of as many sequences as there are slots: steps until nothing is pending."""
        drawn: dict[int, int] = {}
        pending = list(rows)
        while pending:
            drawn |= zip([row.sequence for row in pending], self._run_rows(pending), strict=True)
            pending = [rest for row in pending if (rest := self._rest(row)).tokens]
        return [drawn[row.sequence] for row in rows]

    def _rest(self, row: StepRow) -> StepRow:
        """What is left of a row's tokens."""
        position = self.length(row.sequence)
        return msgspec.structs.replace(row, position=position, tokens=row.tokens[position - row.position :])

    def _run_rows(self, rows: Sequence[StepRow], *, draw_all: bool = False) -> list[int]:
        """One step over as many of these rows as fit into it; what was drawn, by row. `draw_all` computes the logits of all rows."""
        program, table = self._usable, self._own_table
        table.clear(steps_max=1)
        for row in rows:
            table.add(
                sequence=row.sequence,
                position=row.position,
                pending=row.tokens,
                remaining=1 if row.draw else 0,
                output_index=row.output_index,
                sampling=row.sampling,
                ends=NO_ENDS,
                history=row.history,
                prompt_length=row.prompt_length,
            )
        with self._job(table):
            for slot, row in enumerate(rows):
                state_row(program, slot, row)
            if draw_all:
                program.slots.all_rows[:] = 1
            program.run(table)
            drawn = [int(token) if row.draw else NOT_DRAWN for row, token in zip(rows, table.drawn[0], strict=False)]
            for slot, (row, token) in enumerate(zip(rows, drawn, strict=True)):
                if token == INVALID_LOGITS and not (is_restricted(row) and has_sound_logits(program, slot)):
                    raise DeviceFailed(
                        "the device returned logits that are not finite: the model's state is not usable", code="invalid_logits"
                    )
                report_row(program, slot, row, token)
        return drawn

    def _run_stepwise(self, table: StepTable) -> bool:
        """A job with Python between its steps; whether it has to end. On an error the steps that were committed stay, and no other."""
        program = self._usable
        with self._job(table):
            job = Stepwise(program, table, self.info)
            try:
                return job.run()
            except BaseException:
                self._keep(table)
                if job.take_back():
                    program.end(table)
                    for slot in range(table.slots):
                        self.trim(int(table.sequence[slot]), int(table.position[slot]))
                raise

    @contextmanager
    def _job(self, table: StepTable) -> Iterator[None]:
        """Reserve pages and fill the slots before, commit what was reached after. On an error every sequence is as it was."""
        program = self._usable
        sequences = [int(sequence) for sequence in table.sequence[: table.slots]]
        reserved: list[int] = []
        try:
            for slot, sequence in enumerate(sequences):
                if table.pending[slot]:
                    program.pool.reserve(sequence, self._positions_ahead(table, slot))
                    reserved.append(sequence)
            program.begin(table, [self._pages.pages(sequence) for sequence in sequences])
            yield
        except BaseException:
            for sequence in reserved:
                self._pages.trim(sequence, self._pages.length(sequence))
            raise
        self._keep(table)

    def _keep(self, table: StepTable) -> None:
        """Commit the positions that the slots have reached, and tell the table."""
        program = self._usable
        for slot in range(table.slots):
            sequence = int(table.sequence[slot])
            self._pages.commit(sequence, int(program.slots.position[slot]) - self._pages.length(sequence))
        program.end(table)

    def _positions_ahead(self, table: StepTable, slot: int) -> int:
        """Positions that a slot can reach at most: all that is pending, and what it may draw and evaluate after that."""
        pending = len(table.pending[slot])
        drawn = min(max(int(table.remaining[slot]) - 1, 0), self._usable.tokens_ahead(table, slot))
        return min(pending + drawn, self.info.context_max - int(table.position[slot]))


def _rows_of(table: StepTable) -> list[StepRow]:
    """What the slots have pending, as rows: for the checks."""
    return [
        StepRow(int(sequence), int(position), tuple(pending), draw=True, sampling=sampling)
        for sequence, position, pending, sampling in zip(
            table.sequence, table.position, table.pending, table.sampling, strict=False
        )
        if pending
    ]


def _has_work(table: StepTable) -> bool:
    """Whether the lane may go on: somebody has something pending, steps are left, and no stop was asked for."""
    return any(table.pending) and not table.stop and table.steps_done < table.steps_max
