"""The real queue actor between scripted neighbours: a clock that stands where it is put, a device that answers what was recorded.

Nothing moves by itself here. Each turn is brought about by one message; what the queue decides is noted by its own diary.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import trio
import trio.testing

from tripower.actors.device import StepOrder, StepsCommitted, StepsDone
from tripower.actors.model_queue import ModelQueueActor
from tripower.actors.prefix_reuse import PrefixReuse
from tripower.actors.queued_generation import QueuedGeneration
from tripower.actors.queueing import AnswerParts, Generate, QueueLimits, outlet_room
from tripower.actors.replay.diary import queue_state
from tripower.actors.replay.turns import INVALID, NOT_DRAWN, TOKEN, Arrived, Checkpoint, Stepped, Told, Turn, infinite
from tripower.backends.text.stream import TextStream
from tripower.runtime.admission import Caller
from tripower.runtime.admission.state import restore_gate
from tripower.runtime.batching import Batch, Member
from tripower.runtime.engine import EngineInfo, LoadedModel, SamplingParameters, StepTable
from tripower.runtime.engine.step_loop import plan_rows
from tripower.runtime.engine.step_table import INVALID_LOGITS
from tripower.runtime.engine.step_table import NOT_DRAWN as NOT_DRAWN_TOKEN
from tripower.runtime.kernel import ActorSystem, Ask, Message, Outlet, Ref, TripowerError
from tripower.runtime.kernel.envelope import Envelope
from tripower.runtime.kernel.recording import Handled

PLAIN_TOKEN, END_TOKEN, STOPPING_TOKEN = 0, 1, 2
"""What stands for a token: one of the text, one that ends it, and one that completes a stop string."""
STOP_STRING = "\n"
SCRIPTED_SOURCE = -1
"""The sequence that a member starts from: which one it was is not decided again."""


class RecordedClock(trio.abc.Clock):
    """A clock that is moved by hand, to exactly the time that was recorded."""

    def __init__(self) -> None:
        self.time = 0.0

    def start_clock(self) -> None:
        """Nothing to do."""

    def current_time(self) -> float:
        return self.time

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0.0 if deadline <= self.time else math.inf


class _Text:
    """As much of a text layer as a stream of ours needs."""

    end_tokens = frozenset({END_TOKEN})

    def piece(self, token: int) -> bytes:
        return STOP_STRING.encode() if token == STOPPING_TOKEN else b"x"

    spelling = piece


class _Engine:
    """Nothing runs on it."""

    def __init__(self, context_max: int) -> None:
        self.info = EngineInfo(
            backend="replay", architecture="", context_max=context_max, vocabulary_size=3, sequences_max=1 << 16
        )


class _Device:
    """Takes orders, or does not."""

    accepting = True

    def control(self, message: Message, *, live: StepOrder, on_dropped: Callable[[], None]) -> bool:
        return self.accepting


class _Numbers:
    """Tickets and jobs get the numbers that they had; what there was not is below 0."""

    def __init__(self) -> None:
        self.script: deque[int] = deque()
        self._made_up = -1

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.script:
            return self.script.popleft()
        self._made_up -= 1
        return self._made_up


class _Reuse(PrefixReuse):
    """Says what the prefix cache said."""

    def __init__(self, info: EngineInfo) -> None:
        super().__init__(info, None)
        self.script: deque[Sequence[Any]] = deque()

    def _next(self, *begins: Any) -> Sequence[Any] | None:
        if self.script and list(self.script[0][: len(begins)]) == list(begins):
            return self.script.popleft()
        return None

    def begin(self, batch: Batch[QueuedGeneration], member: Member[QueuedGeneration], now: float) -> None:
        if said := self._next("begin", member.owner.ticket):
            _start_from(batch, member, *said[2:])

    def release(self, batch: Batch[QueuedGeneration], now: float) -> bool:
        if not any(member.held for member in batch.members):
            return False
        said = self._next("release")
        if said is None:
            return False
        members = {member.owner.ticket: member for member in batch.members}
        for ticket, held, reused in said[2]:
            if ticket in members:
                _start_from(batch, members[ticket], held, reused)
        return bool(said[1])

    def forget(self, batch: Batch[QueuedGeneration]) -> None:
        for member in batch.members:
            member.held = False
            batch.begin_anew(member)

    def expire(self, now: float) -> bool:
        said = self._next("expire")
        return bool(said and said[1])


def _start_from(batch: Batch[QueuedGeneration], member: Member[QueuedGeneration], held: bool, reused: int) -> None:
    member.held = held
    if reused and not member.evaluated:
        batch.reuse(member, SCRIPTED_SOURCE, reused)


class ReplayedQueue(ModelQueueActor):
    """A queue that begins where a checkpoint says, and has no timers: what they said was recorded."""

    def __init__(self, checkpoint: Checkpoint, device: Any, numbers: Iterator[int]) -> None:
        engine = _Engine(checkpoint.context_max)
        limits = QueueLimits(
            members_max=checkpoint.members_max,
            waiting_max=checkpoint.waiting_max,
            steps_per_job=checkpoint.steps_per_job,
            rows_max=checkpoint.rows_max,
            mixed_rows=checkpoint.mixed_rows,
        )
        loaded: Any = LoadedModel(engine, _Text())  # type: ignore[arg-type]
        super().__init__(checkpoint.model, loaded, device, limits, tickets=numbers)
        self._diary.checkpoints = False
        self._reuse = self.scripted = _Reuse(engine.info)
        self._checkpoint = checkpoint

    async def on_start(self) -> None:
        state = self._checkpoint
        restore_gate(self.gate, state.gate)
        self._books.draining = state.draining
        self._failures = state.failures
        callers = {ticket: account.caller for ticket, (account, _) in (*self.gate._active.items(), *self.gate._waiting.items())}
        for request in state.requests:
            message = generate(request.prompt, request.max_tokens, callers[request.ticket])
            outlet: Outlet[Any] = Outlet(outlet_room(request.max_tokens))
            text = TextStream(_Text(), message.stop)
            self._live[request.ticket] = generation = QueuedGeneration(
                request.ticket, message, outlet, text, infinite(request.deadline), self._time
            )
            generation.taken = request.taken
        for seat in state.members:
            owner = self._live[seat.ticket]
            request_ = owner.request
            owner.member = member = self._batch.join(
                request_.prompt,
                max_tokens=request_.max_tokens,
                sampling=request_.sampling,
                ends=_Text.end_tokens,
                owner=owner,
            )
            member.evaluated, member.reused, member.held = seat.evaluated, seat.reused, seat.held
            member.output = [PLAIN_TOKEN] * seat.output
            member.source = SCRIPTED_SOURCE if seat.forking else None
        if state.job >= 0:
            self._start_job()
        self._batch.stale = state.stale

    def start_soon(self, work: Callable[..., Any], *arguments: Any, name: str) -> None:
        """No timer runs here."""


def generate(prompt: int, max_tokens: int, caller: Caller, priority: int = 0) -> Generate:
    """A request of the same lengths."""
    return Generate(
        (PLAIN_TOKEN,) * prompt, max_tokens, SamplingParameters(), stop=(STOP_STRING,), caller=caller, priority=priority
    )


class _Notebook:
    """Listens to the replayed queue's diary only."""

    readers = 0

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.clock: Callable[[], float] = trio.current_time
        self.number: Callable[[], int] = itertools.count().__next__
        self.keep: Callable[[Handled], None] | None = lambda entry: None

    def sent(self, envelope: Envelope, way: str) -> None:
        pass

    def over(self, actor: str, envelope: Envelope, started: float, outcome: str = "") -> None:
        pass

    def crashed(self, actor: str, error: BaseException) -> None:
        pass

    def note(self, actor: str, at: float, data: Any, size: int) -> None:
        if isinstance(data, Turn):
            self.turns.append(data)


