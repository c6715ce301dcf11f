"""One way through for the dialects whose answers are made of parts: decode, ask the runtime, answer whole or as a stream.

It keeps the promises of the chat endpoint: every check and the place in the queue come before the head of the answer and keep their
real status; what was streamed before a failure stays valid; nothing is written that the client did not ask for.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from tripower.actors.dialogue import GenerationRequest
from tripower.actors.generation import Generation
from tripower.api.http.bodies import decoded, read
from tripower.api.http.dialects.decoding import DialectDecoder
from tripower.api.http.dialects.following import Following
from tripower.api.http.dialects.parts import PartEvent
from tripower.api.http.dialects.stream import PartStream
from tripower.api.http.dialects.thinking import ThinkingWish, template_arguments, template_of
from tripower.api.http.exchange import EXCHANGE, Exchange, Header, Interruptible
from tripower.api.http.fields import refuse_unknown
from tripower.api.http.service import Service
from tripower.api.http.sse import failing_within
from tripower.api.http.text.numbers import priority_of
from tripower.runtime.kernel import InvalidRequest, TripowerError

log = logging.getLogger("tripower.http")


class AskedIn(Protocol):
    """What every request has."""

    @property
    def model(self) -> str | None: ...
    @property
    def stream(self) -> bool | None: ...
    def ignored(self) -> tuple[str, ...]:
        """Fields whose values have no effect here and are named for it."""

    def thinking_wish(self) -> ThinkingWish | None:
        """How much should be thought, if anything was said about it."""

    def generation(self, model: str) -> GenerationRequest:
        """What is asked of the runtime. Raises `InvalidRequest`."""


class AnswerWriter(Protocol):
    """Turns one answer into bytes of its dialect."""

    keep_alive: bytes
    headers: tuple[Header, ...]
    """Of the answer, beside the usual ones."""

    def opening(self, following: Following) -> bytes:
        """The events before the first part."""

    def event(self, event: PartEvent) -> bytes:
        """One event of a part as events of the stream."""

    def end(self, following: Following) -> bytes:
        """The events after the last part of a complete answer."""

    def fail(self, error: TripowerError, following: Following) -> bytes:
        """The events that end a stream which cannot be completed."""

    def whole(self, following: Following) -> bytes:
        """The JSON of a complete answer."""


Asked = TypeVar("Asked", bound=AskedIn)


def ranked(request: GenerationRequest, exchange: Exchange) -> GenerationRequest:
    """The request with the priority that the headers give it: these dialects have no field for one. Raises `InvalidRequest`."""
    priority = priority_of(exchange.headers)
    return request if priority is None else msgspec.structs.replace(request, priority=priority)


class DialectEndpoint(Generic[Asked]):
    """An ASGI callable. `fills_context`: an answer that is allowed more tokens than fit may have those that do.

    `names` are the dialect's own for fields that the runtime calls otherwise: a refusal names what the client has sent.
    """

    def __init__(
        self,
        service: Service,
        decoder: DialectDecoder[Any],
        new_writer: Callable[[Asked, GenerationRequest, Exchange], AnswerWriter],
        *,
        fills_context: bool = False,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._service = service
        self._decoder = decoder
        self._new_writer = new_writer
        self._fills_context = fills_context
        self._names = names or {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope[EXCHANGE]
        body, (asked, unknown) = await decoded(exchange, self._service.server.max_body_bytes, self._decoder.decode)
        self._ignore(exchange, *unknown, *asked.ignored())
        model = asked.model or await self._service.only_model()
        request = await read(body, partial(asked.generation, model))
        request = exchange.asks(ranked(request, exchange))
        deadline = exchange.deadline(self._service.scheduler.deadline_max_s)
        running = exchange.interruptible(deadline, first_token_deadline=exchange.first_token_deadline())
        if asked.stream:
            await self._stream(exchange, asked, request, running, deadline)
        else:
            await self._answer(exchange, asked, request, running, deadline)

    def _ignore(self, exchange: Exchange, *names: str) -> None:
        if exchange.strict and names:
            raise refuse_unknown(names)
        exchange.ignored += names

    async def _answer(
        self, exchange: Exchange, asked: Asked, request: GenerationRequest, running: Interruptible, deadline: float
    ) -> None:
        with running:
            async with AsyncExitStack() as stack:
                request, generation = await self._enter(stack, exchange, asked, request, deadline)
                following = Following(generation, running)
                while not following.ended:
                    await following.receive()
                    exchange.completion_tokens = following.tokens
        if following.failure is not None:
            raise following.failure
        self._count(exchange, request, following)
        writer = self._new_writer(asked, request, exchange)
        await exchange.answer(200, writer.whole(following), headers=writer.headers)

    async def _stream(
        self, exchange: Exchange, asked: Asked, request: GenerationRequest, running: Interruptible, deadline: float
    ) -> None:
        stream: PartStream | None = None

        async def fail(error: TripowerError) -> None:
            assert stream is not None, "nothing else begins the answer"
            await stream.fail(error)

        async with failing_within(exchange, fail):
            with running:
                async with AsyncExitStack() as stack:
                    request, generation = await self._enter(stack, exchange, asked, request, deadline)
                    writer = self._new_writer(asked, request, exchange)
                    quiet = self._service.server.keep_alive_comment_s
                    stream = PartStream(exchange, writer, Following(generation, running), quiet_seconds=quiet)
                    await stream.follow()
            self._count(exchange, request, stream.following)
            await stream.finish()

    async def _enter(
        self, stack: AsyncExitStack, exchange: Exchange, asked: Asked, request: GenerationRequest, deadline: float
    ) -> tuple[GenerationRequest, Generation]:
        """The generation, enqueued, and what was asked of it in the end. Raises what entering a generation raises."""
        try:
            return await self._enter_by_its_names(stack, exchange, asked, request, deadline)
        except InvalidRequest as error:
            if error.param not in self._names:
                raise
            raise renamed(error, self._names) from error

    async def _enter_by_its_names(
        self, stack: AsyncExitStack, exchange: Exchange, asked: Asked, request: GenerationRequest, deadline: float
    ) -> tuple[GenerationRequest, Generation]:
        wish = asked.thinking_wish()
        if wish is not None:
            request = await self._with_thinking(exchange, request, wish, deadline)
        try:
            generation = await stack.enter_async_context(self._service.runtime.generate(request, deadline=deadline))
        except InvalidRequest as error:
            if error.code != "context_length_exceeded" or not self._fills_context or request.max_tokens is None:
                raise
            request = msgspec.structs.replace(request, max_tokens=None)
            generation = await stack.enter_async_context(self._service.runtime.generate(request, deadline=deadline))
        exchange.asked, exchange.model = request, request.model
        exchange.prompt_tokens, exchange.generations = generation.prompt_tokens, (generation,)
        return request, generation

    async def _with_thinking(
        self, exchange: Exchange, request: GenerationRequest, wish: ThinkingWish, deadline: float
    ) -> GenerationRequest:
        arguments = template_arguments(template_of(await self._service.runtime.ready(request.model, deadline)), wish)
        if arguments is None:
            self._ignore(exchange, wish.field)
            return request
        chat = msgspec.structs.replace(request.chat, arguments={**request.chat.arguments, **arguments})
        return msgspec.structs.replace(request, chat=chat)

    def _count(self, exchange: Exchange, request: GenerationRequest, following: Following) -> None:
        finished = following.finished
        assert finished is not None, "only complete answers are counted"
        self._service.count(exchange, request.model, finished)


def renamed(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """The same refusal with the names that a dialect has for the fields."""
    message = error.message
    for name, own in names.items():
        message = re.sub(rf"\b{name}\b", own, message)
    return InvalidRequest(message, code=error.code, status=error.status, kind=error.kind, param=names[error.param or ""])
