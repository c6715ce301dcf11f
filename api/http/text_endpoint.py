"""`POST /v1/chat/completions` and `POST /v1/completions`: one way through, two dialects."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import trio

from tripower.actors.dialogue import GenerationFinished
from tripower.api.http.answers import Dialect
from tripower.api.http.bodies import decoded, read
from tripower.api.http.decoding import RequestDecoder
from tripower.api.http.exchange import EXCHANGE, Exchange, Header, Interruptible
from tripower.api.http.service import Service
from tripower.api.http.sse import EventStream, failing_within
from tripower.api.http.text.choices import Choices, choices_of
from tripower.api.http.text.chunks import Chunks
from tripower.api.http.text.numbers import priority_of
from tripower.api.http.text.whole import collect, whole_answer
from tripower.api.http.wire import Asked, ChatIn, CompletionIn, StreamOptions
from tripower.runtime.kernel import InvalidRequest

log = logging.getLogger("tripower.http")


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
        decode: Callable[..., tuple[ChatIn | CompletionIn, tuple[str, ...]]] = self._decoder.decode
        body, (body_in, exchange.ignored) = await decoded(exchange, self._service.server.max_body_bytes, decode)
        model = body_in.model or await self._service.only_model()
        asked = await read(body, partial(body_in.asked, model, priority=priority_of(exchange.headers)))
        asked = attrs.evolve(asked, requests=tuple([exchange.asks(request) for request in asked.requests]))
        deadline = exchange.deadline(self._service.scheduler.deadline_max_s)
        running = exchange.interruptible(deadline, first_token_deadline=exchange.first_token_deadline())
        if body_in.stream:
            await self._stream(exchange, asked, running, deadline, body_in.stream_options or StreamOptions())
        else:
            await self._answer(exchange, asked, running, deadline)

    async def _answer(self, exchange: Exchange, asked: Asked, running: Interruptible, deadline: float) -> None:
        with running:
            async with choices_of(self._service.runtime, asked, deadline) as choices:
                begin(exchange, asked, choices)
                messages = await collect(choices, asked, running)
                body, finished = whole_answer(self._dialect, asked, choices.generations, messages)
        self._service.count(exchange, asked.requests[0].model, finished)
        await exchange.answer(200, body, headers=timing_headers(exchange, finished))

    async def _stream(
        self, exchange: Exchange, asked: Asked, running: Interruptible, deadline: float, options: StreamOptions
    ) -> None:
        stream = EventStream(exchange, quiet_seconds=self._service.server.keep_alive_comment_s)
        async with failing_within(exchange, stream.fail):
            with running:
                async with choices_of(self._service.runtime, asked, deadline) as choices:
                    begin(exchange, asked, choices)
                    chunks = Chunks(self._dialect, asked, choices.generations, options)
                    finished = await stream.follow(choices, chunks, running)
            self._service.count(exchange, asked.requests[0].model, finished)
            await stream.finish(chunks)


def begin(exchange: Exchange, asked: Asked, choices: Choices) -> None:
    """What is known when all choices have been entered. Raises `InvalidRequest` for a prompt that cannot be repeated."""
    generations = choices.generations
    exchange.model, exchange.generations = asked.requests[0].model, generations
    exchange.prompt_tokens = sum(generation.prompt_tokens for generation in generations[:: asked.n])
    if asked.echo and generations[0].text is None and any(isinstance(each.prompt, tuple) for each in asked.requests):
        raise InvalidRequest(
            "echo: this model's engine keeps its tokenizer to itself, so tokens cannot be repeated as text; send text",
            code="unsupported_by_engine",
            param="echo",
        )


def timing_headers(exchange: Exchange, finished: GenerationFinished) -> list[Header]:
    """How long the parts of a whole answer took, in milliseconds."""
    timings = finished.timings
    parts = b"queue;dur=%.1f, prefill;dur=%.1f, decode;dur=%.1f" % (
        1000 * timings.wait_seconds,
        1000 * timings.prefill_seconds,
        1000 * timings.decode_seconds,
    )
    took = 1000 * (trio.current_time() - exchange.began)
    return [(b"server-timing", parts), (b"openai-processing-ms", b"%d" % took)]
