"""Jobs that need Python between two steps: a constraint is asked what may come next, log probabilities are told, drafters guess.

The native loop is the same; it is entered for one step at a time, with a table of its own, so that nobody hears of a step before all
of it is there. The slots are filled once. Only what such slots ask for is added: neighbours keep every bit.

The order between two steps: reports, then the step's row in the public table, then `accept`. So a constraint stands where the
committed tokens have brought it, also after a failure. The signal comes last, when the next step is about to begin: whoever hears of
the step then has the interpreter for as long as the native loop computes, instead of holding up the lane, which needs it until then.

As long as drafters have nothing to propose, and nobody needs anything else of Python, the native loop runs on the public table itself.
"""

from __future__ import annotations

import math
import os
import sys

import numpy as np
from numpy.typing import NDArray

from tripower.backends.picolm.native.drafts import StepDrafts
from tripower.backends.picolm.native.kernels.sampler.report import NO_TOKEN, SUM_LARGEST, SUM_MASS
from tripower.backends.picolm.native.program import Program
from tripower.backends.sampling import LOGPROB_MIN, is_banning
from tripower.runtime.engine import EngineInfo, RowReport, StepRow, StepTable, TokenLogprobs
from tripower.runtime.engine.drafts import tell_drafter
from tripower.runtime.engine.logprobs import NO_LOGPROBS
from tripower.runtime.engine.step_loop import ask_mask
from tripower.runtime.engine.step_table import NOT_DRAWN, SIGNAL_FD, SLOTS, STEPS_DONE, STEPS_MAX, STOP, TURN

ONE = (1).to_bytes(8, sys.byteorder)


class Stepwise:
    """One job over a table whose slots were filled by `Program.begin`. On the lane."""

    def __init__(self, program: Program, table: StepTable, info: EngineInfo) -> None:
        self._program, self._table = program, table
        self._single = StepTable(slots_max=table.slots_max, steps_max=1, rows_max=table.rows_max, mixed_rows=table.mixed_rows)
        self._single.clear(steps_max=1)
        self._single.control[SLOTS] = table.slots
        slots = range(table.slots)
        self._constrained = [slot for slot in slots if table.constraint[slot] is not None]
        self._scoring = [slot for slot in slots if table.prompt_logprobs[slot] != NO_LOGPROBS]
        self._reporting = [slot for slot in slots if table.logprobs[slot] != NO_LOGPROBS or slot in self._scoring]
        self._drafts = StepDrafts(program, table, info)
        for slot in self._reporting:
            program.slots.report_top[slot] = max(table.logprobs[slot], table.prompt_logprobs[slot])
        program.enter(self._single)
        self._history_length: NDArray[np.int64] = program.sampling.records["history_length"]
        self._before: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self._silent = False
        """A step is there that nobody has been told of."""
        self._reading = set(self._constrained)
        """Constrained slots that may have more than one token pending: only a plan tells whether they draw in the next step."""

    def run(self) -> bool:
        """Steps until nothing is pending, they are used up, or somebody has to be heard. Raises whatever a constraint does.

        Returns whether the job has to end although there may be steps left: see `guesses_left`.
        """
        control = self._table.control
        try:
            while self._run_ahead() or self._step():
                words = control.tolist()
                if self._drafts.spent:
                    return True
                if words[STOP] or words[TURN] or words[STEPS_DONE] >= words[STEPS_MAX]:
                    break
            return False
        finally:
            self._tell()

    def _tell(self) -> None:
        """Whoever reads the table hears of its last step."""
        if self._silent:
            self._silent = False
            descriptor = int(self._table.control[SIGNAL_FD])
            if descriptor >= 0:
                os.write(descriptor, ONE)

    def take_back(self) -> bool:
        """Put the slots back to where the last committed step left them; whether there was anything to take back."""
        if self._before is None:
            return False
        self._drafts.take_back()
        self._program.slots.restore(self._before[0])
        self._history_length[:] = self._before[1]
        self._before = None
        return True

    def _run_ahead(self) -> bool:
        """Steps without Python, as many as no drafter has anything to propose at; whether there were any."""
        table, drafts = self._table, self._drafts
        if self._constrained or self._reporting or (quiet := drafts.quiet_steps) < 2:
            return False
        control, first = table.control, table.steps_done
        steps_max = table.steps_max
        control[STEPS_MAX] = min(steps_max, first + quiet)
        try:
            self._program.enter(table)
            self._tell()
            self._program.go()
        finally:
            control[STEPS_MAX] = steps_max
            self._program.enter(self._single)
            drafts.rested()
        for step in range(first, table.steps_done):
            evaluated, drawn = (column[step, : table.slots].tolist() for column in (table.evaluated, table.drawn))
            drafts.settle(evaluated, drawn)
            for slot in drafts.slots:
                if drawn[slot] != NOT_DRAWN:
                    tell_drafter(table, slot, drawn[slot : slot + 1], 0)
        return table.steps_done > first

    def _step(self) -> bool:
        """One step; False if nothing is pending."""
        program, single = self._program, self._single
        for slot in self._scoring:
            program.slots.all_rows[slot] = program.slots.position[slot] + 1 < self._table.prompt_length[slot]
        self._before = program.slots.save(), self._history_length.copy()
        self._drafts.put()
        self._ask_constraints()
        single.control[STEPS_DONE] = 0
        self._tell()
        program.go()
        if not single.control[STEPS_DONE]:
            self._before = None
            return False
        self._commit()
        return True

    def _ask_constraints(self) -> None:
        """State what may be drawn by those that the next step draws for."""
        program = self._program
        if self._reading:
            program.plan()
        for slot in self._constrained:
            constraint = self._table.constraint[slot]
            draws = program.slots.draw_at[slot] >= 0 if self._reading else program.slots.alive[slot]
            if constraint is not None and draws:
                program.sampling.set_mask(slot, ask_mask(constraint))

    def _commit(self) -> None:
        table, single = self._table, self._single
        assert self._before is not None
        evaluated, drawn = single.evaluated[0].tolist()[: table.slots], single.drawn[0].tolist()[: table.slots]
        runs = self._drafts.walk(self._before[0])
        for slot, run in runs.items():
            evaluated[slot], drawn[slot] = len(run), run[-1]
        if reports := self._reports(evaluated, drawn, runs):
            table.reports[table.steps_done] = reports
        if runs:
            table.runs[table.steps_done] = {slot: tuple(run[:-1]) for slot, run in runs.items() if len(run) > 1}
            table.proposed[table.steps_done] = {slot: len(guesses) for slot, guesses in self._drafts.proposed.items()}
        table.commit(evaluated, drawn)
        self._before = None
        self._drafts.settle(evaluated, drawn, runs)
        self._silent = True
        proposed = self._drafts.end_step()
        for slot in self._constrained:
            constraint, token = table.constraint[slot], drawn[slot]
            if token != NOT_DRAWN:
                self._reading.discard(slot)
            if constraint is not None and token >= 0 and token not in table.ends[slot]:
                constraint.accept(token)
        for slot in self._drafts.slots:
            if drawn[slot] != NOT_DRAWN:
                tell_drafter(table, slot, runs.get(slot, drawn[slot : slot + 1]), len(proposed.get(slot, ())))

    def _reports(self, evaluated: list[int], drawn: list[int], runs: dict[int, list[int]]) -> dict[int, RowReport]:
        program, table = self._program, self._table
        reports = {}
        for slot in self._reporting:
            if not evaluated[slot]:
                continue
            report, start = RowReport(), int(program.slots.position[slot]) - evaluated[slot]
            in_prompt = table.prompt_logprobs[slot] != NO_LOGPROBS and start < table.prompt_length[slot]
            if in_prompt:
                following = program.slots.step_tokens(slot)[1 : table.prompt_length[slot] - start]
                report.prompt += prompt_logprobs(program, slot, following, table.prompt_logprobs[slot])
            draws = program.slots.draw_at[slot] >= 0 and table.logprobs[slot] != NO_LOGPROBS
            at = int(program.slots.draw_at[slot])
            if draws and slot in runs:
                at = int(program.slots.first_logits[slot])
                report.run = [
                    token_logprobs(program, at + place, token, table.logprobs[slot])
                    for place, token in enumerate(runs[slot][:-1])
                ]
                at += len(report.run)
            if draws and drawn[slot] >= 0:
                report.drawn = token_logprobs(program, at, drawn[slot], table.logprobs[slot])
            if in_prompt or draws:
                reports[slot] = report
        return reports


