"""A model queue owns the waiting room and the batch of one loaded model.

In this order: a request arrives, is seated or waits or is refused (`Gate`); everybody seated takes part in the next job; the device
runs the job's steps ahead and says how far it is; each step is committed as a whole, turned into text and put into the members'
outlets, which always have room; members that are complete leave, the longest waiting take their places. When somebody joins or
leaves while a job runs, the job is stopped at its next boundary.

A request's deadline bounds its wait and its run: it is looked at when a place is free and after every step.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any, assert_never

import msgspec
import trio

from tripower.actors.constraining import no_token_error
from tripower.actors.device import RunSteps, StepOrder, StepsCommitted, StepsDone
from tripower.actors.dialogue import Failed, GenerationFinished, Timings, TokenChunk, Usage
from tripower.actors.prefix_reuse import PrefixReuse
from tripower.actors.queue_books import QueueBooks, TellsOfRequests
from tripower.actors.queued_generation import QueuedGeneration, check_generate
from tripower.actors.queueing import (
    AnswerParts,
    CancelTicket,
    CloseStates,
    DrainQueue,
    Enqueued,
    ExpireStates,
    FollowTicket,
    Generate,
    IdentityStatistics,
    Leave,
    QueueLimits,
    QueueStatistics,
    SeatStatistics,
    SettleQueue,
    SpeculationStatistics,
    TicketCancelled,
    TicketFollowed,
    cancellation,
    not_there,
)
from tripower.actors.replay.diary import Diary
from tripower.actors.request_tap import TappedOutlet
from tripower.backends.text.stream import TextStream
from tripower.runtime.admission import Gate
from tripower.runtime.batching import NO_REPORTS, Batch, Member
from tripower.runtime.engine import LoadedModel, StepTable
from tripower.runtime.engine.drafting import DraftTally
from tripower.runtime.engine.step_table import INVALID_LOGITS, NO_DRAFTS, NO_RUNS
from tripower.runtime.kernel import (
    Actor,
    ActorGone,
    DeadlineExceeded,
    Ref,
    TripowerError,
)

log = logging.getLogger("tripower.queue")

RETRIES_MAX = 1
"""How often the same rows are tried again after a device error."""
CLOSE_AFTER_SECONDS = 0.2
"""States of members that left are closed with the next job; this much later where no job follows, so that short requests one after
the other cost one job each."""

Command = (
    Generate
    | Leave
    | StepsCommitted
    | StepsDone
    | DrainQueue
    | CloseStates
    | ExpireStates
    | SettleQueue
    | CancelTicket
    | FollowTicket
)


class ModelQueueActor(TellsOfRequests, Actor[Command]):
    """See the module. `tickets` and `sequences` outlive a restart, so that nothing old is mistaken for something new."""

    def __init__(
        self,
        model: str,
        loaded: LoadedModel,
        device: Ref[Any],
        limits: QueueLimits,
        *,
        tickets: Iterator[int] | None = None,
        sequences: Iterator[int] | None = None,
    ) -> None:
        self._model = model
        self._engine, self._text = loaded.engine, loaded.text
        self._device = device
        self._limits = limits
        self.gate: Gate[int] = Gate(active_limit=limits.members_max, waiting_limit=limits.waiting_max)
        self._tickets = itertools.count() if tickets is None else tickets
        self._books = QueueBooks(model, limits.members_max, self.gate, tickets=self._tickets)
        self._batch: Batch[QueuedGeneration] = Batch(limits.members_max, sequences=sequences)
        self._reuse = PrefixReuse(self._engine.info, limits.prefix)
        self._table = self._new_table()
        self._job = -1
        self._live: dict[int, QueuedGeneration] = {}
        self._seen_steps = 0
        self._failures = 0
        self._speculative_seconds = 0.0
        self._tally = DraftTally()
        self._closing = self._expiring = False
        self._diary = Diary()
        self._time = 0.0
        """When the message in hand was taken: the one time that decides, so that a replay decides by it too."""

    def _new_table(self) -> StepTable:
        """For the next job. After a job that went wrong, so that one that outlives our interest never meets its successor."""
        limits = self._limits
        return StepTable(
            slots_max=limits.members_max,
            steps_max=limits.steps_per_job,
            rows_max=limits.rows_max,
            mixed_rows=limits.mixed_rows,
        )

    async def on_start(self) -> None:
        self._time = trio.current_time()
        self._advance()  # what an instance before this one left behind is closed
        if self.recording is not None:
            self._diary.begin(self, self.recording, self._time)

    async def on_message(self, message: Command) -> Any:
        answer = self._take(message)
        if self._books.drainers and self._quiet:
            self._books.answer_drainers()
        return answer

    def _take(self, message: Command) -> Any:
        """Handle a message, and let it be written down where somebody records."""
        self._time = self.taken_at
        recording = self.recording
        if recording is None:
            return self._handle(message)
        return self._diary.write(self, recording, self._time, message, self._handle)

    def _handle(self, message: Command) -> Any:
        match message:
            case Generate():
                return self._generate(message)
            case Leave():
                return self._leave(message)
            case StepsCommitted():
                return self._commit_steps(message.steps) if message.job == self._job else None
            case StepsDone():
                return self._end_job(message) if message.job == self._job else None
            case DrainQueue():
                return self._books.drain(self.envelope, quiet=self._quiet)
            case SettleQueue():
                return self._books.settle(self.envelope, self._live)
            case CancelTicket():
                return self._cancel(message)
            case FollowTicket():
                return self._follow(message)
            case CloseStates():
                return self._close_states()
            case ExpireStates():
                return self._expire_states()
        assert_never(message)

    @property
    def _quiet(self) -> bool:
        return not self._live and not self._batch.running

    def on_undelivered(self, message: Any, answer: Any) -> None:
        if isinstance(answer, Enqueued):
            self._take(Leave(answer.ticket))

    async def on_end(self) -> None:
        self._time = trio.current_time()
        self._table.request_stop()
        gone = ActorGone(f"the queue of {self._model} ended")
        for generation in list(self._live.values()):
            self._fail(generation, gone)

    # Arriving and leaving.

    def _generate(self, message: Generate) -> Enqueued:
        now = self._time
        parts: AnswerParts = self.envelope.live
        constraint = parts.constraint
        ticket, seated = self._books.arrive(
            now=now,
            deadline=self.envelope.deadline,
            check=lambda: check_generate(message, self._engine.info, constrained=constraint is not None),
            caller=message.caller,
            priority=message.priority,
            cost=len(message.prompt) + message.max_tokens,
        )
        for displaced, error in self._books.take_displaced():
            self._fail(self._live[displaced], error)
        text = TextStream(self._text, message.stop, visible=message.visible)
        generation = QueuedGeneration(
            ticket, message, parts.outlet, text, self.envelope.deadline, now, constraint, drafter=parts.drafter
        )
        self._live[ticket] = generation
        if seated:
            member = self._seat(generation, now)
            if not (member.held and self._batch.running):  # who is held can wait for the end of the job
                self._advance()
        else:
            self._diary.decide("wait", ticket)
        return Enqueued(ticket)

    def _seat(self, generation: QueuedGeneration, now: float) -> Member[QueuedGeneration]:
        request = generation.request
        if not self._batch.members:
            self._books.moved_at = now
        generation.seated_at = now
        generation.member = member = self._batch.join(
            request.prompt,
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            ends=frozenset(request.stop_token_ids) | (frozenset() if request.ignore_eos else self._text.end_tokens),
            owner=generation,
            constraint=generation.constraint,
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
            drafter=generation.drafter,
        )
        self._diary.decide("seat", generation.ticket)
        self._reuse.begin(self._batch, member, now)
        self._diary.begun(member)
        return member

    def _leave(self, message: Leave) -> None:
        generation = self._live.pop(message.ticket, None)
        if generation is None:
            return
        self._books.count_left(expired=message.expired)
        generation.outlet.leave()
        self._release(generation, expired=message.expired)
        generation.member = None
        self._advance()

    def _cancel(self, message: CancelTicket) -> TicketCancelled:
        generation = self._live.pop(message.ticket, None)
        if generation is None:
            raise not_there(self._model, message.ticket)
        self._books.count_left(expired=False)
        self._release(generation)
        generation.say(Failed.of(cancellation()))
        generation.member = None
        self._advance()
        return TicketCancelled()

    def _follow(self, message: FollowTicket) -> TicketFollowed:
        generation = self._live.get(message.ticket)
        if generation is None:
            raise not_there(self._model, message.ticket)
        generation.outlet = TappedOutlet(generation.outlet, self.envelope.live, message.ticket, generation.deadline)
        return TicketFollowed(generation.path(self._model, trio.current_time()))

    def _release(self, generation: QueuedGeneration, *, failed: bool = False, expired: bool = False) -> None:
        """Take a generation out of gate and batch."""
        member = generation.member
        if member is not None:
            self._batch.leave(member, failed=failed)
            self._books.count_emitted(generation.request.caller, len(member.output))
            self._end_state(member, failed=failed)
        self.gate.leave(generation.ticket, expired=expired, served=None if member is None else tokens_served(member))

    def _fail(self, generation: QueuedGeneration, error: TripowerError) -> None:
        if self._live.pop(generation.ticket, None) is None:
            return
        expired = self._books.count_failed(error)
        self._diary.fail(generation.ticket, error)
        self._release(generation, failed=not expired, expired=expired)
        generation.say(Failed.of(error))
        generation.member = None

    # Running.

    def _advance(self) -> None:
        """Seat whoever can be seated and start a job, or ask the running one to end so that they can join."""
        now = self._time
        admitted, expired = self.gate.admit_waiting(now=now)
        for ticket in expired:
            self._drop_expired(self._live.pop(ticket))
        for ticket in admitted:
            self._seat(self._live[ticket], now)
        if self._batch.running:
            self._table.request_stop()
            return
        self._expire_members(now)
        if self._batch.members:
            self._start_job()
        elif self._batch.stale:
            self._close_states_later()

    def _start_job(self) -> None:
        """Order steps for everybody in the batch; for nobody, only what has been left behind is closed."""
        self._seen_steps = 0
        self._diary.release(self._reuse, self, self._time)
        for member in self._batch.members:
            member.rank = self.gate.rank(member.owner.ticket)
        keeping, opening = self._batch.plan(self._table, steps_max=self._limits.steps_per_job)
        self._job = job = next(self._tickets)
        self._diary.job(job, self)
        me = self.ref

        def dropped() -> None:
            me.control(StepsDone(job, 0, "actor_gone", "the device restarted before it ran the step"))

        forking = self._batch.forking
        kept, retaining = self._reuse.prepare(
            self._batch.members, steps=self._limits.steps_per_job, sources=[source for source, _, _ in forking]
        )
        message = RunSteps(self._model, job, (*keeping, *kept), tuple(opening), retaining, forking)
        if not self._device.control(message, live=StepOrder(self._engine, self._table, me), on_dropped=dropped):
            self._diary.decide("unavailable")
            self._batch.end_job(aborted=True)
            self._reuse.forget(self._batch)
            self._table = self._new_table()
            self._job = -1
            for generation in list(self._live.values()):
                self._fail(generation, ActorGone("the device is not available"))
            self._close_states_later()

    def _drop_expired(self, generation: QueuedGeneration) -> None:
        """The gate found the deadline passed when a place was free, and has counted it."""
        error = DeadlineExceeded("the deadline passed in the waiting room")
        self._books.count_failed(error)
        self._diary.fail(generation.ticket, error)
        generation.say(Failed.of(error))

    def _expire_members(self, now: float) -> bool:
        """Fail members whose time is over; whether there were any."""
        late = [member.owner for member in self._batch.members if member.owner.deadline <= now]
        for generation in late:
            self._fail(generation, DeadlineExceeded("the deadline passed while tokens were generated"))
        return bool(late)

    def _commit_steps(self, steps: int) -> None:
        """Commit every step that is complete and new, and pass on what it gave."""
        table = self._table
        now = self._time
        slots = table.slots
        for step in range(self._seen_steps, steps):
            evaluated, drawn = table.evaluated[step, :slots].tolist(), table.drawn[step, :slots].tolist()
            told = table.reports.get(step, NO_REPORTS), table.runs.get(step, NO_RUNS), table.proposed.get(step, NO_DRAFTS)
            self._diary.step(table, evaluated, drawn, told[1])
            for member, token in self._batch.commit(evaluated, drawn, *told):
                if not (member.finished or member.leaving):  # its answer may have ended within the step
                    self._take_token(member, token, now)
        if steps > self._seen_steps:
            self._failures = 0
            self._books.moved_at = now
        self._seen_steps = steps
        for member in self._batch.members:
            generation = member.owner
            generation.tell_prompt(now)
            if member.max_tokens == 0 and member.evaluated == len(member.prompt):
                self._reuse.count(member)
                self._finish(generation, "length", now)
        if self._expire_members(now) or self._diary.release(self._reuse, self, now):
            self._table.request_stop()
        if self.gate.can_admit:
            self._table.request_stop()

    def _take_token(self, member: Member[QueuedGeneration], token: int, now: float) -> None:
        generation = member.owner
        if token == INVALID_LOGITS:
            self._fail(generation, no_token_error(member.constraint))
            return
        told = member.take_told()
        generation.taken += 1
        if not generation.first_token_at:
            generation.first_token_at = now
            self._reuse.count(member)
            generation.tell_prompt(now)
        if token in member.ends:
            self._finish(generation, "stop", now, token if token in generation.request.stop_token_ids else None)
            return
        text = generation.text.push(token)
        generation.say(TokenChunk(token, text, told))
        if generation.text.stopped:
            self._finish(generation, "stop", now, generation.text.matched)
            self._table.request_stop()  # the lane does not know, and would go on
        elif generation.taken >= member.max_tokens:
            self._finish(generation, "length", now)

    def _finish(self, generation: QueuedGeneration, reason: str, now: float, stopped_by: str | int | None = None) -> None:
        member = generation.member
        assert member is not None
        self._batch.cut(member, generation.taken)
        self._diary.finish(generation.ticket, reason, generation.taken, generation.text.stopped)
        del self._live[generation.ticket]
        self._batch.finish(member)
        self._end_state(member)
        self.gate.leave(generation.ticket, served=tokens_served(member))
        first = generation.first_token_at or now
        timings = Timings(
            generation.seated_at - generation.arrived_at,
            first - generation.seated_at,
            now - first,
            member.proposed,
            member.accepted,
            member.passes,
            member.replays,
        )
        if member.drafter is not None:
            self._speculative_seconds += timings.decode_seconds
        usage = Usage(len(member.prompt), len(member.output), member.reused)
        self._books.count_completed(
            now - generation.seated_at, prompt_tokens=usage.prompt_tokens, generated_tokens=usage.completion_tokens
        )
        self._books.count_answer(timings, usage.completion_tokens)
        self._books.count_emitted(generation.request.caller, usage.completion_tokens)
        generation.say(GenerationFinished(reason, generation.text.finish(), usage, timings, stopped_by))
        generation.member = None

    def _end_job(self, message: StepsDone) -> None:
        self._commit_steps(message.steps)
        self._batch.end_job(aborted=bool(message.error))
        self._tally.add(self._table.tally.take())
        self._job = -1
        if message.error:
            self._failures += bool(self._table.slots)  # a job that only closes is nobody's try
            self._table = self._new_table()
            self._reuse.forget(self._batch)
            log.warning("a step of %s failed: %s", self._model, message.error)
            if self._failures > RETRIES_MAX:
                self._failures = 0
                self._fail_members(TripowerError(message.explanation, code=message.error))
        self._advance()

    def _close_states_later(self) -> None:
        """Also after a failure: at once could go on for ever."""
        if not self._closing:
            self._closing = True
            self.start_soon(self._wait_and_close_states, name="close states")

    async def _wait_and_close_states(self) -> None:
        await trio.sleep(CLOSE_AFTER_SECONDS)
        self.ref.control(CloseStates())

    def _close_states(self) -> None:
        self._closing = False
        if not self._batch.running and not self._batch.members and self._batch.stale:
            self._start_job()

    def _end_state(self, member: Member[QueuedGeneration], *, failed: bool = False) -> None:
        """Keep what a member has evaluated for whoever asks again, as far as that is wanted and fits."""
        self._reuse.end(member, self._time, failed=failed)
        self._expire_later()

    def _expire_later(self) -> None:
        due = self._reuse.expires_at
        if not self._expiring and due is not None:
            self._expiring = True
            self.start_soon(partial(self._wait_and_expire, due), name="expire states")

    async def _wait_and_expire(self, due: float) -> None:
        await trio.sleep_until(due)
        self.ref.control(ExpireStates())

    def _expire_states(self) -> None:
        self._expiring = False
        if self._diary.expire(self._reuse, self._time):
            self._batch.stale = True
            if not self._batch.running and not self._batch.members:
                self._close_states_later()
        self._expire_later()

    def _fail_members(self, error: TripowerError) -> None:
        """Fail everybody in the batch; those who wait keep waiting."""
        for member in self._batch.members:
            self._fail(member.owner, error)

    def _speculation(self) -> SpeculationStatistics | None:
        settings = self._limits.speculation
        if settings is None:
            return None
        return SpeculationStatistics(
            self._engine.info.backend,
            settings.strategy.value,
            self._speculative_seconds,
            self._tally.draft_seconds,
            self._tally.verify_seconds,
            self._tally.fallbacks,
        )

    def is_live(self, ticket: int) -> bool:
        """Whether a request still waits or runs here."""
        return ticket in self._live

    def identities(self) -> list[IdentityStatistics]:
        """See `KnowsIdentities`."""
        return self._books.identities((each.owner.request.caller, len(each.output)) for each in self._batch.members)

    def statistics(self) -> QueueStatistics:
        batch = self._batch
        statistics = self._books.statistics(
            live=len(self._live),
            step_running=batch.running,
            batch=batch.statistics(),
            emitting=sum(len(member.output) for member in batch.members),
        )
        positions_max = self._limits.members_max * self._engine.info.context_max
        return msgspec.structs.replace(
            statistics,
            positions_max=positions_max,
            seats=tuple(map(seat_statistics, batch.members)),
            prefix=self._reuse.statistics(),
            speculation=self._speculation(),
        )


def seat_statistics(member: Member[QueuedGeneration]) -> SeatStatistics:
    """What is told of a member: figures, and who has the seat."""
    request = member.owner.request
    return SeatStatistics(
        ticket=member.owner.ticket,
        identity=request.caller.identity,
        request_id=request.request_id,
        prompt_tokens=len(member.prompt),
        evaluated=member.evaluated,
        generated=len(member.output),
        tokens_max=member.max_tokens,
        sampling=member.sampling,
    )


def tokens_served(member: Member[Any]) -> int:
    """What a member has really had, for its account with the gate."""
    return min(member.evaluated, len(member.prompt)) - member.reused + len(member.output)
