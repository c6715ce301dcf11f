"""The engine `llamacpp`: llama.cpp evaluates the rows, everything else is ours.

The runtime's sequence ids are arbitrary; llama.cpp's are places, 0 to n - 1, each with its own stream of KV. A place is taken lowest
first and rows enter a batch in the order of places, because llama.cpp evaluates neighbouring places in one pass over the weights and
starts another pass at each gap.

A step is one native call, unless it has more rows than a batch may. Rows are checked first, since native code aborts on odd ones. On
any failure every sequence is trimmed back to where it was, so a step happens as a whole or not at all. Logits are drawn from where
llama.cpp leaves them, without a copy.

The engine belongs to the thread that loaded it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tripower.backends.llamacpp.library import Library
from tripower.backends.llamacpp.native import Context
from tripower.backends.llamacpp.row_checks import check_length, check_rows, known_length
from tripower.backends.llamacpp.run_ahead import RunAhead, decodes_plainly
from tripower.backends.row_reports import Wanted, draw_and_report, wanted_of
from tripower.runtime.engine import EngineInfo, StepRow, StepTable, run_steps
from tripower.runtime.engine.contract import SPECULATION
from tripower.runtime.engine.step_table import NOT_DRAWN
from tripower.runtime.kernel.errors import DeviceFailed, InvalidRequest, TripowerError

DONE = object()


class LlamacppEngine:
    """A `StepEngine`. See `runtime.engine.contract` for what its methods promise."""

    def __init__(
        self,
        library: Library,
        model: Any,
        *,
        architecture: str,
        context_max: int,
        sequences_max: int,
        threads: int,
        state_bytes_per_token: int = 0,
    ) -> None:
        """Take over the handle of a model, also when this fails. Raises `ModelRefused` when there is no memory for the states."""
        api = library.api
        self._api, self._model = api, model
        self.library = library
        try:
            self._context = Context(library, model, positions=context_max, sequences=sequences_max, threads=threads)
        except BaseException:
            api.llama_model_free(model)
            raise
        self._places: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._free = list(range(sequences_max))
        self._ahead: RunAhead | None = None
        self.info = EngineInfo(
            backend="llamacpp",
            architecture=architecture,
            context_max=context_max,
            vocabulary_size=int(api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))),
            sequences_max=sequences_max,
            parameters=int(api.llama_model_n_params(model)),
            weight_bytes=int(api.llama_model_size(model)),
            state_bytes_per_token=state_bytes_per_token,
            threads=threads,
            determinism="numeric",
            unsupported=frozenset({SPECULATION}),
            kernels=f"llama.cpp {library.version()}",
        )

    def open_sequence(self, sequence: int) -> None:
        if sequence not in self._places:
            self._check_place()
            self._places[sequence] = heapq.heappop(self._free)
        self._context.trim(self._places[sequence], 0)
        self._lengths[sequence] = 0

    def sequences(self) -> list[int]:
        return list(self._places)

    def close_sequence(self, sequence: int) -> None:
        if sequence in self._places:
            place = self._places.pop(sequence)
            del self._lengths[sequence]
            heapq.heappush(self._free, place)
            self._context.trim(place, 0)

    def trim(self, sequence: int, length: int) -> None:
        """Forget positions from `length` on. Raises `DeviceFailed` (`state_refused`) where llama.cpp cannot do that exactly."""
        check_length(self._lengths, sequence, length)
        self._context.trim(self._places[sequence], length)
        self._lengths[sequence] = length

    def fork(self, source: int, sequence: int, length: int) -> None:
        """Copy the first `length` positions: places do not share memory."""
        check_length(self._lengths, source, length)
        if sequence in self._places:
            raise InvalidRequest(f"the sequence {sequence} is open already", param="sequence")
        self.open_sequence(sequence)
        if length:
            place = self._places[sequence]
            try:
                self._context.copy(self._places[source], place)
                self._context.trim(place, length)
            except DeviceFailed:
                self.close_sequence(sequence)
                raise
            self._lengths[sequence] = length

    def retain(self, sequence: int, length: int) -> None:
        """Trim only: a place stays taken, which is why this engine offers no reuse."""
        self.trim(sequence, length)

    def length(self, sequence: int) -> int:
        return known_length(self._lengths, sequence)

    def step(self, rows: Sequence[StepRow]) -> list[int]:
        """Evaluate all rows or none. Blocks for one native call, or one for each 2048 rows.

        Raises as the contract says; `DeviceFailed` may have the codes `state_memory_exhausted`, `state_refused`, `invalid_logits`.
        """
        if not rows:
            return []
        check_rows(rows, self._lengths, self.info)
        order = sorted(range(len(rows)), key=lambda index: self._places[rows[index].sequence])
        tokens = [NOT_DRAWN] * len(rows)
        with self._all_or_none(rows):
            for wanted in self._evaluate(rows, order):
                for index, token in draw_and_report(self._context.logits(len(wanted)), wanted, rows).items():
                    tokens[index] = token
        return tokens

    def run(self, table: StepTable) -> Iterator[None]:
        """Steps in Python, and ahead without it while everybody only takes the likeliest token."""
        steps = run_steps(self, table)
        while True:
            if not self._may_run_ahead(table):
                if next(steps, DONE) is DONE:
                    return
            else:
                self._run_ahead(table)
                if table.turn:
                    table.take_turn()
                if not any(table.pending) or table.stop or table.steps_done >= table.steps_max:
                    return
            yield

    def logits(self, sequence: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append `tokens` to a sequence and return the logits of all of them, float32 [tokens, vocabulary].

        For references and tests: a step only keeps the logits that it draws from, so this goes by as many tokens as there may be
        sequences.
        """
        values = []
        for start in range(0, len(tokens), self.info.sequences_max):
            row = StepRow(sequence, self.length(sequence), tuple(tokens[start : start + self.info.sequences_max]), draw=False)
            check_rows([row], self._lengths, self.info)
            with self._all_or_none([row]):
                self._context.batch.clear()
                self._context.batch.add(self._places[sequence], row.position, row.tokens, wanted=range(len(row.tokens)))
                self._context.decode()
                values.append(self._context.logits(len(row.tokens)).copy())
        return np.concatenate(values)

    def close(self) -> None:
        """Free the states, then the weights. Idempotent."""
        if self._model is not None:
            self._context.close()
            self._api.llama_model_free(self._model)
            self._model = None
            self._places.clear()
            self._lengths.clear()

    def _may_run_ahead(self, table: StepTable) -> bool:
        """Whether everybody who goes on only takes the likeliest token, and has the positions to do so until the table ends."""
        steps = table.steps_max - table.steps_done
        return decodes_plainly(table) and all(
            table.position[slot] + min(table.remaining[slot], steps) <= self.info.context_max
            for slot, pending in enumerate(table.pending)
            if pending
        )

    def _run_ahead(self, table: StepTable) -> None:
        """Run until the next boundary that somebody asks for. Raises `DeviceFailed`; all steps before that one hold."""
        if self._ahead is None:
            self._ahead = RunAhead(self._context)
        going_on = [slot for slot, pending in enumerate(table.pending) if pending]
        sequences = [int(table.sequence[slot]) for slot in going_on]
        rows = [
            StepRow(sequence, int(table.position[slot]), (table.pending[slot][0],), draw=False)
            for sequence, slot in zip(sequences, going_on, strict=True)
        ]
        check_rows(rows, self._lengths, self.info)
        status = self._ahead.run(table, self._places)
        for sequence, slot in zip(sequences, going_on, strict=True):
            self._lengths[sequence] = int(table.position[slot])
            if status:
                self._context.trim(self._places[sequence], self._lengths[sequence])
        self._context.check(status)

    def _evaluate(self, rows: Sequence[StepRow], order: Sequence[int]) -> Iterator[list[Wanted]]:
        """Evaluate the rows in this order, and yield after a native call what it has logits for: no more than there are places."""
        batch = self._context.batch
        batch.clear()
        told: list[Wanted] = []
        for index in order:
            row = rows[index]
            place, done, wanted = self._places[row.sequence], 0, wanted_of(index, row)
            while done < len(row.tokens):
                end = min(len(row.tokens), done + batch.rows_max - batch.rows)
                room = self._context.outputs_max - len(told)
                here = [each for each in wanted if done <= each.offset < end]
                if len(here) > room:
                    here, end = here[:room], here[room].offset
                batch.add(place, row.position + done, row.tokens[done:end], wanted=[each.offset - done for each in here])
                told += here
                done = end
                if batch.rows == batch.rows_max or done < len(row.tokens):
                    self._context.decode()
                    yield from [told] if told else []
                    batch.clear()
                    told = []
        if batch.rows:
            self._context.decode()
            yield from [told] if told else []

    @contextmanager
    def _all_or_none(self, rows: Sequence[StepRow]) -> Iterator[None]:
        """Move the rows' sequences on at the end, or trim them back and map what went wrong to `DeviceFailed`."""
        try:
            yield
        except BaseException as error:
            for row in rows:
                self._context.trim(self._places[row.sequence], row.position)
            if isinstance(error, Exception) and not isinstance(error, TripowerError):
                raise DeviceFailed(f"a step failed: {error}") from error
            raise
        for row in rows:
            self._lengths[row.sequence] += len(row.tokens)

    def _check_place(self) -> None:
        if self._model is None:
            raise DeviceFailed("the engine was closed")
        if not self._free:
            raise DeviceFailed(
                f"all {self.info.sequences_max} sequences that memory was admitted for are open", code="state_memory_exhausted"
            )
