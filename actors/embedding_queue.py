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
from tripower.actors.model_queue import RETRY_AFTER_MAX
from tripower.actors.queueing import DrainQueue, QueueDrained, QueueLimits, QueueStatistics, unloading
from tripower.runtime.admission import Gate
from tripower.runtime.batching import BatchStatistics
from tripower.runtime.engine.encoder import LoadedEncoder, Vectors
from tripower.runtime.kernel import (
    LATER,
    Actor,
    Ask,
    DeadlineExceeded,
    Envelope,
    Message,
    Overloaded,
    Ref,
    TripowerError,
)


class Embed(Ask["Embedded"], frozen=True):
    """Encode these rows. The envelope carries the array [rows, dimensions] that the vectors go to. Answered when they are there."""

    rows: tuple[tuple[int, ...], ...]


class Embedded(Message, frozen=True):
    """Every vector is in its place."""

    waited_seconds: float
    encode_seconds: float


class EncodingEnded(Message, frozen=True):
    """From the task of a request: its job is over. The envelope carries a `TripowerError`, or None."""

    ticket: int


Command = Embed | EncodingEnded | DrainQueue


@attrs.define(eq=False)
class _Request:
    """What the queue remembers of one request."""

    ticket: int
    rows: tuple[tuple[int, ...], ...]
    vectors: Vectors
    envelope: Envelope
    arrived_at: float
    seated_at: float = 0.0
    seated: bool = False
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)


class EmbeddingQueueActor(Actor[Command]):
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
        self._seats = limits.members_max
        self._tickets = itertools.count() if tickets is None else tickets
        self.gate: Gate[int] = Gate(active_limit=self._seats, waiting_limit=limits.waiting_max)
        self._live: dict[int, _Request] = {}
        """Those that somebody waits for."""
        self._running = 0
        self._draining = False
        self._drainers: list[Envelope] = []
        self._service_seconds = 1.0
        self._arrivals = self._completed = self._refused = self._cancelled = self._expired = self._failed = 0
        self._joined = self._finished = self._left = self._broken = 0
        self._prompt_tokens = 0

    async def on_message(self, message: Command) -> Any:
        match message:
            case Embed():
                return self._embed(message)
            case EncodingEnded():
                return self._end(message)
            case DrainQueue():
                return self._drain()
        assert_never(message)

    @property
    def _quiet(self) -> bool:
        return not self._live and not self._running

    def _drain(self) -> Any:
        self._draining = True
        if self._quiet:
            return QueueDrained()
        self._drainers.append(self.envelope)
        return LATER

    def _answer_drainers(self) -> None:
        if self._quiet:
            drainers, self._drainers = self._drainers, []
            for envelope in drainers:
                envelope.answer(QueueDrained())

    async def on_end(self) -> None:
        for request in self._live.values():
            request.scope.cancel(reason="the queue ends")

    # Arriving and leaving.

    def _embed(self, message: Embed) -> Any:
        now, envelope = trio.current_time(), self.envelope
        self._arrivals += 1
        ticket = next(self._tickets)
        try:
            if self._draining:
                raise unloading(self._model)
            seated = self.gate.arrive(ticket, now=now, deadline=envelope.deadline)
        except DeadlineExceeded:
            self._expired += 1
            raise
        except Overloaded as error:
            self._refused += 1
            error.retry_after = self._retry_after()
            raise
        except TripowerError:
            self._refused += 1
            raise
        request = self._live[ticket] = _Request(ticket, message.rows, envelope.live, envelope, now)
        envelope.on_abandon = lambda: self._abandon(request)
        if seated:
            self._seat(request, now)
        return LATER

    def _retry_after(self) -> float:
        """The queue's length times what one request has taken lately: the lane does the work of one at a time."""
        return min(RETRY_AFTER_MAX, max(1.0, (self.gate.waiting + self.gate.active) * self._service_seconds / self._seats))

    def _abandon(self, request: _Request) -> None:
        """Nobody waits any more: because time is up, or for reasons of its own."""
        if self._live.pop(request.ticket, None) is None:
            return
        expired = trio.current_time() >= request.envelope.deadline
        if expired:
            self._expired += 1
        else:
            self._cancelled += 1
        if request.seated:
            request.scope.cancel(reason="the caller has left")  # the seat is free when the task has ended
        else:
            self.gate.leave(request.ticket, expired=expired)
            self._answer_drainers()

    def _seat(self, request: _Request, now: float) -> None:
        request.seated, request.seated_at = True, now
        self._joined += 1
        self._running += 1
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
        self._running -= 1
        request = self._live.pop(message.ticket, None)
        if request is None:
            self._left += 1
        elif error is None:
            self._finished += 1
            self._finish(request, trio.current_time())
        else:
            self._broken += 1
            self._fail(request, error)
        self.gate.leave(message.ticket)
        self._admit_waiting()
        self._answer_drainers()

    def _finish(self, request: _Request, now: float) -> None:
        self._completed += 1
        self._prompt_tokens += sum(map(len, request.rows))
        seconds = now - request.seated_at
        self._service_seconds += 0.2 * (seconds - self._service_seconds)
        request.envelope.answer(Embedded(request.seated_at - request.arrived_at, seconds))

    def _fail(self, request: _Request, error: TripowerError) -> None:
        if isinstance(error, DeadlineExceeded):
            self._expired += 1
        else:
            self._failed += 1
        request.envelope.refuse(error)

    def statistics(self) -> QueueStatistics:
        return QueueStatistics(
            model=self._model,
            arrivals=self._arrivals,
            completed=self._completed,
            refused=self._refused,
            cancelled=self._cancelled,
            expired=self._expired,
            failed=self._failed,
            live=len(self._live),
            prompt_tokens=self._prompt_tokens,
            generated_tokens=0,
            step_running=self._running > 0,
            gate=self.gate.statistics(),
            batch=self._batch_statistics(),
        )

    def _batch_statistics(self) -> BatchStatistics:
        """Requests as members; there are no steps."""
        return BatchStatistics(
            members=self._running,
            members_max=self._seats,
            joined=self._joined,
            finished=self._finished,
            left=self._left,
            failed=self._broken,
            steps=0,
            aborted_jobs=0,
            prefill_rows=0,
            decode_rows=0,
            largest_step=0,
        )
