"""The books of one model's queue, whichever engine is behind it: who arrives, how they end, who waits for it to be quiet.

A queue owns its requests; what is the same for all queues is here: the gate's answer to an arrival and its place in the figures, a
computed time to come again, the end of a request, draining, and the statistics.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Protocol

import attrs
import trio

from tripower.actors.dialogue import Timings
from tripower.actors.queueing import AnswerFigures, IdentityStatistics, QueueDrained, QueueSettled, QueueStatistics, unloading
from tripower.actors.request_paths import RequestPath
from tripower.runtime.admission import ANYBODY, SHARE_EXCEEDED, Caller, Gate, displacement
from tripower.runtime.batching import BatchStatistics
from tripower.runtime.kernel import LATER, DeadlineExceeded, Envelope, Overloaded, TripowerError

RETRY_AFTER_MAX = 120.0
SERVICE_WEIGHT = 0.2
"""Of the latest request, in what one request has taken lately."""
ANSWERS_KEPT = 256
LABELS_KEPT = 1024


@attrs.define(eq=False)
class QueueBooks:
    """Synchronous, like the gate. `tickets` outlive a restart of the queue."""

    model: str
    seats: int
    gate: Gate[int]
    one_at_a_time: bool = False
    """Whether those who are seated wait for each other too."""
    tickets: Iterator[int] = attrs.Factory(itertools.count)
    draining: bool = False
    drainers: list[Envelope] = attrs.Factory(list)
    settling: list[tuple[Envelope, set[int]]] = attrs.Factory(list)
    service_seconds: float = 1.0
    arrivals: int = 0
    completed: int = 0
    refused: int = 0
    cancelled: int = 0
    expired: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    ended_at: float = 0.0
    moved_at: float | None = None
    """When work that runs last had a step, on Trio's clock; None where nobody says."""
    emitted_tokens: int = 0
    """By requests that are gone, however they ended; and"""
    emitted: OrderedDict[str, int] = attrs.Factory(OrderedDict)
    """the same by label, who had some last at the end."""
    answers: deque[AnswerFigures] = attrs.Factory(lambda: deque(maxlen=ANSWERS_KEPT))

    def arrive(
        self,
        *,
        now: float,
        deadline: float,
        check: Callable[[], None] = lambda: None,
        caller: Caller = ANYBODY,
        priority: int = 0,
        cost: float = 1.0,
    ) -> tuple[int, bool]:
        """A ticket, and whether it has a seat at once. Raises what `check` or the gate raises, and that the queue is being closed.

        Whoever else lost a waiting place by it is in `take_displaced`.
        """
        self.arrivals += 1
        ticket = next(self.tickets)
        try:
            if self.draining:
                raise unloading(self.model)
            check()
            return ticket, self.gate.arrive(ticket, now=now, deadline=deadline, caller=caller, priority=priority, cost=cost)
        except DeadlineExceeded:
            self.expired += 1
            raise
        except Overloaded as error:
            self.refused += 1
            error.retry_after = self.share_retry_after(caller) if error.status == 429 else self.retry_after()
            raise
        except TripowerError:
            self.refused += 1
            raise

    def retry_after(self) -> float:
        """Seconds until a place should be free: the queue's length times the time that one request has taken lately."""
        ahead = self.gate.waiting + (self.gate.active if self.one_at_a_time else 1)
        return min(RETRY_AFTER_MAX, max(1.0, ahead / self.seats * self.service_seconds))

    def share_retry_after(self, caller: Caller) -> float:
        """The same for an identity that has more than its share: its own queue, before its share of the seats."""
        waiting, seats = self.gate.waiting_of(caller)
        return min(RETRY_AFTER_MAX, max(1.0, (waiting + 1) / seats * self.service_seconds))

    def take_displaced(self) -> list[tuple[int, TripowerError]]:
        """Who lost a waiting place since, and the error that the queue tells each: it counts as a refusal."""
        refusals: list[tuple[int, TripowerError]] = []
        for ticket in self.gate.take_displaced():
            error = displacement()
            error.retry_after = self.retry_after()
            refusals.append((ticket, error))
        return refusals

    def count_left(self, *, expired: bool) -> None:
        """Somebody went before the end."""
        self.ended_at = trio.current_time()
        if expired:
            self.expired += 1
        else:
            self.cancelled += 1

    def count_completed(self, seconds: float, *, prompt_tokens: int, generated_tokens: int = 0) -> None:
        """A request that held its seat for so long has all that it asked for."""
        self.ended_at = trio.current_time()
        self.completed += 1
        self.service_seconds += SERVICE_WEIGHT * (seconds - self.service_seconds)
        self.prompt_tokens += prompt_tokens
        self.generated_tokens += generated_tokens

    def count_emitted(self, caller: Caller, tokens: int) -> None:
        """A request is gone for which so many tokens were generated."""
        if tokens:
            self.emitted_tokens += tokens
            self.emitted[caller.label] = self.emitted.get(caller.label, 0) + tokens
            self.emitted.move_to_end(caller.label)
            if len(self.emitted) > LABELS_KEPT:
                self.emitted.popitem(last=False)

    def count_answer(self, timings: Timings, tokens: int) -> None:
        """An answer is complete."""
        interval = timings.decode_seconds / (tokens - 1) if tokens > 1 else None
        first_token = timings.wait_seconds + timings.prefill_seconds
        self.answers.append(AnswerFigures(trio.current_time(), first_token, interval))

    def count_failed(self, error: TripowerError) -> bool:
        """A request ended with an error; whether it was its deadline. One that lost its waiting place has been refused."""
        self.ended_at = trio.current_time()
        expired = isinstance(error, DeadlineExceeded)
        if expired:
            self.expired += 1
        elif error.code == SHARE_EXCEEDED:
            self.refused += 1
        else:
            self.failed += 1
        return expired

    def drain(self, envelope: Envelope, *, quiet: bool) -> Any:
        """Take nobody any more. The answer to `DrainQueue`: at once, or by `answer_drainers`."""
        self.draining = True
        if quiet:
            return QueueDrained()
        self.drainers.append(envelope)
        return LATER

    def answer_drainers(self) -> None:
        """The queue is quiet: tell those who wait for it."""
        drainers, self.drainers = self.drainers, []
        for envelope in drainers:
            envelope.answer(QueueDrained())

    def settle(self, envelope: Envelope, live: Container[int]) -> Any:
        """The answer to `SettleQueue`: at once, or when the last ticket that is held and not `live` is gone."""
        leaving = {ticket for ticket in self.gate.tickets() if ticket not in live}
        if not leaving:
            return QueueSettled()
        self.gate.on_gone = self._gone
        self.settling.append((envelope, leaving))
        return LATER

    def _gone(self, ticket: int) -> None:
        for envelope, leaving in self.settling:
            leaving.discard(ticket)
            if not leaving:
                envelope.answer(QueueSettled())
        self.settling = [(envelope, leaving) for envelope, leaving in self.settling if leaving]

    def statistics(self, *, live: int, step_running: bool, batch: BatchStatistics, emitting: int = 0) -> QueueStatistics:
        """`emitting`: tokens that were generated for those who run."""
        moved_at = self.moved_at if batch.members else None
        return QueueStatistics(
            model=self.model,
            arrivals=self.arrivals,
            completed=self.completed,
            refused=self.refused,
            cancelled=self.cancelled,
            expired=self.expired,
            failed=self.failed,
            live=live,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            step_running=step_running,
            gate=self.gate.statistics(),
            batch=batch,
            ended_at=self.ended_at,
            emitted_tokens=self.emitted_tokens + emitting,
            answers=tuple(self.answers),
            quiet_seconds=0.0 if moved_at is None else trio.current_time() - moved_at,
        )

    def identities(self, emitting: Iterable[tuple[Caller, int]] = ()) -> list[IdentityStatistics]:
        """Whoever waits or runs, and whoever had tokens; of very many the latest. `emitting`: how many those have so far who run."""
        running: Counter[str] = Counter()
        for caller, tokens in emitting:
            running[caller.label] += tokens
        here = {caller.label: (active, waiting) for caller, active, waiting in self.gate.identities()}
        return [
            IdentityStatistics(label, *here.get(label, (0, 0)), self.emitted.get(label, 0) + running[label])
            for label in {**self.emitted, **here}
        ]


