"""A language model of one integer: for the kernel's own tests, the simulation and the benches of overhead.

A sequence's state is a running hash of its tokens, and the next token is a function of that state, so a lost, repeated or misplaced
row changes every token after it. Tokens are bytes; 256 ends the text. Decoding runs in a native loop, emitted as LLVM IR, that
reads and writes the step table without Python between steps: the shape in which a real engine runs ahead.

Where a mask or a ban forbids the token, and where log probabilities are asked for, a state has logits as well, of which the token that
it draws at temperature 0 is the likeliest. Such steps pass through Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tripower.backends.row_reports import RunWalk, report_row, wanted_of
from tripower.backends.sampling import allowed_tokens, is_banning
from tripower.backends.toy.native import native_absorb, native_loop
from tripower.runtime.engine import EngineInfo, SamplingParameters, StepRow, StepTable, run_steps
from tripower.runtime.engine.contract import SPECULATION
from tripower.runtime.engine.step_table import INVALID_LOGITS, NOT_DRAWN
from tripower.runtime.kernel import DeviceFailed, InvalidRequest

END = 256
VOCABULARY = 257
MASK = (1 << 64) - 1
MULTIPLIER = 6364136223846793005
INCREMENT = 1442695040888963407
NATIVE_FROM = 16
"""A prompt longer than this is absorbed in native code: a bench of everything else calls this an engine that takes no time."""
LETTERS = 29
"""Drawn symbols: 26 letters, two spaces, and the end with odds of 1 to 28 before `END_ODDS` thins it."""


def absorb(state: int, token: int) -> int:
    """The state after one more token: one step of a 64-bit linear congruential generator, keyed by the token."""
    return ((state ^ token) * MULTIPLIER + INCREMENT) & MASK


def absorb_all(state: int, tokens: Sequence[int]) -> int:
    """The state after all of them. Spelt out, since a bench calls this a step that takes no time."""
    for token in tokens:
        state = ((state ^ token) * MULTIPLIER + INCREMENT) & MASK
    return state


def draw(state: int, seed: int) -> int:
    """The next token: `a`..`z`, a space, or the end."""
    mixed = ((state ^ seed) * MULTIPLIER) & MASK
    symbol = (mixed >> 33) % LETTERS
    if symbol < 26:
        return 97 + symbol
    if symbol == 28 and (mixed >> 50) % 8 == 0:
        return END
    return 32


def draw_key(sampling: SamplingParameters) -> int:
    """What a draw depends on beside the state: nothing at temperature 0."""
    return 0 if sampling.temperature == 0 else (sampling.seed * 0x9E3779B97F4A7C15 + sampling.choice) & MASK


def toy_logits(state: int) -> NDArray[np.float32]:
    """Logits of a state, float32 [VOCABULARY]: 8 for its own token, less than 4 for all others."""
    mixed = (np.uint64(state) ^ np.arange(VOCABULARY, dtype=np.uint64)) * np.uint64(MULTIPLIER)
    logits = ((mixed >> np.uint64(40)).astype(np.float64) / 2.0**22).astype(np.float32)
    logits[draw(state, 0)] = 8.0
    return logits


class ToyEngine:
    """See the module. `native=False` runs every step in Python, the reference of the native loop."""

    def __init__(
        self,
        *,
        context: int = 8192,
        sequences_max: int = 64,
        native: bool = False,
        step_microseconds: int = 0,
        page_positions: int = 16,
        pages_max: int = 1 << 20,
    ) -> None:
        """With `page_positions`, states may be retained and reused; how many pages they take together is only told, not enforced."""
        self.info = EngineInfo(
            backend="toy",
            architecture="toy",
            context_max=context,
            vocabulary_size=VOCABULARY,
            sequences_max=sequences_max,
            determinism="exact",
            unsupported=frozenset({SPECULATION}) if native else frozenset(),  # a loop that runs ahead asks nobody
            page_positions=page_positions,
            pages_max=pages_max if page_positions else 0,
        )
        self._retained: set[int] = set()
        self._native = native
        self._step_microseconds = step_microseconds
        self._tokens: dict[int, list[int]] = {}
        self._states: dict[int, int] = {}
        self.closed = False

    def sequences(self) -> list[int]:
        return list(self._tokens)

    def open_sequence(self, sequence: int) -> None:
        if sequence not in self._tokens and len(self._tokens) - len(self._retained) >= self.info.sequences_max:
            raise DeviceFailed(f"all {self.info.sequences_max} sequences are open", code="state_memory_exhausted")
        self._tokens[sequence] = []
        self._states[sequence] = 0
        self._retained.discard(sequence)

    def close_sequence(self, sequence: int) -> None:
        self._tokens.pop(sequence, None)
        self._states.pop(sequence, None)
        self._retained.discard(sequence)

    def trim(self, sequence: int, length: int) -> None:
        del self._tokens[sequence][length:]
        self._states[sequence] = absorb_all(0, self._tokens[sequence])

    def fork(self, source: int, sequence: int, length: int) -> None:
        self.open_sequence(sequence)
        self._append(sequence, self._tokens[source][:length])

    def retain(self, sequence: int, length: int) -> None:
        if len(self._tokens[sequence]) > length:
            self.trim(sequence, length)
        self._retained.add(sequence)

    def length(self, sequence: int) -> int:
        return len(self._tokens[sequence])

    def step(self, rows: Sequence[StepRow]) -> list[int]:
        for row in rows:
            if row.sequence not in self._tokens or row.position != len(self._tokens[row.sequence]):
                raise InvalidRequest(f"sequence {row.sequence} is not at position {row.position}")
            if row.position + len(row.tokens) > self.info.context_max:
                raise InvalidRequest("the context is full", code="context_length_exceeded")
        return [self._evaluate_entry(row) for row in rows]

    def _evaluate_entry(self, row: StepRow) -> int:
        if row.drafts:
            return self._evaluate_run(row)
        return self._evaluate(row) if row.report is not None else self._evaluate_at_once(row)

    def _evaluate_at_once(self, row: StepRow) -> int:
        self._append(row.sequence, row.tokens)
        return _choose(self._states[row.sequence], row) if row.draw else NOT_DRAWN

    def _evaluate(self, row: StepRow) -> int:
        """Token by token, since each state is told of."""
        drawn = NOT_DRAWN
        wanted = {each.offset: each for each in wanted_of(0, row)}
        for offset, token in enumerate(row.tokens):
            self._append(row.sequence, (token,))
            if each := wanted.get(offset):
                state = self._states[row.sequence]
                drawn = _choose(state, row) if each.draw else NOT_DRAWN
                report_row(toy_logits(state), each, row, drawn)
        return drawn

    def _evaluate_run(self, row: StepRow) -> int:
        """The tokens before the guesses, and then one guess after the other while they are what is drawn."""
        first = len(row.tokens) - row.drafts
        self._append(row.sequence, row.tokens[:first])
        walk = RunWalk(row)
        while True:
            state = self._states[row.sequence]
            if not walk.take(_choose(state, walk.row), partial(toy_logits, state)):
                break
            self._append(row.sequence, (walk.token,))
        self._append(row.sequence, row.tokens[first + walk.place :])
        return walk.token

    def _append(self, sequence: int, tokens: Sequence[int]) -> None:
        absorb = native_absorb() if self._native and len(tokens) > NATIVE_FROM else absorb_all
        self._states[sequence] = absorb(self._states[sequence], tokens)
        self._tokens[sequence] += tokens

    def run(self, table: StepTable) -> Iterator[None]:
        if not self._native or table.stepwise or not _runs_ahead(table):
            yield from run_steps(self, table)
            return
        prefill = run_steps(self, table)
        while any(len(pending) > 1 for pending in table.pending) and next(prefill, True) is None:
            yield
        if any(table.pending) and not table.stop and table.steps_done < table.steps_max:
            self._run_native(table)

    def _run_native(self, table: StepTable) -> None:
        """Hand what is left of the job to the native loop, then take over what it did."""
        slots, first = table.slots, table.steps_done
        last_states = [self._states[int(table.sequence[slot])] for slot in range(slots)]
        states = np.array(last_states, np.uint64)
        keys = np.array([draw_key(sampling) for sampling in table.sampling], np.uint64)
        stop_at_end = np.array([END in ends for ends in table.ends], np.int64)
        alive = np.array([bool(pending) for pending in table.pending], np.int64)
        native_loop()(table, states, keys, stop_at_end, alive, self._step_microseconds)
        for step in range(first, table.steps_done):
            for slot in range(slots):
                if table.evaluated[step, slot]:
                    pending = table.pending[slot]
                    self._append(int(table.sequence[slot]), (pending.pop(),))
                    if table.drawn[step, slot] >= 0:
                        pending.append(int(table.drawn[step, slot]))
        for slot in range(slots):
            if not alive[slot]:
                table.pending[slot].clear()  # its last token ended the text

    def close(self) -> None:
        self._tokens.clear()
        self._states.clear()
        self.closed = True


def _choose(state: int, row: StepRow) -> int:
    """The drawn token where it is allowed, else the likeliest that is; `INVALID_LOGITS` where none is."""
    token = draw(state, draw_key(row.sampling))
    if row.mask is None and not is_banning(row.sampling, row.output_index):
        return token
    allowed = allowed_tokens(row, VOCABULARY)
    if allowed[token]:
        return token
    return int(np.where(allowed, toy_logits(state), -1.0).argmax()) if allowed.any() else INVALID_LOGITS


def _runs_ahead(table: StepTable) -> bool:
    """Whether the native loop knows all that these slots ask for: no ban, and no end but the toy's own."""
    return all(ends <= {END} for ends in table.ends) and not any(
        is_banning(sampling, int(index)) for sampling, index in zip(table.sampling, table.output_index, strict=False)
    )
