"""`GET /v1/models` (also `/models`), `/v1/models/{id}`, `/health`, `/ready` and `/metrics`."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from tripower.actors.models import ModelCard
from tripower.api.http.answers import encode
from tripower.api.http.exchange import EXCHANGE, Exchange
from tripower.api.http.metrics import KernelCollector
from tripower.api.http.observe.peer_metrics import COLLECTORS
from tripower.api.http.service import Service
from tripower.runtime.kernel import NotFound


class ModelStatus(msgspec.Struct, frozen=True):
    """`unloaded`, `loading`, `loaded` or `unloading`; `failed` after a load that went wrong."""

    value: str
    failed: bool | UnsetType = UNSET


class ModelFigures(msgspec.Struct, frozen=True):
    """llama-server's names."""

    n_ctx_train: int
    n_params: int
    size: int


class ModelOut(msgspec.Struct, frozen=True, kw_only=True):
    """A model as OpenAI lists it, with vLLM's `max_model_len`, llama-server's `meta` and `status`."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "tripower"
    status: ModelStatus
    max_model_len: int | UnsetType = UNSET
    meta: ModelFigures | UnsetType = UNSET


class ModelListOut(msgspec.Struct, frozen=True):
    """Sorted by name."""

    data: tuple[ModelOut, ...]
    object: str = "list"


class ReadyOut(msgspec.Struct, frozen=True):
    """Whether new work is welcome, and if not, why."""

    ready: bool
    status: str
    reasons: tuple[str, ...]


class Models:
    """What can be asked for, by name."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope[EXCHANGE]
        cards = sorted(await self._service.runtime.models(), key=lambda card: card.name)
        name = scope["path_params"].get("id")
        if name is None:
            await exchange.answer(200, encode(ModelListOut(tuple(map(model_out, cards)))))
            return
        for card in cards:
            if card.name == name:
                await exchange.answer(200, encode(model_out(card)))
                return
        raise NotFound(f"there is no model {name[:200]!r}", param="model")


def model_out(card: ModelCard) -> ModelOut:
    """What clients see of a model. No path of this machine."""
    return ModelOut(
        id=card.name,
        created=card.created,
        status=ModelStatus(card.state, True if card.error else UNSET),
        max_model_len=card.context or UNSET,
        meta=ModelFigures(card.context, card.parameters, card.size_bytes) if card.context else UNSET,
    )


class Health:
    """Whether anything is wrong. Loading and draining are not."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        health = self._service.runtime.health()
        await scope[EXCHANGE].answer(503 if health.status == "failing" else 200, encode(health))


class Ready:
    """Whether new work is welcome: not while loading or draining, when something is wrong, or when nothing could be recorded."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        health = self._service.runtime.health()
        status, reasons = health.status, health.reasons
        if self._service.keepers.refuses:
            status = "failing" if status == "ok" else status
            reasons = (*reasons, "the audit log cannot be written, and server.audit_denies refuses work until it can")
        ready = status == "ok"
        body = encode(ReadyOut(ready, status, reasons))
        await scope[EXCHANGE].answer(200 if ready else 503, body)


class Metrics:
    """Prometheus's text format, read from the kernel's registry at this moment."""

    def __init__(self, service: Service) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(KernelCollector(service.runtime.statistics))
        for family in service.server.metrics_families:
            self._registry.register(COLLECTORS[family](service.runtime.statistics))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = generate_latest(self._registry)
        await scope[EXCHANGE].answer(200, body, content_type=CONTENT_TYPE_PLAIN_0_0_4.encode())
