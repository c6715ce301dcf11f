"""`POST /models/load` and `POST /models/unload`; their state is in `GET /models`.

A load is answered when the model can be used, an unload when its memory is free, so that a client hears of a failure; llama-server
answers at once and lets its clients poll, which works here as well. Both are idempotent. A model that was unloaded is loaded again for
whoever asks next.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tripower.api.http.answers import encode
from tripower.api.http.auth.middleware import require_admin
from tripower.api.http.bodies import decoded
from tripower.api.http.decoding import RequestDecoder
from tripower.api.http.exchange import EXCHANGE, Exchange
from tripower.api.http.service import Service


class ModelIn(msgspec.Struct, frozen=True):
    """Which model."""

    model: str


class ExactModel(ModelIn, frozen=True, forbid_unknown_fields=True):
    """The same, and nothing else."""


class DoneOut(msgspec.Struct, frozen=True):
    """It is done."""

    success: bool = True


MODEL = RequestDecoder[ModelIn](ModelIn, ExactModel)


class _ModelEndpoint:
    """An ASGI callable that does something with one model and answers when it is done."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope[EXCHANGE]
        require_admin(exchange, self._service)
        _, (asked, exchange.ignored) = await decoded(exchange, self._service.server.max_body_bytes, MODEL.decode)
        deadline = exchange.deadline(self._service.scheduler.deadline_max_s)
        with exchange.interruptible(deadline):
            await self._do(asked.model, deadline)
        await exchange.answer(200, encode(DoneOut()))

    async def _do(self, model: str, deadline: float) -> None:
        raise NotImplementedError


class LoadModel(_ModelEndpoint):
    """Answers when the model can be used; many may ask, it is loaded once."""

    async def _do(self, model: str, deadline: float) -> None:
        await self._service.runtime.ready(model, deadline)


class UnloadModel(_ModelEndpoint):
    """Answers when the model's memory is free; requests that use it come to their ends first."""

    async def _do(self, model: str, deadline: float) -> None:
        await self._service.runtime.unload(model, deadline=deadline)
