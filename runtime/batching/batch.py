"""A continuous batch: who is in it, where each member stands, and what a step changes.

Membership changes only between jobs; a step commits as a whole or changes nothing. Plain synchronous code: `plan` fills the step
table with every member exactly once, in join order; `commit` takes one finished step, checks all of it, and only then moves anybody.
A member that leaves while its rows are in flight is marked; its rows are dropped at the commit and its state is freed when the job
has ended, since the device may still write there.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

import attrs
import msgspec

from tripower.runtime.engine import Constraint, RowReport, SamplingParameters, StepTable, TokenLogprobs
from tripower.runtime.engine.drafting import Drafter
from tripower.runtime.engine.logprobs import NO_LOGPROBS
from tripower.runtime.engine.step_table import INVALID_LOGITS, NO_DRAFTS, NO_RUNS, NOT_DRAWN, Runs

T = TypeVar("T")

NO_REPORTS: Mapping[int, RowReport] = MappingProxyType({})


@attrs.define(eq=False)
class Member(Generic[T]):
    """One sequence in the batch. `owner` is whatever the batch's user hangs on it."""

    sequence: int
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParameters
    ends: frozenset[int]
    owner: T
    constraint: Constraint | None = None
    """Belongs to the lane once a job has begun."""
    logprobs: int = NO_LOGPROBS
    prompt_logprobs: int = NO_LOGPROBS
    rank: int = 0
    """In the next job, prompts of members with a lower one are evaluated first; among equals, those that joined first."""
    drafter: Drafter | None = None
    """Belongs to the lane once a job has begun."""
    telling: deque[TokenLogprobs] = attrs.Factory(deque)
    """Of the tokens drawn, where it was asked for, until `take_told`."""
    prompt_told: list[TokenLogprobs] = attrs.Factory(list)
    """Of the prompt's tokens from the second on, as far as it is evaluated, where it was asked for."""
    evaluated: int = 0
    """Positions whose state the engine holds, as of the last commit."""
    reused: int = 0
    """Of these, positions that were evaluated for somebody else."""
    source: int | None = None
    """The sequence whose first `evaluated` positions are to be forked: until a step of this member's own was committed."""
    held: bool = False
    """Takes part in no job: it waits for another member's prompt, which begins like its own."""
    output: list[int] = attrs.Factory(list)
    proposed: int = 0
    accepted: int = 0
    """Guesses that were evaluated, and those of them that were right."""
    passes: int = 0
    replays: int = 0
    """Of a member with a drafter, steps that drew for it, and those of them in which a guess was wrong."""
    leaving: bool = False
    finished: bool = False

    @property
    def told(self) -> TokenLogprobs | None:
        """Of the last token drawn."""
        return self.telling[-1] if self.telling else None

    def take_told(self) -> TokenLogprobs | None:
        """Of the next token drawn that was not asked about yet, where it was asked for. Once for each token, in order."""
        return self.telling.popleft() if self.telling else None

    @property
    def pending(self) -> list[int]:
        """Tokens that are not evaluated yet: what is left of the prompt, or the last drawn token."""
        tokens = [*self.prompt, *self.output] if self.output else list(self.prompt)
        return tokens[self.evaluated :]


class SpeculationCounts(msgspec.Struct):
    """Of members with a drafter."""

    requests: int = 0
    rounds: int = 0
    """Steps of a member that evaluated guesses."""
    target_passes: int = 0
    """Steps that drew for a member: each gave one token, and those that were guessed."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Guesses that were evaluated, and those of them that were right."""
    emitted_tokens: int = 0
    replays: int = 0
    """Rounds in which a guess was wrong, so that its positions and those behind it were taken back."""


class BatchStatistics(msgspec.Struct, frozen=True):
    """`joined` = `finished` + `left` + `failed` + `members`."""

    members: int
    members_max: int
    joined: int
    finished: int
    left: int
    failed: int
    steps: int
    aborted_jobs: int
    prefill_rows: int
    decode_rows: int
    largest_step: int
    positions: int = 0
    """Evaluated positions of all members."""
    speculation: SpeculationCounts = msgspec.field(default_factory=SpeculationCounts)


class BrokenStep(Exception):
    """A device reported a step that cannot be true; nothing was changed."""


