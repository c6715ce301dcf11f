"""What a model's queue writes down while a flight recorder listens; nothing, at the price of a comparison, while none does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from tripower.actors.device import StepsCommitted, StepsDone
from tripower.actors.queueing import Enqueued, FollowTicket, Generate, SettleQueue
from tripower.actors.replay.turns import (
    END,
    INVALID,
    NOT_DRAWN,
    TOKEN,
    Arrived,
    Checkpoint,
    Decision,
    MemberState,
    RequestState,
    Step,
    Stepped,
    Told,
    Turn,
    finite,
)
from tripower.runtime.admission.state import gate_state
from tripower.runtime.engine import StepTable
from tripower.runtime.engine.logprobs import NO_LOGPROBS
from tripower.runtime.engine.step_table import INVALID_LOGITS
from tripower.runtime.engine.step_table import NOT_DRAWN as NOT_DRAWN_TOKEN
from tripower.runtime.kernel import InvalidRequest, Message, TripowerError
from tripower.runtime.kernel.recording import Recording

if TYPE_CHECKING:
    from tripower.actors.model_queue import ModelQueueActor
    from tripower.actors.prefix_reuse import PrefixReuse
    from tripower.runtime.batching import Member

CHECKPOINT_TURNS = 1000
"""After so many turns a checkpoint is due, or later where the queue is long: it costs as much as a few turns for each request."""
TURN_BYTES, STEP_BYTES, REQUEST_BYTES = 400, 250, 400
NO_TOKEN = {"invalid_logits": "no_token", "format_exhausted": "no_token"}
"""Why no token could be drawn is the engine's or the format's affair."""


@attrs.define
class _OpenTurn:
    """What has been decided since the message in hand was read."""

    decided: list[Decision] = attrs.Factory(list)
    reuse: list[Any] = attrs.Factory(list)
    steps: list[Step] = attrs.Factory(list)
    stopped: list[tuple[int, int]] = attrs.Factory(list)
    began: bool = False
    """Whether a job has."""
    rows_by_rule: bool = True


class Diary:
    """One for each instance of a queue. Synchronous."""

    def __init__(self) -> None:
        self.checkpoints = True
        """Off while the queue is a replayed one."""
        self._open: _OpenTurn | None = None
        self._recording: Recording | None = None
        self._readers = 0
        self._index = -1
        self._due = 0

    # A turn.

    def begin(self, queue: ModelQueueActor, recording: Recording, now: float) -> None:
        """An instance starts: what comes before its first message."""
        self._recording, self._readers = recording, recording.readers
        self._check(queue, recording, now)

    def write(
        self, queue: ModelQueueActor, recording: Recording, now: float, message: Message, handle: Callable[[Any], Any]
    ) -> Any:
        """Let the queue handle a message, and note the turn. Returns and raises what `handle` does."""
        if isinstance(message, (SettleQueue, FollowTicket)):  # decides nothing
            return handle(message)
        if recording is not self._recording or recording.readers != self._readers:
            self._recording, self._readers, self._due = recording, recording.readers, 0
        self._open = turn = _OpenTurn()
        invalid, answer = "", None
        try:
            answer = handle(message)
            return answer
        except TripowerError as error:
            invalid = error.code if isinstance(error, InvalidRequest) else ""
            turn.decided.append(("refuse", error.code))
            raise
        except Exception as error:
            turn.decided.append(("crash", type(error).__name__))
            raise
        finally:
            self._open = None
            self._index += 1
            if queue._batch.running and queue._table.stop:
                turn.decided.append(("stop",))
            told = _told(message, queue, turn, answer, invalid)
            size = TURN_BYTES + STEP_BYTES * len(turn.steps) + 64 * len(turn.decided)
            page = Turn(self._index, told, tuple(turn.decided), tuple(turn.reuse), turn.rows_by_rule)
            recording.note(queue.ref.name, now, page, size)
            if self._index >= self._due and (turn.began or not queue._batch.running):
                self._check(queue, recording, now)

    def _check(self, queue: ModelQueueActor, recording: Recording, now: float) -> None:
        if not self.checkpoints:
            return
        state = queue_state(queue, self._index)
        self._due = self._index + max(CHECKPOINT_TURNS, 4 * len(state.requests))
        recording.note(queue.ref.name, now, state, TURN_BYTES + REQUEST_BYTES * len(state.requests))

    # What the queue tells while it decides.

    def decide(self, *decision: Any) -> None:
        """It has decided something."""
        if self._open is not None:
            self._open.decided.append(decision)

    def fail(self, ticket: int, error: TripowerError) -> None:
        """It tells a request that it has failed."""
        self.decide("fail", ticket, NO_TOKEN.get(error.code, error.code))

    def finish(self, ticket: int, reason: str, taken: int, by_text: bool) -> None:
        """A request is complete."""
        if self._open is not None:
            self._open.decided.append(("finish", ticket, reason, taken))
            if by_text:
                self._open.stopped.append((ticket, taken))

    def job(self, number: int, queue: ModelQueueActor) -> None:
        """A job was planned."""
        if self._open is None:
            return
        self._open.began = True
        table = queue._table
        tickets = {member.sequence: member.owner.ticket for member in queue._batch.members}
        columns = zip(table.sequence.tolist(), table.position.tolist(), table.pending, table.remaining.tolist(), strict=False)
        slots = [(tickets[sequence], position, len(pending), remaining) for sequence, position, pending, remaining in columns]
        self._open.rows_by_rule = all(drafter is None for drafter in table.drafter) and all(
            wanted == NO_LOGPROBS for wanted in table.prompt_logprobs
        )
        self._open.decided.append(("job", number, table.steps_max, table.rows_max, table.mixed_rows, slots))

    def step(
        self, table: StepTable, evaluated: Sequence[int], drawn: Sequence[int], runs: Mapping[int, tuple[int, ...]]
    ) -> None:
        """A step is about to be committed."""
        if self._open is None:
            return
        kinds = tuple(
            NOT_DRAWN if token == NOT_DRAWN_TOKEN
            else INVALID if token == INVALID_LOGITS
            else END if token in table.ends[slot]
            else TOKEN
            for slot, token in enumerate(drawn)
        )  # fmt: skip
        lengths = {slot: len(run) for slot, run in runs.items() if run}
        steps, rows = self._open.steps, tuple(evaluated)
        if steps and not lengths and not steps[-1].runs and steps[-1].evaluated == rows and steps[-1].drawn == kinds:
            steps[-1] = Step(steps[-1].count + 1, steps[-1].evaluated, steps[-1].drawn)
        else:
            steps.append(Step(1, rows, kinds, lengths))

    # What the prefix cache says.

    def begun(self, member: Member[Any]) -> None:
        """The cache has said where a member starts."""
        if self._open is not None and (member.held or member.reused):
            self._open.reuse.append(("begin", member.owner.ticket, member.held, member.reused))

    def release(self, reuse: PrefixReuse, queue: ModelQueueActor, now: float) -> bool:
        """Ask the cache who need not wait any more."""
        if self._open is None:
            return reuse.release(queue._batch, now)
        held = [member for member in queue._batch.members if member.held]
        released = reuse.release(queue._batch, now)
        if held:
            told = [(member.owner.ticket, member.held, member.reused) for member in held]
            self._open.reuse.append(("release", released, told))
        return released

    def expire(self, reuse: PrefixReuse, now: float) -> bool:
        """Ask the cache whether it has dropped something."""
        expired = reuse.expire(now)
        if self._open is not None:
            self._open.reuse.append(("expire", expired))
        return expired


def _told(message: Message, queue: ModelQueueActor, turn: _OpenTurn, answer: Any, invalid: str) -> Arrived | Told | Stepped:
    match message:
        case Generate():
            caller = message.caller
            return Arrived(
                prompt=len(message.prompt),
                max_tokens=message.max_tokens,
                deadline=finite(queue.envelope.deadline),
                identity=caller.identity,
                weight=caller.weight,
                concurrency_max=caller.concurrency_max,
                alone=caller.alone,
                priority=message.priority,
                ticket=answer.ticket if isinstance(answer, Enqueued) else None,
                invalid=invalid,
            )
        case StepsCommitted():
            return Stepped(message.job, message.steps, tuple(turn.steps), stopped=tuple(turn.stopped))
        case StepsDone():
            return Stepped(
                message.job, message.steps, tuple(turn.steps), done=True, error=message.error, stopped=tuple(turn.stopped)
            )
    return Told(type(message).__name__, msgspec.structs.asdict(message))


def queue_state(queue: ModelQueueActor, index: int) -> Checkpoint:
    """All that the queue's later decisions depend on. Costs a few microseconds for each request."""
    limits = queue._limits
    return Checkpoint(
        index=index,
        model=queue._model,
        context_max=queue._engine.info.context_max,
        members_max=limits.members_max,
        waiting_max=limits.waiting_max,
        steps_per_job=limits.steps_per_job,
        rows_max=limits.rows_max,
        mixed_rows=limits.mixed_rows,
        gate=gate_state(queue.gate),
        members=tuple(
            MemberState(
                ticket=member.owner.ticket,
                evaluated=member.evaluated,
                output=len(member.output),
                reused=member.reused,
                held=member.held,
                forking=member.source is not None,
            )
            for member in queue._batch.members
        ),
        requests=tuple(
            RequestState(
                ticket=ticket,
                prompt=len(generation.request.prompt),
                max_tokens=generation.request.max_tokens,
                deadline=finite(generation.deadline),
                taken=generation.taken,
            )
            for ticket, generation in queue._live.items()
        ),
        job=queue._job,
        failures=queue._failures,
        draining=queue._books.draining,
        stale=queue._batch.stale,
    )
