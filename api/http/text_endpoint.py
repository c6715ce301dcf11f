"""`POST /v1/chat/completions` and `POST /v1/completions`: one way through, two dialects."""

from __future__ import annotations

import logging
from typing import Any

from tripower.actors.dialogue import Failed, GenerationFinished, GenerationRequest, TokenChunk
from tripower.actors.generation import Generation
from tripower.api.http.answers import Chunks, Dialect, whole_answer
from tripower.api.http.decoding import RequestDecoder
from tripower.api.http.errors import internal_error
from tripower.api.http.exchange import EXCHANGE, Exchange, Interruptible
from tripower.api.http.service import Service
from tripower.api.http.sse import EventStream
from tripower.api.http.wire import ChatIn, CompletionIn, StreamOptions
from tripower.runtime.kernel import InvalidRequest, TripowerError

log = logging.getLogger("tripower.http")

SIMPLE_TYPES = (b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data")
"""What a web page may send to a foreign server without being asked by it."""


class TextEndpoint:
    """An ASGI callable that answers one kind of request.

    Nobody watches for a disconnect here: the listener cancels this task when the client leaves.
    """

    def __init__(
        self, service: Service, decoder: RequestDecoder[ChatIn] | RequestDecoder[CompletionIn], dialect: Dialect
    ) -> None:
        self._service = service
        self._decoder = decoder
        self._dialect = dialect

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope[EXCHANGE]
        check_content_type(exchange)
        body = await exchange.body(self._service.server.max_body_bytes)
        asked, exchange.ignored = self._decoder.decode(body, strict=exchange.strict)
        request = asked.generation(asked.model or await self._service.only_model())
        deadline = exchange.deadline(self._service.scheduler.deadline_max_s)
        running = exchange.interruptible(deadline, first_token_deadline=exchange.first_token_deadline())
        if asked.stream:
            await self._stream(exchange, request, running, deadline, asked.stream_options)
        else:
            await self._answer(exchange, request, running, deadline)

    async def _answer(self, exchange: Exchange, request: GenerationRequest, running: Interruptible, deadline: float) -> None:
        with running:
            async with self._service.runtime.generate(request, deadline=deadline) as generation:
                exchange.prompt_tokens = generation.prompt_tokens
                text, finished = await collect(generation, running)
        self._count(exchange, request, finished)
        await exchange.answer(200, whole_answer(self._dialect, request.model, text, finished))

    async def _stream(
        self,
        exchange: Exchange,
        request: GenerationRequest,
        running: Interruptible,
        deadline: float,
        options: StreamOptions | None,
    ) -> None:
        options = options or StreamOptions()
        chunks = Chunks(
            self._dialect,
            request.model,
            include_usage=bool(options.include_usage),
            continuous_usage=bool(options.continuous_usage_stats),
        )
        stream = EventStream(exchange, chunks, quiet_seconds=self._service.server.keep_alive_comment_s)
        try:
            with running:
                async with self._service.runtime.generate(request, deadline=deadline) as generation:
                    exchange.prompt_tokens = generation.prompt_tokens
                    finished = await stream.follow(generation, running)
            self._count(exchange, request, finished)
            await stream.finish(finished)
        except TripowerError as error:
            if not exchange.started:
                raise
            exchange.end = error.code
            await stream.fail(error)
        except Exception:
            if not exchange.started:
                raise
            log.exception("request %s failed", exchange.request_id.decode())
            exchange.end = "internal_error"
            await stream.fail(internal_error(exchange.request_id))

    def _count(self, exchange: Exchange, request: GenerationRequest, finished: GenerationFinished) -> None:
        exchange.end = finished.reason
        exchange.completion_tokens = finished.usage.completion_tokens
        timings = finished.timings
        first_token = timings.wait_seconds + timings.prefill_seconds
        self._service.figures.count_generation(
            request.model, first_token_seconds=first_token, seconds=first_token + timings.decode_seconds
        )


async def collect(generation: Generation, running: Interruptible) -> tuple[str, GenerationFinished]:
    """The whole text and the end. Blocks; raises the error of a failed generation."""
    texts: list[str] = []
    while True:
        events = await generation.receive()
        for event in events:
            if type(event) is TokenChunk:
                texts.append(event.text)
        last = events[-1]
        if texts:
            running.first_token_came()
        if type(last) is GenerationFinished:
            texts.append(last.text)
            return "".join(texts), last
        if type(last) is Failed:
            raise last.error()


def check_content_type(exchange: Exchange) -> None:
    """A body is read as JSON whatever it is called, for tools that call it nothing or a form.

    Except when a browser sends it under a type for which it does not ask first: then any web page could use this server.
    """
    given = exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if given == b"multipart/form-data" or (given in (b"", *SIMPLE_TYPES) and b"origin" in exchange.headers):
        raise InvalidRequest("send the body as application/json", code="unsupported_media_type", status=415)
