"""A delegate queue owns the waiting room and the running streams of one model that generates by itself.

What `ModelQueueActor` is for an engine of rows, with the same gate, the same statistics, the same words to its callers. In this order:
a request arrives, is seated or waits or is refused; whoever is seated gets a task that asks the delegate and puts its pieces into the
caller's outlet; when the stream has closed, the task says so and the seat goes to the longest waiting.

A seat is free when the delegate takes nothing any more for it, which may be a moment after its caller has gone. A request's deadline
bounds its wait and its stream. Stop strings are found here, whether the delegate heeds them or not.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any, assert_never

import attrs
import trio

from tripower.actors.dialogue import Failed, GenerationEvent, GenerationFinished, GenerationStarted, Timings, TokenChunk, Usage
from tripower.actors.queue_books import QueueBooks, SeatBooks, TellsOfRequests
from tripower.actors.queueing import (
    AnswerParts,
    CancelTicket,
    DrainQueue,
    Enqueued,
    FollowTicket,
    IdentityStatistics,
    Leave,
    QueueLimits,
    QueueStatistics,
    SettleQueue,
    TicketCancelled,
    TicketFollowed,
    cancellation,
    not_there,
)
from tripower.actors.request_paths import RequestPath, queued_path
from tripower.actors.request_tap import TappedOutlet
from tripower.backends.text.stream import StopMatcher
from tripower.runtime.admission import ANYBODY, Caller, Gate
from tripower.runtime.engine import DelegateEnd, DelegateEvent, DelegateRequest, LoadedDelegate
from tripower.runtime.engine.step_table import NOT_DRAWN
from tripower.runtime.kernel import (
    Actor,
    ActorGone,
    Ask,
    DeadlineExceeded,
    DeviceFailed,
    Message,
    Outlet,
    TripowerError,
    remaining_seconds,
)

log = logging.getLogger("tripower.queue")

PIECES_MAX = 1 << 18
"""Of one answer: twice the tokens of the longest context in use. A delegate that sends more has lost its way."""
OUTLET_ROOM = PIECES_MAX + 2
"""Events of one generation: the start, the pieces, the end."""


class GenerateText(Ask[Enqueued], frozen=True):
    """Answer this request. The envelope carries the `Outlet` of `OUTLET_ROOM` items that the events go to."""

    request: DelegateRequest
    caller: Caller = ANYBODY
    priority: int = 0
    request_id: str = ""


class StreamClosed(Message, frozen=True):
    """From a stream's own task, after the delegate has let go of it. The envelope carries a `TripowerError`, or None."""

    ticket: int
    served: float
    """Tokens that it took, about."""


Command = GenerateText | Leave | StreamClosed | DrainQueue | SettleQueue | CancelTicket | FollowTicket


@attrs.define(eq=False)
class _Stream:
    """What the queue remembers of one request."""

    ticket: int
    request: DelegateRequest
    outlet: Outlet[GenerationEvent]
    deadline: float
    arrived_at: float
    stops: StopMatcher | None
    caller: Caller = ANYBODY
    request_id: str = ""
    priority: int = 0
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    seated: bool = False
    seated_at: float = 0.0
    first_piece_at: float | None = None
    pieces: int = 0
    tokens: int = 0
    begun: bool = False
    end: DelegateEnd | None = None

    def path(self, model: str, now: float) -> RequestPath:
        """Where it is at a time. How long its prompt is, only the delegate knows."""
        return queued_path(
            model=model,
            request_id=self.request_id,
            caller=self.caller,
            priority=self.priority,
            deadline=self.deadline,
            arrived_at=self.arrived_at,
            seated_at=self.seated_at if self.seated else None,
            first_at=self.first_piece_at,
            now=now,
            generated_tokens=self.tokens,
            tokens_max=self.request.max_tokens or 0,
        )