class Batch(Generic[T]):
    """Members and their progress. All methods are synchronous."""

    def __init__(self, members_max: int, *, sequences: Iterator[int] | None = None) -> None:
        """`sequences` gives ids that no sequence of the engine has had; it outlives a batch that is given up."""
        self.members_max = members_max
        self._sequences = itertools.count() if sequences is None else sequences
        self._members: dict[int, Member[T]] = {}
        self._roster: list[Member[T]] | None = None
        self.stale = True
        """Whether the device may hold states of nobody: at the start, since an earlier batch may have left some."""
        self._joined = self._finished = self._left = self._failed = 0
        self._steps = self._aborted = self._prefill_rows = self._decode_rows = self._largest_step = 0
        self._speculation = SpeculationCounts()

    @property
    def members(self) -> list[Member[T]]:
        return list(self._members.values())

    @property
    def running(self) -> bool:
        """Whether a job is in flight."""
        return self._roster is not None

    def join(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        sampling: SamplingParameters,
        ends: frozenset[int],
        owner: T,
        constraint: Constraint | None = None,
        logprobs: int = NO_LOGPROBS,
        prompt_logprobs: int = NO_LOGPROBS,
        drafter: Drafter | None = None,
    ) -> Member[T]:
        """Add a member; it takes part from the next job on. `ends` are all tokens that end its text."""
        assert len(self._members) < self.members_max and prompt
        member = Member(
            next(self._sequences),
            tuple(prompt),
            max_tokens,
            sampling,
            ends,
            owner,
            constraint=constraint,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            drafter=drafter,
        )
        self._members[member.sequence] = member
        self._joined += 1
        self._speculation.requests += drafter is not None
        return member

    def reuse(self, member: Member[T], source: int, length: int) -> None:
        """Let a member that has not begun start from the first `length` positions of another sequence, fewer than its prompt has."""
        assert not member.evaluated and 0 < length < len(member.prompt)
        member.source, member.evaluated, member.reused = source, length, length

    def begin_anew(self, member: Member[T]) -> None:
        """The state that a member was to start from is not to be trusted: unless it has begun, it starts without."""
        if member.source is not None:
            member.source, member.evaluated, member.reused = None, 0, 0

    @property
    def forking(self) -> tuple[tuple[int, int, int], ...]:
        """Source, sequence and length of each fork that the device must make before the job that was planned."""
        return tuple(
            (member.source, member.sequence, member.evaluated) for member in self._roster or () if member.source is not None
        )

    def leave(self, member: Member[T], *, failed: bool = False) -> None:
        """Take a member out before its end. In flight: its rows are dropped. Idempotent."""
        if self._members.pop(member.sequence, None) is None:
            return
        member.leaving = True
        if failed:
            self._failed += 1
        else:
            self._left += 1
        self.stale = True

    def plan(self, table: StepTable, *, steps_max: int) -> tuple[list[int], list[int]]:
        """Fill the table for a job of up to `steps_max` steps.

        Returns the sequences that the device must keep, closing all others, and those that it must open before the first step. A
        sequence of which nothing was ever committed is opened anew. A job without members only closes.
        """
        assert self._roster is None, "one job at a time"
        present = [member for member in self._members.values() if not member.held]
        roster = sorted(present, key=lambda member: member.rank)
        self.stale = False
        table.clear(steps_max=steps_max)
        for member in roster:
            needs_history = (
                member.sampling.repeat_penalty != 1 or member.sampling.presence_penalty or member.sampling.frequency_penalty
            )
            table.add(
                sequence=member.sequence,
                position=member.evaluated,
                pending=member.pending,
                remaining=member.max_tokens - len(member.output),
                output_index=len(member.output),
                sampling=member.sampling,
                ends=member.ends,
                history=[*member.prompt, *member.output] if needs_history else (),
                prompt_length=len(member.prompt),
                constraint=member.constraint,
                logprobs=member.logprobs,
                prompt_logprobs=member.prompt_logprobs,
                drafter=member.drafter,
            )
        self._roster = roster
        keeping = [member.sequence for member in roster]
        opening = [member.sequence for member in roster if not member.evaluated]
        return keeping, opening

    def commit(
        self,
        evaluated: Sequence[int],
        drawn: Sequence[int],
        reports: Mapping[int, RowReport] = NO_REPORTS,
        runs: Runs = NO_RUNS,
        proposed: Mapping[int, int] = NO_DRAFTS,
    ) -> list[tuple[Member[T], int]]:
        """Apply one step: rows evaluated and token drawn (-1: none) for each member of the roster, in its order.

        By place in the roster, `reports` are the step's log probabilities, which members keep, `runs` the tokens that were drawn before
        `drawn`, and `proposed` how many guesses were evaluated for that.

        Returns each token that was drawn, in order, with its member: `INVALID_LOGITS` for one that cannot go on and has to leave. Raises
        `BrokenStep`, with nothing changed, for what cannot be true.
        """
        roster = self._roster
        assert roster is not None, "no job is in flight"
        self._check(roster, evaluated, drawn, runs)
        _check_reports(roster, evaluated, drawn, reports, runs)
        self._steps += 1
        self._largest_step = max(self._largest_step, sum(evaluated))
        drew: list[tuple[Member[T], int]] = []
        for place, (member, rows, token) in enumerate(zip(roster, evaluated, drawn, strict=True)):
            if member.leaving or member.finished or not rows:
                continue
            if report := reports.get(place):
                member.telling += [*report.run, *([report.drawn] if report.drawn is not None else [])]
                member.prompt_told += report.prompt
            if member.evaluated < len(member.prompt):
                self._prefill_rows += rows
            else:
                self._decode_rows += rows
            member.evaluated += rows
            member.source = None
            if token != NOT_DRAWN:
                run = (*runs.get(place, ()), token)
                drew += [(member, each) for each in run]
                member.output += run if token >= 0 else run[:-1]
                self._count(member, len(run), proposed.get(place, 0))
        return drew

    def _count(self, member: Member[T], tokens: int, proposed: int) -> None:
        """A step gave a member so many tokens, with so many guesses."""
        if member.drafter is None:
            return
        counts = self._speculation
        counts.rounds += proposed > 0
        counts.target_passes += 1
        counts.drafted_tokens += proposed
        counts.accepted_tokens += tokens - 1
        counts.emitted_tokens += tokens
        replay = proposed > tokens - 1
        counts.replays += replay
        member.proposed += proposed
        member.accepted += tokens - 1
        member.passes += 1
        member.replays += replay

    def _check(self, roster: list[Member[T]], evaluated: Sequence[int], drawn: Sequence[int], runs: Runs) -> None:
        if len(evaluated) != len(roster) or len(drawn) != len(roster):
            raise BrokenStep(f"a step of {len(roster)} members reported {len(evaluated)} outcomes")
        for place, (member, rows, token) in enumerate(zip(roster, evaluated, drawn, strict=True)):
            if member.leaving or member.finished:
                continue
            pending = len(member.prompt) + len(member.output) - member.evaluated
            if run := runs.get(place):
                _check_run(member, pending, rows, (*run, token))
                continue
            if not 0 <= rows <= pending:
                raise BrokenStep(f"{rows} rows were evaluated where {pending} were pending")
            if token < 0 and token not in (NOT_DRAWN, INVALID_LOGITS):
                raise BrokenStep(f"{token} is no token")
            if token != NOT_DRAWN and (rows != pending or len(member.output) >= member.max_tokens):
                raise BrokenStep("a token was drawn where none was due")
            if token == NOT_DRAWN and 0 < rows == pending and len(member.output) < member.max_tokens:
                raise BrokenStep("no token was drawn where one was due")

    def cut(self, member: Member[T], length: int) -> None:
        """A member's answer ended with the first `length` tokens of its output, in the middle of what a step gave."""
        more = len(member.output) - length
        if more > 0:
            del member.output[length:]
            member.evaluated = min(member.evaluated, len(member.prompt) + max(length - 1, 0))
            self._speculation.emitted_tokens -= more

    def finish(self, member: Member[T]) -> None:
        """A member is complete; its state is freed with the next job. Idempotent."""
        if self._members.pop(member.sequence, None) is not None:
            member.finished = True
            self._finished += 1
            self.stale = True

    def end_job(self, *, aborted: bool = False) -> None:
        """The job in flight has ended; what it committed stays. After an abort the rest of the members keep their exact state."""
        assert self._roster is not None
        self._roster = None
        if aborted:
            self._aborted += 1
            self.stale = True

    def statistics(self) -> BatchStatistics:
        return BatchStatistics(
            members=len(self._members),
            members_max=self.members_max,
            joined=self._joined,
            finished=self._finished,
            left=self._left,
            failed=self._failed,
            steps=self._steps,
            aborted_jobs=self._aborted,
            prefill_rows=self._prefill_rows,
            decode_rows=self._decode_rows,
            largest_step=self._largest_step,
            positions=sum(member.evaluated for member in self._members.values()),
            speculation=msgspec.structs.replace(self._speculation),
        )


