"""An answer as a stream of server-sent events.

Every check and the place in the queue come first and keep their real status. The head of the answer goes out with the first token, or
with the first keep-alive comment if that is earlier. What has come since the last write goes out as one write, one event for each
token. After a failure comes one event that names it, then the end mark.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from tripower.actors.dialogue import (
    Failed,
    GenerationEvent,
    GenerationFinished,
    GenerationStarted,
    PromptProgress,
    PromptScored,
    TokenChunk,
)
from tripower.api.http.answers import DONE
from tripower.api.http.errors import error_body, internal_error
from tripower.api.http.exchange import Exchange, Header, Interruptible
from tripower.api.http.text.choices import Choices
from tripower.api.http.text.chunks import Chunks
from tripower.runtime.kernel import TripowerError

log = logging.getLogger("tripower.http")

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
COMMENT = b": keep-alive\n\n"


@asynccontextmanager
async def failing_within(exchange: Exchange, fail: Callable[[TripowerError], Awaitable[None]]) -> AsyncIterator[None]:
    """What goes wrong in the block once the answer has begun is told within it, by `fail`; before that it is raised."""
    try:
        yield
    except TripowerError as error:
        if not exchange.started:
            raise
        exchange.end = error.code
        await fail(error)
    except Exception:
        if not exchange.started:
            raise
        log.exception("request %s failed", exchange.request_id.decode())
        exchange.end = "internal_error"
        await fail(internal_error(exchange.request_id))


class EventStream:
    """Writes the choices of one request to its client."""

    def __init__(self, exchange: Exchange, *, quiet_seconds: float) -> None:
        self._exchange = exchange
        self._quiet_seconds = quiet_seconds
        self._opened = False
        self._pending: list[bytes] = []
        self._waited: float | None = None

    async def follow(self, choices: Choices, chunks: Chunks, running: Interruptible) -> GenerationFinished:
        """Write events as they come, and keep the last ones for `finish`. Blocks for as long as the model and the client need.

        Raises the error of a failed choice, after what came before it has been written.
        """
        failure: TripowerError | None = None
        while not chunks.is_complete:
            with trio.move_on_after(self._quiet_seconds) as quiet:
                burst = await choices.receive()
            if quiet.cancelled_caught:
                await self._write(COMMENT)
                continue
            for index, events in burst:
                for event in events:
                    if type(event) is TokenChunk:
                        self._open(chunks)
                        self._exchange.completion_tokens += 1
                        self._pending.append(chunks.token(index, event))
                    elif type(event) is Failed:
                        failure = failure or event.error()
                    else:
                        self._take(index, event, chunks)
            if self._exchange.completion_tokens:
                running.first_token_came()
            if self._pending and (failure is not None or not chunks.is_complete):
                await self._write(self._take_pending())
            if failure is not None:
                raise failure
        return chunks.finished()

    async def finish(self, chunks: Chunks) -> None:
        """Write the end of a complete answer."""
        await self._write(self._take_pending() + chunks.end(), last=True)

    async def fail(self, error: TripowerError) -> None:
        """Write the end of an answer that cannot be completed. What came before it stays valid."""
        await self._write(self._take_pending() + b"data: " + error_body(error) + b"\n\n" + DONE, last=True)

    def _take(self, index: int, event: GenerationEvent, chunks: Chunks) -> None:
        """Everything that is rarer than a token."""
        if type(event) is GenerationStarted:
            self._waited = event.waited_seconds
            return
        self._open(chunks)
        if type(event) is GenerationFinished:
            self._pending.append(chunks.finish(index, event))
        elif type(event) is PromptScored:
            self._pending.append(chunks.scored(index, event))
        elif type(event) is PromptProgress:
            self._pending.append(chunks.progress(event))

    def _open(self, chunks: Chunks) -> None:
        if not self._opened:
            self._opened = True
            self._pending.append(chunks.opening())

    def _take_pending(self) -> bytes:
        data = b"".join(self._pending)
        self._pending.clear()
        return data

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        if not self._exchange.started:
            await self._exchange.start_stream((*HEADERS, *self._timings()))
        await self._exchange.write(data, last=last)

    def _timings(self) -> list[Header]:
        """What has been measured when the head goes out."""
        took = 1000 * (trio.current_time() - self._exchange.began)
        headers = [(b"openai-processing-ms", b"%d" % took)]
        if self._waited is not None and self._exchange.completion_tokens:
            waited = 1000 * self._waited
            headers.append((b"server-timing", b"queue;dur=%.1f, prefill;dur=%.1f" % (waited, max(0.0, took - waited))))
        return headers