@attrs.define(eq=False)
class SeatBooks:
    """Requests that run each by itself, counted as members of a batch without steps."""

    seats: int
    running: int = 0
    joined: int = 0
    finished: int = 0
    left: int = 0
    failed: int = 0

    def join(self) -> None:
        """A request begins to run."""
        self.joined += 1
        self.running += 1

    def statistics(self) -> BatchStatistics:
        return BatchStatistics(
            members=self.running,
            members_max=self.seats,
            joined=self.joined,
            finished=self.finished,
            left=self.left,
            failed=self.failed,
            steps=0,
            aborted_jobs=0,
            prefill_rows=0,
            decode_rows=0,
            largest_step=0,
        )


class HasPath(Protocol):
    """A queue's memory of one request."""

    def path(self, model: str, now: float) -> RequestPath:
        """Where it is at a time."""


class TellsOfRequests:
    """`RemembersRequests` for a queue that has its requests by ticket, the oldest first."""

    _model: str
    _live: Mapping[int, HasPath]

    def live_tickets(self) -> list[int]:
        """See `RemembersRequests`."""
        return list(self._live)

    def request_path(self, ticket: int, now: float) -> RequestPath | None:
        """See `RemembersRequests`."""
        request = self._live.get(ticket)
        return None if request is None else request.path(self._model, now)
