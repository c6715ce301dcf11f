"""Guesses in a native step: who gets how many rows, and the walk along what was drawn.

Rows of guesses are those that nobody else needs: everybody's first row comes before them, and prompts keep their own budget. Where
neither a mask nor penalties depend on the tokens before, the step itself has drawn at all rows. Otherwise the draw is called for row
after row, between the step and its commit, with the mask and the history that a step of its own would have had; rows behind the
first wrong guess are never drawn from. So a token is the one that plain decoding draws, bit for bit, however it was guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tripower.backends.picolm.native.boundary import DRAWS_ALL, DRAWS_LATER
from tripower.backends.picolm.native.kernels.sampler.settings import looks_back
from tripower.backends.picolm.native.program import Program
from tripower.backends.picolm.native.slots import Array
from tripower.runtime.engine import EngineInfo, StepTable
from tripower.runtime.engine.drafts import StepGuesses, guesses_left
from tripower.runtime.engine.step_loop import ask_mask
from tripower.runtime.engine.step_table import NOT_DRAWN

RESTS = (0, 0, 2, 4, 8)
"""Steps that run ahead after so many questions in a row to which nobody had a guess, the last for all that follow. A question costs little, but
whoever asks has to wait for the interpreter, which the Trio loop is busy with just then; a guess that comes a few tokens late costs less."""
NO_RUNS: Mapping[int, Sequence[int]] = {}


class StepDrafts:
    """The guesses of one job's steps, one step after the other. On the lane."""

    def __init__(self, program: Program, table: StepTable, info: EngineInfo) -> None:
        self._program, self._table = program, table
        self._guesses = StepGuesses(table, info)
        self.slots = [slot for slot in range(table.slots) if table.drafter[slot] is not None]
        """Those that have a drafter."""
        self._looking_back = frozenset(slot for slot in self.slots if looks_back(table.sampling[slot]))
        self._left = {slot: guesses_left(table, slot) for slot in self.slots}
        self._in_vain = 0
        """Questions in a row to which nobody had a guess."""
        self._rest = 0
        """Steps for which nobody is asked after the last one of them."""
        self._told: dict[int, int] = {}
        """Tokens of the present step that a slot's constraint knows of before they are committed."""

    @property
    def proposed(self) -> dict[int, list[int]]:
        """By slot, what the present step evaluates as guesses."""
        return self._guesses.proposed

    @property
    def quiet_steps(self) -> int:
        """Steps to come at which nobody is to be asked; 0: ask at the next one."""
        alive = self._program.slots.alive
        quiet = [drafter.quiet for slot in self.slots if alive[slot] and (drafter := self._table.drafter[slot]) is not None]
        fewest = min(quiet, default=self._table.steps_max)
        return max(fewest, RESTS[-1]) if fewest else self._rest

    @property
    def spent(self) -> bool:
        """Whether somebody has had all the right guesses that this job has room for."""
        return any(self._left[slot] < 1 and self._program.slots.alive[slot] for slot in self.slots)

    def put(self) -> None:
        """Ask for the next step's guesses and put them behind their slots' last tokens."""
        program, table, slots = self._program, self._table, self._program.slots
        self._guesses.drop()
        self._told = {}
        if not self.slots:
            return
        pending = ((slots.end - slots.next) * slots.alive)[: table.slots].tolist()
        asking = [slot for slot in self.slots if pending[slot] == 1 and slots.output_index[slot] > 0]
        if not asking:
            return
        rows = min(table.rows_max, program.rows_max, program.drawn_max)
        self._guesses.ask(asking, pending, slots.position.tolist(), rows=rows, most=self._most)
        for slot, tokens in self.proposed.items():
            later = table.constraint[slot] is not None or slot in self._looking_back
            slots.put_drafts(slot, tokens, DRAWS_LATER if later else DRAWS_ALL)
        if self._guesses.room:  # otherwise nobody was asked
            self._in_vain = 0 if self.proposed else self._in_vain + 1
            self._rest = RESTS[min(self._in_vain, len(RESTS) - 1)]

    def _most(self, slot: int) -> int:
        return min(int(self._program.slots.remaining[slot]) - 1, self._left[slot])

    def rested(self) -> None:
        """The steps at which nobody was to be asked are over: at the next one somebody may be."""
        self._rest = 0

    def walk(self, before: Array) -> dict[int, list[int]]:
        """What each slot with guesses has drawn; the slots go on from there, and so do their histories and constraints."""
        return {slot: self._walk(slot, guesses, before) for slot, guesses in self.proposed.items()}

    def _walk(self, slot: int, guesses: list[int], before: Array) -> list[int]:
        program, table, slots = self._program, self._table, self._program.slots
        ends, first = table.ends[slot], int(slots.first_logits[slot])
        later = slots.draws[slot] == DRAWS_LATER
        run: list[int] = []
        while True:
            place = len(run)
            token = program.draw(first + place, place) if later else int(program.step.token_out[first + place])
            run.append(token)
            if place == len(guesses) or token != guesses[place] or token in ends:
                break
            self._go_on(slot, token)
        if token >= 0 and slot in self._looking_back:
            program.sampling.append_history(slot, token)
        slots.restore(before, slot)
        goes_on = token >= 0 and token not in ends and len(run) < int(slots.remaining[slot])
        slots.take_run(slot, run, goes_on=goes_on)
        self._left[slot] -= len(run) - 1
        return run

    def _go_on(self, slot: int, token: int) -> None:
        """State what a draw behind one more token sees."""
        program, constraint = self._program, self._table.constraint[slot]
        if slot in self._looking_back:
            program.sampling.append_history(slot, token)
        if constraint is not None:
            constraint.accept(token)
            self._told[slot] = self._told.get(slot, 0) + 1
            program.sampling.set_mask(slot, ask_mask(constraint))

    def settle(self, evaluated: Sequence[int], drawn: Sequence[int], runs: Mapping[int, Sequence[int]] = NO_RUNS) -> None:
        """Account for a committed step: what its guesses have cost everybody, and brought."""
        tokens = [0 if token == NOT_DRAWN else len(runs.get(slot, (token,))) for slot, token in enumerate(drawn)]
        self._guesses.settle(evaluated, tokens)

    def end_step(self) -> dict[int, list[int]]:
        """The step is committed; what it had as guesses."""
        if self.proposed:
            self._program.slots.drop_drafts(list(self.proposed))
        proposed, self._told = self.proposed, {}
        self._guesses.drop()
        return proposed

    def take_back(self) -> None:
        """The step is not committed after all."""
        for slot, count in self._told.items():
            constraint = self._table.constraint[slot]
            if constraint is not None:
                constraint.take_back(count)
        self.end_step()
