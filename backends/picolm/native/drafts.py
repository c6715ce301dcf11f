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
from tripower.runtime.engine.drafting import Beside
from tripower.runtime.engine.drafts import ask_draft, guesses_left, reading_cost
from tripower.runtime.engine.step_loop import ask_mask
from tripower.runtime.engine.step_table import NOT_DRAWN
from tripower.runtime.speculation import DEFAULT_ROW_COSTS, Pace, RowCosts, draft_room

RESTS = (0, 0, 2, 4, 8)
"""Steps that run ahead after so many questions in a row to which nobody had a guess, the last for all that follow. A question costs little, but
whoever asks has to wait for the interpreter, which the Trio loop is busy with just then; a guess that comes a few tokens late costs less."""
NO_RUNS: Mapping[int, Sequence[int]] = {}


class RowSharing:
    """What an engine's steps cost, and how the guesses of some have cost others: it lasts from job to job."""

    def __init__(self, info: EngineInfo) -> None:
        self.info = info
        self.costs = RowCosts(info.row_costs) if info.row_costs else DEFAULT_ROW_COSTS
        self._paces: dict[int, Pace] = {}

    def paces(self, sequences: Sequence[int], drawn: Sequence[int]) -> list[Pace]:
        """Of these sequences, which have drawn so many tokens, and of no other from now on. Whoever has drawn none begins anew."""
        known = self._paces
        self._paces = {
            sequence: known[sequence] if count and sequence in known else Pace()
            for sequence, count in zip(sequences, drawn, strict=True)
        }
        return list(self._paces.values())


class StepDrafts:
    """The guesses of one job's steps, one step after the other. On the lane."""

    def __init__(self, program: Program, table: StepTable, sharing: RowSharing) -> None:
        self._program, self._table, self._costs, self._info = program, table, sharing.costs, sharing.info
        self._paces = sharing.paces(table.sequence[: table.slots].tolist(), table.output_index[: table.slots].tolist())
        self.slots = [slot for slot in range(table.slots) if table.drafter[slot] is not None]
        """Those that have a drafter."""
        self._looking_back = frozenset(slot for slot in self.slots if looks_back(table.sampling[slot]))
        self.proposed: dict[int, list[int]] = {}
        """By slot, what the present step evaluates as guesses."""
        self._left = {slot: guesses_left(table, slot) for slot in self.slots}
        self._spent = self._reading = 0.0
        """What the present step's guesses cost to make, and what the sequences' states add to it."""
        self._in_vain = 0
        """Questions in a row to which nobody had a guess."""
        self._rest = 0
        """Steps for which nobody is asked after the last one of them."""
        self._told: dict[int, int] = {}
        """Tokens of the present step that a slot's constraint knows of before they are committed."""

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
        self.proposed, self._told = {}, {}
        if not self.slots:
            return
        pending = ((slots.end - slots.next) * slots.alive)[: table.slots].tolist()
        asking = [slot for slot in self.slots if pending[slot] == 1 and slots.output_index[slot] > 0]
        if not asking:
            return
        waiting = sum(1 for count in pending if count)
        prompts = min(sum(pending) - waiting, table.mixed_rows)
        paces = [pace for pace, count in zip(self._paces, pending, strict=True) if count == 1]
        left = min(table.rows_max, program.rows_max, program.drawn_max) - waiting
        drafters = [drafter for slot in asking if (drafter := table.drafter[slot]) is not None]
        each = max((drafter.token_cost for drafter in drafters), default=0.0)
        contexts = [position for position, count in zip(slots.position.tolist(), pending, strict=False) if count]
        self._reading = reading_cost(self._info, contexts)
        left = draft_room(self._costs, paces, waiting + prompts, max(left, 0), each=each, reading=self._reading)
        vocabulary = program.model.decoder.vocabulary_size
        for slot in sorted(asking, key=lambda slot: -self._paces[slot].lag):
            most = min(int(slots.remaining[slot]) - 1, self._left[slot], left)
            tokens = ask_draft(table, slot, most, Beside(waiting - 1, prompts, self._reading), vocabulary)
            if tokens:
                later = table.constraint[slot] is not None or slot in self._looking_back
                slots.put_drafts(slot, tokens, DRAWS_LATER if later else DRAWS_ALL)
                self.proposed[slot] = tokens
                left -= len(tokens)
                waiting += len(tokens)
        self._spent = sum(drafter.spent for drafter in drafters)
        if self.proposed or left > 0:  # without room nobody was asked
            self._in_vain = 0 if self.proposed else self._in_vain + 1
            self._rest = RESTS[min(self._in_vain, len(RESTS) - 1)]

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
        if len(self._paces) < 2 or not self.slots:
            return
        guessed = sum(map(len, self.proposed.values()))
        kept = sum(len(run) - 1 for run in runs.values())
        rows = sum(evaluated) - kept
        for slot, pace in enumerate(self._paces):
            if drawn[slot] != NOT_DRAWN:
                tokens = len(runs.get(slot, (0,)))
                pace.settle(self._costs, rows, guessed, tokens, spent=self._spent, reading=self._reading)

    def end_step(self) -> dict[int, list[int]]:
        """The step is committed; what it had as guesses."""
        if self.proposed:
            self._program.slots.drop_drafts(list(self.proposed))
        proposed, self.proposed, self._told, self._spent = self.proposed, {}, {}, 0.0
        return proposed

    def take_back(self) -> None:
        """The step is not committed after all."""
        for slot, count in self._told.items():
            constraint = self._table.constraint[slot]
            if constraint is not None:
                constraint.take_back(count)
        self.end_step()
