"""An answer as a stream of server-sent events.

Every check and the place in the queue come first and keep their real status. The head of the answer goes out with the first token, or
with the first keep-alive comment if that is earlier. What has come since the last write goes out as one write, one event for each
token. After a failure comes one event that names it, then the end mark.
"""

from __future__ import annotations

import trio

from tripower.actors.dialogue import Failed, GenerationFinished, TokenChunk
from tripower.actors.generation import Generation
from tripower.api.http.answers import DONE, Chunks
from tripower.api.http.errors import error_body
from tripower.api.http.exchange import Exchange, Interruptible
from tripower.runtime.kernel import TripowerError

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
COMMENT = b": keep-alive\n\n"


class EventStream:
    """Writes one generation to its client."""

    def __init__(self, exchange: Exchange, chunks: Chunks, *, quiet_seconds: float) -> None:
        self._exchange = exchange
        self._chunks = chunks
        self._quiet_seconds = quiet_seconds
        self._opened = False
        self._pending: list[bytes] = []

    async def follow(self, generation: Generation, running: Interruptible) -> GenerationFinished:
        """Write events as they come, and keep the last ones for `finish`. Blocks for as long as the model and the client need.

        Raises the error of a failed generation, after what came before it has been written.
        """
        self._chunks.count_prompt(generation.prompt_tokens)
        while True:
            with trio.move_on_after(self._quiet_seconds) as quiet:
                events = await generation.receive()
            if quiet.cancelled_caught:
                await self._write(COMMENT)
                continue
            for event in events:
                if type(event) is TokenChunk:
                    self._append_token(event.text)
            last = events[-1]
            if self._exchange.completion_tokens:
                running.first_token_came()
            if type(last) is GenerationFinished:
                return last
            if self._pending:
                await self._write(self._take_pending())
            if type(last) is Failed:
                raise last.error()

    async def finish(self, finished: GenerationFinished) -> None:
        """Write the end of a complete answer."""
        self._open()
        await self._write(self._take_pending() + self._chunks.end(finished), last=True)

    async def fail(self, error: TripowerError) -> None:
        """Write the end of an answer that cannot be completed. What came before it stays valid."""
        await self._write(self._take_pending() + b"data: " + error_body(error) + b"\n\n" + DONE, last=True)

    def _append_token(self, text: str) -> None:
        self._open()
        self._exchange.completion_tokens += 1
        self._pending.append(self._chunks.token(text))

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            self._pending.append(self._chunks.opening())

    def _take_pending(self) -> bytes:
        data = b"".join(self._pending)
        self._pending.clear()
        return data

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        if not self._exchange.started:
            await self._exchange.start_stream(HEADERS)
        await self._exchange.write(data, last=last)