class DelegateQueueActor(TellsOfRequests, Actor[Command]):
    """See the module. `tickets` outlive a restart, so that nothing old is mistaken for something new."""

    def __init__(
        self, model: str, loaded: LoadedDelegate, limits: QueueLimits, *, tickets: Iterator[int] | None = None
    ) -> None:
        self._model = model
        self._engine = loaded.engine
        seats = min(limits.members_max, self._engine.info.sequences_max or limits.members_max)
        self.gate: Gate[int] = Gate(active_limit=seats, waiting_limit=limits.waiting_max)
        self._books = QueueBooks(model, seats, self.gate, tickets=itertools.count() if tickets is None else tickets)
        self._runs = SeatBooks(seats)
        self._live: dict[int, _Stream] = {}
        """Those whose caller still listens."""

    async def on_message(self, message: Command) -> Any:
        answer = self._handle(message)
        if self._books.drainers and self._quiet:
            self._books.answer_drainers()
        return answer

    def _handle(self, message: Command) -> Any:
        match message:
            case GenerateText():
                return self._generate(message)
            case Leave():
                return self._leave(message)
            case StreamClosed():
                return self._close(message)
            case DrainQueue():
                return self._books.drain(self.envelope, quiet=self._quiet)
            case SettleQueue():
                return self._books.settle(self.envelope, self._live)
            case CancelTicket():
                return self._cancel(message)
            case FollowTicket():
                return self._follow_ticket(message)
        assert_never(message)

    @property
    def _quiet(self) -> bool:
        return not self._live and not self._runs.running

    def on_undelivered(self, message: Any, answer: Any) -> None:
        if isinstance(answer, Enqueued):
            self._leave(Leave(answer.ticket))

    async def on_end(self) -> None:
        gone = ActorGone(f"the queue of {self._model} ended")
        for stream in list(self._live.values()):
            stream.scope.cancel(reason="the queue ends")
            self._fail(stream, gone)

    # Arriving and leaving.

    def _generate(self, message: GenerateText) -> Enqueued:
        now = trio.current_time()
        engine = self._engine
        ticket, seated = self._books.arrive(
            now=now,
            deadline=self.envelope.deadline,
            check=lambda: engine.abilities.check(message.request, engine.info.backend),
            caller=message.caller,
            priority=message.priority,
            cost=likely_cost(message.request),
        )
        for displaced, error in self._books.take_displaced():
            self._fail(self._live[displaced], error)
        parts: AnswerParts = self.envelope.live
        stops = StopMatcher(message.request.stop) if message.request.stop else None
        stream = _Stream(ticket, message.request, parts.outlet, self.envelope.deadline, now, stops, message.caller)
        stream.request_id, stream.priority = message.request_id, message.priority
        self._live[ticket] = stream
        if seated:
            self._seat(stream, now)
        return Enqueued(ticket)

    def _seat(self, stream: _Stream, now: float) -> None:
        stream.seated, stream.seated_at = True, now
        stream.scope.deadline = stream.deadline
        if not self._runs.running:
            self._books.moved_at = now
        self._runs.join()
        self.start_soon(self._run, stream, name=f"stream {stream.ticket}")

    def _leave(self, message: Leave) -> None:
        stream = self._live.pop(message.ticket, None)
        if stream is None:
            return
        self._books.count_left(expired=message.expired)
        self._books.count_emitted(stream.caller, stream.tokens)
        stream.outlet.leave()
        self._let_go(stream, expired=message.expired)

    def _let_go(self, stream: _Stream, *, expired: bool) -> None:
        """Nobody listens to a stream any more: its seat is free when it has closed, its waiting place at once."""
        if stream.seated:
            stream.scope.cancel(reason="the caller has left")
        else:
            self.gate.leave(stream.ticket, expired=expired)

    def _cancel(self, message: CancelTicket) -> TicketCancelled:
        stream = self._live.pop(message.ticket, None)
        if stream is None:
            raise not_there(self._model, message.ticket)
        self._books.count_left(expired=False)
        self._books.count_emitted(stream.caller, stream.tokens)
        self._say(stream, Failed.of(cancellation()))
        stream.outlet = Outlet(0)
        stream.outlet.leave()  # for what the delegate says before it hears of it
        self._let_go(stream, expired=False)
        return TicketCancelled()

    def _follow_ticket(self, message: FollowTicket) -> TicketFollowed:
        stream = self._live.get(message.ticket)
        if stream is None:
            raise not_there(self._model, message.ticket)
        stream.outlet = TappedOutlet(stream.outlet, self.envelope.live, message.ticket, stream.deadline)
        return TicketFollowed(stream.path(self._model, trio.current_time()))

    def _admit_waiting(self) -> None:
        now = trio.current_time()
        admitted, expired = self.gate.admit_waiting(now=now)
        for ticket in expired:
            self._fail(self._live[ticket], DeadlineExceeded("the deadline passed in the waiting room"))
        for ticket in admitted:
            self._seat(self._live[ticket], now)

    # Running: in a task of the stream's own.

    async def _run(self, stream: _Stream) -> None:
        error: TripowerError | None = None
        with stream.scope:
            try:
                await self._follow(stream)
            except TripowerError as raised:
                error = raised
            except Exception as raised:  # the one seam where a delegate's exceptions become ours
                log.exception("the delegate of %s failed", self._model)
                error = DeviceFailed(f"{self._model} failed: {type(raised).__name__}")
        if stream.end is not None:
            error = None  # the answer is complete, however its source was left
        elif error is None:
            error = DeadlineExceeded("the deadline passed while tokens were generated")
        self.ref.control(StreamClosed(stream.ticket, prompt_cost(stream.request) + stream.tokens), live=error)

    async def _follow(self, stream: _Stream) -> None:
        async with self._engine.stream(stream.request, seconds=remaining_seconds(stream.deadline)) as events:
            async for event in events:
                self._take(stream, event)
                if stream.end is not None:
                    return
        raise DeviceFailed(f"the delegate of {self._model} ended its answer without a reason", code="delegate_truncated")

    def _take(self, stream: _Stream, event: DelegateEvent) -> None:
        self._books.moved_at = trio.current_time()
        if isinstance(event, DelegateEnd):
            stream.end = event
            return
        if stream.pieces == PIECES_MAX:
            raise DeviceFailed(f"the delegate of {self._model} sent more than {PIECES_MAX} pieces", code="delegate_overflow")
        stream.pieces += 1
        stream.tokens += event.tokens
        if stream.first_piece_at is None:
            stream.first_piece_at = trio.current_time()
        text = event.text if stream.stops is None else stream.stops.feed(event.text)
        self._say(stream, TokenChunk(NOT_DRAWN, text))
        if stream.stops is not None and stream.stops.matched is not None:
            stream.end = DelegateEnd("stop", None, stream.tokens)

    def _say(self, stream: _Stream, event: GenerationEvent) -> None:
        if not stream.begun and stream.seated:
            stream.begun = True
            stream.outlet.put(GenerationStarted(stream.seated_at - stream.arrived_at))
        stream.outlet.put(event)

    # Ending.

    def _close(self, message: StreamClosed) -> None:
        """The delegate has let go: the seat is free, and who still listens hears how it ended."""
        error: TripowerError | None = self.envelope.live
        self._runs.running -= 1
        stream = self._live.get(message.ticket)
        if stream is None:
            self._runs.left += 1
        elif error is None:
            self._runs.finished += 1
            self._finish(stream, trio.current_time())
        else:
            self._runs.failed += 1
            self._fail(stream, error)
        self.gate.leave(message.ticket, served=message.served)
        self._admit_waiting()

    def _finish(self, stream: _Stream, now: float) -> None:
        end = stream.end
        assert end is not None
        del self._live[stream.ticket]
        usage = Usage(end.prompt_tokens or 0, stream.tokens if end.completion_tokens is None else end.completion_tokens)
        self._books.count_completed(
            now - stream.seated_at, prompt_tokens=usage.prompt_tokens, generated_tokens=usage.completion_tokens
        )
        first = now if stream.first_piece_at is None else stream.first_piece_at
        timings = Timings(stream.seated_at - stream.arrived_at, first - stream.seated_at, now - first)
        self._books.count_answer(timings, usage.completion_tokens)
        self._books.count_emitted(stream.caller, stream.tokens)
        held = "" if stream.stops is None or stream.stops.matched is not None else stream.stops.flush()
        self._say(stream, GenerationFinished(end.reason, held, usage, timings))

    def _fail(self, stream: _Stream, error: TripowerError) -> None:
        del self._live[stream.ticket]
        self._books.count_failed(error)
        self._books.count_emitted(stream.caller, stream.tokens)
        self._say(stream, Failed.of(error))

    def is_live(self, ticket: int) -> bool:
        """Whether a request still waits or runs here."""
        return ticket in self._live

    def identities(self) -> list[IdentityStatistics]:
        """See `KnowsIdentities`."""
        return self._books.identities((stream.caller, stream.tokens) for stream in self._live.values())

    def statistics(self) -> QueueStatistics:
        """Streams count as members; the steps are the delegate's own affair."""
        runs = self._runs
        return self._books.statistics(
            live=len(self._live),
            step_running=runs.running > 0,
            batch=runs.statistics(),
            emitting=sum(stream.tokens for stream in self._live.values()),
        )


TOKEN_CHARACTERS = 4
"""Of a prompt, about: nobody but the delegate knows how many tokens it is."""
ANSWER_TOKENS = 512
"""Of an answer whose length nobody has bounded."""


def prompt_cost(request: DelegateRequest) -> float:
    """Tokens of the prompt, about, for the order among identities."""
    if request.messages is not None:
        return sum(len(message.content) for message in request.messages) / TOKEN_CHARACTERS
    prompt = request.prompt or ""
    return len(prompt) / TOKEN_CHARACTERS if isinstance(prompt, str) else len(prompt)


def likely_cost(request: DelegateRequest) -> float:
    """Tokens that a request may take; what it does not take is given back at its end."""
    return prompt_cost(request) + (ANSWER_TOKENS if request.max_tokens is None else request.max_tokens)
