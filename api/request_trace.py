"""One request as it goes on: what it hears from its queue, how far its prompt is, whether its client reads.

The queue puts a tap in front of the request's outlet and passes each message on with its time. What no message tells, a look at the
request's path does, ten times a second. Nothing of what is said is told, only how much.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator
from itertools import groupby
from typing import Any

import attrs
import trio

from tripower.actors.dialogue import (
    Failed,
    GenerationFinished,
    GenerationStarted,
    PromptProgress,
    PromptScored,
    Timings,
    TokenChunk,
)
from tripower.actors.embedding_queue import Embedded
from tripower.actors.queueing import FollowTicket, Leave, not_there
from tripower.actors.request_paths import RequestPath, look_for
from tripower.actors.request_tap import Heard, Tap
from tripower.actors.runtime import Runtime
from tripower.api.http.exchange import Exchange
from tripower.api.request_paths import Located, find_requests, locate_requests
from tripower.api.trace_events import TraceEvent
from tripower.runtime.kernel import Ref, TripowerError

LOOK_SECONDS = 0.1
"""Between two looks. What was heard in between is told at once, tokens as one event."""


@attrs.define(eq=False)
class _Followed:
    """One place in a queue, as it was at the last look."""

    queue: Ref[Any]
    path: RequestPath
    seated: bool = False
    evaluated: int = 0
    ended: bool = False


async def trace_request(runtime: Runtime, active: Collection[Exchange], wanted: str) -> AsyncGenerator[TraceEvent, None]:
    """Everything that happens to a request until it is over, and what has happened before. Raises like `find_requests`.

    Close the iterator to stop: the queue then stops telling. Blocks between events.
    """
    trace = _Trace(runtime, active, (await find_requests(runtime, active, wanted))[0])
    try:
        while True:
            for event in sorted(await trace.look(), key=lambda event: round(event.at, 6)):
                yield event
            if trace.over:
                return
            await trace.wait()
    finally:
        trace.close()


class _Trace:
    """What is known of the request so far."""

    def __init__(self, runtime: Runtime, active: Collection[Exchange], located: Located) -> None:
        self.over = False
        self._runtime = runtime
        self._active = active
        self._exchange = located.exchange
        self._located = located
        self._began = trio.current_time() - located.path.age if located.exchange is None else located.exchange.began
        self._tap = Tap()
        self._followed: dict[int, _Followed] = {}
        self._absent: set[int] = set()
        """Tickets that had ended before they could be followed."""
        self._unread_since: float | None = None
        self._told_arrival = False
        self._missed = 0
        self._looked_at = -1.0

    def close(self) -> None:
        """Want to hear nothing more. Synchronous."""
        self._tap.close()

    async def wait(self) -> None:
        """Until there may be something new."""
        with trio.move_on_after(LOOK_SECONDS):
            await self._tap.wait()
        await trio.sleep_until(self._looked_at + LOOK_SECONDS)

    async def look(self) -> list[TraceEvent]:
        """What has happened since the last look."""
        over = self._exchange is not None and self._exchange.over.is_set()  # before what is read next: nothing is lost then
        events = list(self._arrival())
        for ticket in await self._tickets():
            if ticket not in self._followed and ticket not in self._absent:
                events += await self._follow(ticket)
        self._looked_at = now = trio.current_time()
        heard = list(self._heard())
        for ticket, followed in self._followed.items():
            if not followed.ended:
                events += self._progress(ticket, followed, now)
        events += [*heard, *self._reading(now)]
        if self._exchange is None:
            self.over = all(followed.ended for followed in self._followed.values())
        elif over:
            self.over = True
            events.append(self._end(self._exchange, now))
        return events

    def _event(self, at: float, event: str, about: str = "", **more: Any) -> TraceEvent:
        return TraceEvent(at=max(0.0, at - self._began), event=event, about=about, **more)

    def _arrival(self) -> Iterator[TraceEvent]:
        if self._told_arrival:
            return
        self._told_arrival = True
        path, exchange = self._located.path, self._exchange
        whose = f", {path.label}" if path.label else ""
        yield self._event(
            self._began, "arrived", f"{exchange.method} {path.route}{whose}" if exchange else f"from the program{whose}"
        )

    async def _tickets(self) -> Collection[int]:
        """Its places in queues, as far as it has any."""
        exchange = self._exchange
        if exchange is None:
            return [each.ticket for each in self._located.queued]
        if exchange.generations:
            return [each.ticket for each in exchange.generations]
        if self._followed or exchange.over.is_set():
            return ()
        located = await locate_requests(self._runtime, self._active)
        return [own.ticket for each in located if each.exchange is exchange for own in each.queued]

    async def _follow(self, ticket: int) -> list[TraceEvent]:
        model = self._model
        queue = self._runtime.system.find(f"queue:{model}")
        try:
            if queue is None:
                raise not_there(model, ticket)
            path: RequestPath = (await queue.ask(FollowTicket(ticket), live=self._tap)).path
        except TripowerError:
            self._absent.add(ticket)
            return self._ended_before(ticket)
        self._followed[ticket] = _Followed(queue, path)
        now = trio.current_time()
        age = next((each.path.age for each in look_for(queue, [ticket], now)), path.age)  # a turn later than `path`
        wanted = f"{path.prompt_tokens} prompt tokens" if path.prompt_tokens else "the prompt"
        wanted += f", at most {path.tokens_max} generated" if path.tokens_max else ""
        about = f"in the queue of {model}: {wanted}"
        events = [self._event(now - age, "enqueued", about, message="Enqueued", request=self._name(ticket))]
        if path.generated_tokens:
            about = "before anybody followed"
            events.append(self._event(now, "tokens", about, request=self._name(ticket), tokens=path.generated_tokens))
        return events

    def _ended_before(self, ticket: int) -> list[TraceEvent]:
        """Its queue has done its part; the client may not have heard of that yet."""
        for each in self._exchange.generations if self._exchange is not None else ():
            end = each.end
            if each.ticket == ticket and end is not None:
                timings = end.timings if isinstance(end, GenerationFinished) else Timings(0.0, 0.0, 0.0)
                at = each.enqueued_at + timings.wait_seconds + timings.prefill_seconds + timings.decode_seconds
                return [self._told(Heard(at, ticket, end))]
        return []

    def _progress(self, ticket: int, followed: _Followed, now: float) -> list[TraceEvent]:
        path = next((each.path for each in look_for(followed.queue, [ticket], now)), None)
        if path is None:
            followed.ended = followed.ended or self._exchange is None
            return []
        events: list[TraceEvent] = []
        request = self._name(ticket)
        if not followed.seated and path.waiting is not None and path.prompt is not None:
            followed.seated, followed.evaluated = True, path.reused_tokens
            about = f"after {path.waiting:.3g} s in the waiting room"
            if path.reused_tokens:
                about += f"; {path.reused_tokens} of {path.prompt_tokens} prompt tokens were there already"
            events.append(self._event(now - path.age + path.waiting, "seated", about, request=request))
        if path.evaluated_tokens > followed.evaluated:
            followed.evaluated = path.evaluated_tokens
            at = now if path.answer is None else now - path.answer
            about = f"{path.evaluated_tokens} of {path.prompt_tokens} prompt tokens are evaluated"
            events.append(self._event(at, "prompt", about, request=request, tokens=path.evaluated_tokens))
        followed.path = path
        return events

    def _heard(self) -> Iterator[TraceEvent]:
        """What has passed through the outlets, tokens of one place that came one after the other as one event."""
        heard = self._tap.take()
        if self._tap.missed > self._missed:
            about = f"{self._tap.missed - self._missed} messages passed while nobody read them"
            yield self._event(trio.current_time(), "missed", about)
            self._missed = self._tap.missed
        for (ticket, kind), group in groupby(heard, key=lambda each: (each.ticket, type(each.event))):
            if kind is TokenChunk:
                yield self._tokens(ticket, list(group))
            else:
                yield from (self._told(each) for each in group)

    def _tokens(self, ticket: int, heard: list[Heard]) -> TraceEvent:
        steps = len({each.at for each in heard})
        about = f"{len(heard)} in {steps} turns" if steps > 1 else ""
        return self._event(heard[-1].at, "tokens", about, message="TokenChunk", request=self._name(ticket), tokens=len(heard))

    def _told(self, heard: Heard) -> TraceEvent:
        said = heard.event
        if isinstance(said, ENDS) and heard.ticket in self._followed:
            self._followed[heard.ticket].ended = True
        event, about, tokens = describe(said)
        message, request = type(said).__name__, self._name(heard.ticket)
        return self._event(heard.at, event, about, message=message, request=request, tokens=tokens)

    @property
    def _model(self) -> str:
        """Empty while the border does not know it."""
        exchange = self._exchange
        return self._located.path.model or (
            "" if exchange is None else exchange.asked.model if exchange.asked else exchange.model
        )

    def _name(self, ticket: int) -> str:
        return f"{self._model}#{ticket}"

    def _reading(self, now: float) -> Iterator[TraceEvent]:
        """Whether the client takes what is written for it."""
        since = self._exchange.waiting_since if self._exchange is not None else None
        before, self._unread_since = self._unread_since, since
        if before is not None and since != before:
            yield self._event(now, "read", f"the client takes more, after {now - before:.3g} s")
        if since is not None and since != before:
            yield self._event(since, "unread", "bytes wait for the client, which takes nothing")

    def _end(self, exchange: Exchange, now: float) -> TraceEvent:
        about = f"answered {exchange.status}" if exchange.started else "without an answer"
        about += f", {exchange.end}" if exchange.end else ""
        return self._event(now, "over", about, tokens=exchange.completion_tokens)


ENDS = Failed | GenerationFinished | Leave | Embedded


def describe(said: Any) -> tuple[str, str, int]:
    """What a message means for its request: the event, words for people, tokens."""
    match said:
        case GenerationStarted():
            return "started", "the answer begins", 0
        case PromptProgress():
            return "prompt", f"{said.processed} of {said.total} prompt tokens, as the client asked to be told", said.processed
        case PromptScored():
            return "prompt", "its log probabilities", 0
        case GenerationFinished():
            timings, tokens = said.timings, said.usage.completion_tokens
            about = (
                f"{said.reason}: {tokens} tokens; waited {timings.wait_seconds:.3g} s,"
                f" prompt {timings.prefill_seconds:.3g} s, answer {timings.decode_seconds:.3g} s"
            )
            return "finished", about, tokens
        case Failed():
            return "failed", f"{said.code}: {said.message}", 0
        case Leave():
            return "left", "its deadline passed" if said.expired else "whoever asked has left", 0
        case Embedded():
            return "finished", f"waited {said.waited_seconds:.3g} s, encoded {said.encode_seconds:.3g} s", 0
    return "heard", "", 0