class Stage:
    """One instance of a queue, replayed. `set_up`, then `turn` after turn."""

    def __init__(self, system: ActorSystem, nursery: trio.Nursery, clock: RecordedClock, make: type[ReplayedQueue]) -> None:
        self._system, self._nursery, self._clock, self._make = system, nursery, clock, make
        self._device, self._numbers, self._notebook = _Device(), _Numbers(), _Notebook()
        self._ref: Ref[Any]
        self._queue: ReplayedQueue
        self._slots: list[list[int]] | None = None
        """Pending and remaining tokens of each slot of the job that runs, where its rows are planned by the common rule."""
        self.index = -1

    async def set_up(self, checkpoint: Checkpoint, at: float, name: str) -> None:
        """Put a queue where the checkpoint says."""
        self._clock.time = max(self._clock.time, at)
        self.index = checkpoint.index
        self._numbers.script = deque([checkpoint.job] if checkpoint.job >= 0 else [])

        def make() -> ReplayedQueue:
            self._queue = self._make(checkpoint, self._device, self._numbers)
            return self._queue

        self._ref = self._system.spawn(make, name=name)
        self._system.recording = self._notebook
        await trio.testing.wait_all_tasks_blocked()
        self._queue._diary._index = checkpoint.index

    async def tear_down(self) -> None:
        """End the instance."""
        await self._ref.stop()

    def state(self) -> Checkpoint:
        """Where the replayed queue is."""
        return queue_state(self._queue, self.index)

    async def turn(self, at: float, recorded: Turn) -> tuple[Turn | None, str]:
        """Let the queue have the turn again. Returns what it did, None where it had none, and what was wrong with the rows of a step."""
        self.index = recorded.index
        told = recorded.told
        if isinstance(told, Arrived) and told.invalid:  # refused for what it asked, which is not recorded
            self._queue._diary._index += 1
            return recorded, ""
        self._clock.time = max(self._clock.time, at)
        self._device.accepting = not any(decision[0] == "unavailable" for decision in recorded.decided)
        jobs = [decision[1] for decision in recorded.decided if decision[0] == "job"]
        arrived = [-1 if told.ticket is None else told.ticket] if isinstance(told, Arrived) else []
        self._numbers.script = deque([*arrived, *jobs])
        self._queue.scripted.script = deque(recorded.reuse)
        self._notebook.turns.clear()
        wrong = self._tell(told)
        await trio.testing.wait_all_tasks_blocked()
        turn = self._notebook.turns[0] if self._notebook.turns else None
        self._see_job(recorded)
        return turn, wrong

    def _tell(self, told: Arrived | Told | Stepped) -> str:
        match told:
            case Arrived():
                caller = Caller(
                    identity=told.identity,
                    weight=told.weight,
                    concurrency_max=told.concurrency_max,
                    alone=told.alone,
                )
                message = generate(told.prompt, told.max_tokens, caller, told.priority)
                parts = AnswerParts(Outlet(outlet_room(told.max_tokens)))
                self._nursery.start_soon(self._ask, message, infinite(told.deadline), parts)
                return ""
            case Stepped():
                return self._step(told)
        kind = {each.__name__: each for each in ModelQueueActor.understands}[told.message]
        message_: Message = kind(**told.fields)
        if issubclass(kind, Ask):
            self._nursery.start_soon(self._ask, message_, math.inf, None)
        else:
            self._ref.control(message_)
        return ""

    async def _ask(self, message: Message, deadline: float, live: Any) -> None:
        with suppress(TripowerError):
            await self._ref.ask(message, deadline=deadline, live=live)

    # Steps.

    def _step(self, told: Stepped) -> str:
        queue = self._queue
        wrong = self._fill(queue._table, told) if told.job == queue._job else ""
        if told.done:
            self._ref.control(StepsDone(told.job, told.total, told.error, "as it was recorded"))
        else:
            self._ref.control(StepsCommitted(told.job, told.total))
        return wrong

    def _fill(self, table: StepTable, told: Stepped) -> str:
        """Put the results of the new steps into the table, and plan their rows again."""
        queue = self._queue
        stopped = dict(told.stopped)
        tickets = {member.sequence: member.owner.ticket for member in queue._batch.members}
        slots = [tickets.get(sequence, -1) for sequence in table.sequence[: table.slots].tolist()]
        taken = [queue._live[ticket].taken if ticket in queue._live else 0 for ticket in slots]
        wrong, at = "", queue._seen_steps
        for step in told.steps:
            for _ in range(step.count):
                wrong = wrong or self._plan(table, step.evaluated)
                self._advance(step.evaluated, step.drawn, step.runs)
                table.evaluated[at, : len(step.evaluated)] = step.evaluated
                runs = {}
                for slot, (ticket, kind) in enumerate(zip(slots, step.drawn, strict=True)):
                    run = []
                    for _ in range(step.runs.get(slot, 0)):
                        taken[slot] += 1
                        run.append(STOPPING_TOKEN if stopped.get(ticket) == taken[slot] else PLAIN_TOKEN)
                    taken[slot] += kind == TOKEN
                    stopping = stopped.get(ticket) == taken[slot]
                    table.drawn[at, slot] = _token(kind, stopping)
                    if run:
                        runs[slot] = tuple(run)
                if runs:
                    table.runs[at] = runs
                at += 1
        return wrong

    def _see_job(self, recorded: Turn) -> None:
        """Remember the slots of a job that has begun."""
        for decision in recorded.decided:
            if decision[0] == "job":
                slots = [[pending, remaining] for _, _, pending, remaining in decision[-1]]
                self._slots = slots if recorded.rows_by_rule else None

    def _plan(self, table: StepTable, evaluated: Sequence[int]) -> str:
        """What the common rule for rows says to a step, if it is something else."""
        if self._slots is None:
            return ""
        pending = [tokens for tokens, _ in self._slots]
        planned = plan_rows(pending, table.rows_max, table.mixed_rows)
        if tuple(planned) == tuple(evaluated) or (1 in pending and _are_fewer(evaluated, planned, pending)):
            return ""
        return f"{tuple(evaluated)} rows were evaluated, {tuple(planned)} are due"

    def _advance(self, evaluated: Sequence[int], drawn: Sequence[int], runs: dict[int, int]) -> None:
        for place, slot in enumerate(self._slots or ()):
            slot[0] -= evaluated[place]
            if drawn[place] != NOT_DRAWN:
                slot[1] -= 1 + runs.get(place, 0)
                slot[0] = 1 if drawn[place] == TOKEN and slot[1] > 0 else 0


def _are_fewer(evaluated: Sequence[int], planned: Sequence[int], pending: Sequence[int]) -> bool:
    """Whether an engine took no more rows than are due beside a stream: it may take fewer, by what a row that looks back costs it."""
    apart = zip(evaluated, pending, strict=True)
    return sum(evaluated) <= sum(planned) and all(min(tokens, 1) <= rows <= tokens for rows, tokens in apart)


def _token(kind: int, stopping: bool) -> int:
    if kind == TOKEN:
        return STOPPING_TOKEN if stopping else PLAIN_TOKEN
    return {NOT_DRAWN: NOT_DRAWN_TOKEN, INVALID: INVALID_LOGITS}.get(kind, END_TOKEN)