def _check_run(member: Member[T], pending: int, rows: int, run: tuple[int, ...]) -> None:
    """Several tokens in one step: one for each row that is kept, the first of which was the only one pending."""
    if pending != 1 or rows != len(run) or len(member.output) + len(run) > member.max_tokens:
        raise BrokenStep(f"{len(run)} tokens were drawn at {rows} rows, where {pending} were pending")
    if min(run[:-1]) < 0 or (run[-1] < 0 and run[-1] != INVALID_LOGITS):
        raise BrokenStep(f"{run} are no tokens")


def _check_reports(
    roster: Sequence[Member[T]],
    evaluated: Sequence[int],
    drawn: Sequence[int],
    reports: Mapping[int, RowReport],
    runs: Runs,
) -> None:
    """What was asked to be told is there: for a token drawn, and for each token of the prompt that follows a row."""
    for place, (member, rows, token) in enumerate(zip(roster, evaluated, drawn, strict=True)):
        if member.leaving or member.finished or not rows:
            continue
        report = reports.get(place)
        last = len(member.prompt) - 1  # nothing of the prompt follows it
        due = max(min(rows, last - member.evaluated), 0) if member.prompt_logprobs != NO_LOGPROBS else 0
        if (0 if report is None else len(report.prompt)) != due:
            raise BrokenStep(f"a step did not tell of the {due} tokens of a prompt that it had to")
        if member.logprobs == NO_LOGPROBS or token == NOT_DRAWN:
            continue
        drew = len(runs.get(place, ())) + (token >= 0)
        told = 0 if report is None else len(report.run) + (report.drawn is not None)
        if told != drew:
            raise BrokenStep(f"a step did not tell of the {drew} tokens that it drew")
