"""An embedding queue owns the waiting room and the running requests of one encoder.

What `ModelQueueActor` is for a model that generates, with the same gate and the same statistics. In this order: a request arrives, is
seated or waits or is refused; whoever is seated has its rows sent to the device as one job, whose pieces take turns on the lane with
everybody else's; when the job has ended its seat goes to the longest waiting, and the vectors are in the array that came with the
request. A request that nobody waits for any more ends at the next piece.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, assert_never

import attrs
import trio

from tripower.actors.device import EncodeRows, EncodingOrder
from tripower.actors.dialogue import Failed
from tripower.actors.queue_books import QueueBooks, SeatBooks, TellsOfRequests
from tripower.actors.queueing import (
    CancelTicket,
    DrainQueue,
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
from tripower.actors.request_tap import Tap
from tripower.runtime.admission import ANYBODY, Caller, Gate
from tripower.runtime.engine.encoder import LoadedEncoder, Vectors
from tripower.runtime.kernel import (
    LATER,
    Actor,
    Ask,
    DeadlineExceeded,
    Envelope,
    Message,
    Ref,
    TripowerError,
)


class Embed(Ask["Embedded"], frozen=True):
    """Encode these rows. The envelope carries the array [rows, dimensions] that the vectors go to. Answered when they are there."""

    rows: tuple[tuple[int, ...], ...]
    caller: Caller = ANYBODY
    request_id: str = ""


class Embedded(Message, frozen=True):
    """Every vector is in its place."""

    waited_seconds: float
    encode_seconds: float


class EncodingEnded(Message, frozen=True):
    """From the task of a request: its job is over. The envelope carries a `TripowerError`, or None."""

    ticket: int


Command = Embed | EncodingEnded | DrainQueue | SettleQueue | CancelTicket | FollowTicket


@attrs.define(eq=False)
class _Request:
    """What the queue remembers of one request."""

    ticket: int
    rows: tuple[tuple[int, ...], ...]
    vectors: Vectors
    envelope: Envelope
    arrived_at: float
    caller: Caller
    request_id: str
    tokens: int
    seated_at: float = 0.0
    seated: bool = False
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    taps: list[Tap] = attrs.Factory(list)
    """Who wants to hear how it ends."""

    def path(self, model: str, now: float) -> RequestPath:
        """Where it is at a time. All that it has are its rows: they are its prompt."""
        return queued_path(
            model=model,
            request_id=self.request_id,
            caller=self.caller,
            priority=0,
            deadline=self.envelope.deadline,
            arrived_at=self.arrived_at,
            seated_at=self.seated_at if self.seated else None,
            first_at=None,
            now=now,
            prompt_tokens=self.tokens,
        )


class EmbeddingQueueActor(TellsOfRequests, Actor[Command]):
    """See the module. `tickets` outlive a restart, so that nothing old is mistaken for something new."""

    def __init__(
        self,
        model: str,
        loaded: LoadedEncoder,
        device: Ref[Any],
        limits: QueueLimits,
        *,
        tickets: Iterator[int] | None = None,
    ) -> None:
        self._model = model
        self._engine = loaded.engine
        self._device = device
        self.gate: Gate[int] = Gate(active_limit=limits.members_max, waiting_limit=limits.waiting_max)
        self._books = QueueBooks(
            model,
            limits.members_max,
            self.gate,
            one_at_a_time=True,  # the lane does the work of one request, then that of the next
            tickets=itertools.count() if tickets is None else tickets,
        )
        self._runs = SeatBooks(limits.members_max)
        self._live: dict[int, _Request] = {}
        """Those that somebody waits for."""

    async def on_message(self, message: Command) -> Any:
        match message:
            case Embed():
                return self._embed(message)
            case EncodingEnded():
                return self._end(message)
            case DrainQueue():
                return self._books.drain(self.envelope, quiet=self._quiet)
            case SettleQueue():
                return self._books.settle(self.envelope, self._live)
            case CancelTicket():
                return self._cancel(message)
            case FollowTicket():
                return self._follow(message)
        assert_never(message)

    @property
    def _quiet(self) -> bool:
        return not self._live and not self._runs.running

    def _answer_drainers(self) -> None:
        if self._quiet:
            self._books.answer_drainers()

    async def on_end(self) -> None:
        for request in self._live.values():
            request.scope.cancel(reason="the queue ends")

    # Arriving and leaving.

    def _embed(self, message: Embed) -> Any:
        now, envelope = trio.current_time(), self.envelope
        cost = sum(map(len, message.rows))
        ticket, seated = self._books.arrive(now=now, deadline=envelope.deadline, caller=message.caller, cost=cost)
        for displaced, error in self._books.take_displaced():
            self._fail(self._live.pop(displaced), error)
        request = self._live[ticket] = _Request(
            ticket, message.rows, envelope.live, envelope, now, message.caller, message.request_id, cost
        )
        envelope.on_abandon = lambda: self._abandon(request)
        if seated:
            self._seat(request, now)
        return LATER

    def _abandon(self, request: _Request) -> None:
        """Nobody waits any more: because time is up, or for reasons of its own."""
        if self._live.pop(request.ticket, None) is None:
            return
        expired = trio.current_time() >= request.envelope.deadline
        self._books.count_left(expired=expired)
        for tap in request.taps:
            tap.hear(request.ticket, Leave(request.ticket, expired))
        self._let_go(request, expired=expired)

    def _let_go(self, request: _Request, *, expired: bool) -> None:
        """Nobody waits for it: its seat is free when its task has ended, its waiting place at once."""
        if request.seated:
            request.scope.cancel(reason="the caller has left")
        else:
            self.gate.leave(request.ticket, expired=expired)
            self._answer_drainers()

    def _cancel(self, message: CancelTicket) -> TicketCancelled:
        request = self._live.pop(message.ticket, None)
        if request is None:
            raise not_there(self._model, message.ticket)
        self._books.count_left(expired=False)
        self._refuse(request, cancellation())
        self._let_go(request, expired=False)
        return TicketCancelled()

    def _follow(self, message: FollowTicket) -> TicketFollowed:
        request = self._live.get(message.ticket)
        if request is None:
            raise not_there(self._model, message.ticket)
        request.taps.append(self.envelope.live)
        return TicketFollowed(request.path(self._model, trio.current_time()))

    def _seat(self, request: _Request, now: float) -> None:
        request.seated, request.seated_at = True, now
        self._runs.join()
        self.start_soon(self._run, request, name=f"embed {request.ticket}")

    def _admit_waiting(self) -> None:
        now = trio.current_time()
        admitted, expired = self.gate.admit_waiting(now=now)
        for ticket in expired:
            self._fail(self._live.pop(ticket), DeadlineExceeded("the deadline passed in the waiting room"))
        for ticket in admitted:
            self._seat(self._live[ticket], now)

    # Running: in a task of the request's own.

    async def _run(self, request: _Request) -> None:
        error: TripowerError | None = DeadlineExceeded("the deadline passed before the vectors were complete")
        order = EncodingOrder(self._engine, request.rows, request.vectors)
        with request.scope:
            try:
                await self._device.ask(EncodeRows(self._model), deadline=request.envelope.deadline, live=order)
                error = None
            except TripowerError as raised:
                error = raised
        self.ref.control(EncodingEnded(request.ticket), live=error)

    # Ending.

    def _end(self, message: EncodingEnded) -> None:
        """The job is over: the seat is free, and who still waits hears how it went."""
        error: TripowerError | None = self.envelope.live
        self._runs.running -= 1
        request = self._live.pop(message.ticket, None)
        if request is None:
            self._runs.left += 1
        elif error is None:
            self._runs.finished += 1
            self._finish(request, trio.current_time())
        else:
            self._runs.failed += 1
            self._fail(request, error)
        self.gate.leave(message.ticket)
        self._admit_waiting()
        self._answer_drainers()

    def _finish(self, request: _Request, now: float) -> None:
        seconds = now - request.seated_at
        self._books.count_completed(seconds, prompt_tokens=request.tokens)
        embedded = Embedded(request.seated_at - request.arrived_at, seconds)
        for tap in request.taps:
            tap.hear(request.ticket, embedded)
        request.envelope.answer(embedded)

    def _fail(self, request: _Request, error: TripowerError) -> None:
        self._books.count_failed(error)
        self._refuse(request, error)

    def _refuse(self, request: _Request, error: TripowerError) -> None:
        for tap in request.taps:
            tap.hear(request.ticket, Failed.of(error))
        request.envelope.refuse(error)

    def identities(self) -> list[IdentityStatistics]:
        """See `KnowsIdentities`."""
        return self._books.identities()

    def statistics(self) -> QueueStatistics:
        """Requests count as members; there are no steps."""
        runs = self._runs
        return self._books.statistics(live=len(self._live), step_running=runs.running > 0, batch=runs.statistics())