def state_row(program: Program, slot: int, row: StepRow) -> None:
    """Say to the native step what a row asks for besides its draw."""
    program.sampling.set_mask(slot, row.mask)
    if row.report is not None:
        program.slots.report_top[slot] = max(row.logprobs, row.prompt_logprobs)
        program.slots.all_rows[slot] = bool(_following(row))


def report_row(program: Program, slot: int, row: StepRow, token: int) -> None:
    """Add to a row's report what the step, which may have evaluated a part of it, has to tell."""
    if row.report is None:
        return
    following = _following(row)[: int(program.slots.step_rows[slot])]
    row.report.prompt += prompt_logprobs(program, slot, following, row.prompt_logprobs)
    if token >= 0 and row.logprobs != NO_LOGPROBS:
        row.report.drawn = token_logprobs(program, int(program.slots.draw_at[slot]), token, row.logprobs)


def is_restricted(row: StepRow) -> bool:
    """Whether there are tokens that must not be drawn."""
    return row.mask is not None or is_banning(row.sampling, row.output_index)


def has_sound_logits(program: Program, slot: int) -> bool:
    """Whether the logits that a slot has drawn from are the model's: it is a constraint, then, that left nothing of them."""
    logits = program.logits[program.slots.draw_at[slot]]
    return bool(np.isfinite(logits.max()))  # NaN, if there is one, is the largest


def prompt_logprobs(program: Program, slot: int, following: list[int], count: int) -> list[TokenLogprobs]:
    """Of the tokens behind a slot's first rows of the step."""
    first = int(program.slots.first_logits[slot])
    return [token_logprobs(program, first + index, token, count) for index, token in enumerate(following)]


def token_logprobs(program: Program, row: int, token: int, count: int) -> TokenLogprobs:
    """A token's log probability and the `count` likeliest ones, by what the kernel `report` left for a row of logits."""
    sums = program.step.report_sums[row]
    largest, mass = float(sums[SUM_LARGEST]), float(sums[SUM_MASS])
    if not math.isfinite(largest):
        return TokenLogprobs(token, LOGPROB_MIN)  # the draw says what is wrong with such a row
    logits, norm = program.logits[row], math.log(mass)
    told = [token, *(index for index in program.step.report_tokens[row, :count].tolist() if index != NO_TOKEN)]
    found = [max(float(value) - largest - norm, LOGPROB_MIN) for value in logits[told].tolist()]
    return TokenLogprobs(token, found[0], tuple(zip(told[1:], found[1:], strict=True)))


def _following(row: StepRow) -> list[int]:
    """The prompt's tokens behind those of a row, as far as they are known and it wants to know of them."""
    if row.prompt_logprobs == NO_LOGPROBS:
        return []
    known = [*row.tokens[1:], *([row.following] if row.following >= 0 else [])]
    return known[: max(row.prompt_length - 1 - row.position, 0)] if row.prompt_length else known
