"""`GET /v1/models`, `/v1/models/{id}`, `/health`, `/ready` and `/metrics`."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from tripower.actors.model_registry import ModelCard
from tripower.api.http.answers import encode
from tripower.api.http.exchange import EXCHANGE, Exchange
from tripower.api.http.metrics import KernelCollector
from tripower.api.http.service import Service
from tripower.runtime.kernel import NotFound


class Models:
    """What can be asked for, by name."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope[EXCHANGE]
        cards = sorted(await self._service.runtime.models(), key=lambda card: card.name)
        name = scope["path_params"].get("id")
        if name is None:
            await exchange.answer(200, encode({"object": "list", "data": [model_out(card) for card in cards]}))
            return
        for card in cards:
            if card.name == name:
                await exchange.answer(200, encode(model_out(card)))
                return
        raise NotFound(f"there is no model {name[:200]!r}", param="model")


def model_out(card: ModelCard) -> dict[str, Any]:
    """A model as OpenAI lists it, with vLLM's `max_model_len`, llama-server's `meta` and `status`. No path of this machine."""
    out: dict[str, Any] = {
        "id": card.name,
        "object": "model",
        "created": card.created,
        "owned_by": "tripower",
        "status": {"value": card.state} | ({"failed": True} if card.error else {}),
    }
    if card.context:
        out["max_model_len"] = card.context
        out["meta"] = {"n_ctx_train": card.context, "n_params": card.parameters, "size": card.size_bytes}
    return out


class Health:
    """Whether anything is wrong. Loading and draining are not."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        health = self._service.runtime.health()
        body = encode({"status": health.status, "reasons": health.reasons, "engines": health.engines})
        await scope[EXCHANGE].answer(503 if health.status == "failing" else 200, body)


class Ready:
    """Whether new work is welcome: not while loading or draining, nor when something is wrong."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        health = self._service.runtime.health()
        ready = health.status == "ok"
        body = encode({"ready": ready, "status": health.status, "reasons": health.reasons})
        await scope[EXCHANGE].answer(200 if ready else 503, body)


class Metrics:
    """Prometheus's text format, read from the kernel's registry at this moment."""

    def __init__(self, service: Service) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(KernelCollector(service.runtime.statistics))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = generate_latest(self._registry)
        await scope[EXCHANGE].answer(200, body, content_type=CONTENT_TYPE_PLAIN_0_0_4.encode())
