"""An answer as a stream of server-sent events.

Every check and the place in the queue come first and keep their real status. The head of the answer goes out with the first token, or
with the first keep-alive comment if that is earlier. What has come since the last write goes out as one write, one event for each
token. After a failure comes one event that names it, then the end mark.
"""

from __future__ import annotations

import logging

import trio

from tripower.actors.dialogue import Failed, GenerationFinished, TokenChunk
from tripower.actors.generation import Generation
from tripower.api.http.answers import DONE, Chunks
from tripower.api.http.errors import error_body, internal_error
from tripower.api.http.exchange import Exchange
from tripower.runtime.kernel import TripowerError

log = logging.getLogger("tripower.http")

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
COMMENT = b": keep-alive\n\n"


class EventStream:
    """Writes the events of one generation to its client."""

    def __init__(self, exchange: Exchange, chunks: Chunks, *, quiet_seconds: float) -> None:
        self._exchange = exchange
        self._chunks = chunks
        self._quiet_seconds = quiet_seconds
        self._opened = False

    async def run(self, generation: Generation, *, deadline: float, first_token_deadline: float) -> GenerationFinished:
        """Stream everything but the last piece, which `finish` sends. Blocks for as long as the model needs.

        Raises what ends the generation: before the head is out it becomes an ordinary answer, afterwards it goes to `fail`.
        """
        self._chunks.count_prompt(generation.prompt_tokens)
        with self._exchange.interruptible(min(deadline, first_token_deadline)) as running:
            while True:
                events = None
                with trio.move_on_after(self._quiet_seconds):
                    events = await generation.receive()
                if events is None:
                    await self._write(COMMENT)
                    continue
                pieces: list[bytes] = []
                for event in events:
                    if type(event) is TokenChunk:
                        pieces.append(self._chunks.token(event.text))
                    elif type(event) is GenerationFinished or type(event) is Failed:
                        break
                if pieces:
                    running.scope.deadline = deadline
                    self._exchange.completion_tokens += len(pieces)
                if type(event) is GenerationFinished:
                    self._held = pieces
                    return event
                if pieces:
                    await self._write_events(pieces)
                if type(event) is Failed:
                    raise event.error()
