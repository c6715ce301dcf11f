"""The endpoint: one request, one job, one answer, nothing streamed."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import trio

from tripower.api.http.bodies import decoded, read
from tripower.api.http.embeddings.answer import embeddings_answer
from tripower.api.http.embeddings.request import EMBEDDINGS
from tripower.api.http.exchange import EXCHANGE, Exchange
from tripower.api.http.service import Service

INLINE_VALUES = 1 << 15
"""More values than this are written in a worker thread, so that they do not hold up the loop."""


class EmbeddingsEndpoint:
    """An ASGI callable. The listener cancels its task when the client leaves, which frees the seat at the next piece of work."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope[EXCHANGE]
        body, (asked, exchange.ignored) = await decoded(exchange, self._service.server.max_body_bytes, EMBEDDINGS.decode)
        as_base64 = asked.as_base64()
        request = msgspec.structs.replace(
            await read(body, asked.embedding), caller=exchange.caller, request_id=exchange.request_id.decode()
        )
        exchange.model = request.model
        deadline = exchange.deadline(self._service.scheduler.deadline_max_s)
        with exchange.interruptible(deadline):
            embeddings = await self._service.runtime.embed(request, deadline=deadline)
            exchange.prompt_tokens = embeddings.prompt_tokens
            answer = partial(embeddings_answer, embeddings, as_base64=as_base64)
            inline = embeddings.vectors.size <= INLINE_VALUES
            encoded = answer() if inline else await trio.to_thread.run_sync(answer, abandon_on_cancel=True)
        await exchange.answer(200, encoded)
