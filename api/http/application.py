"""The routes and the layers around them.

Starlette's `Router` finds the endpoint; endpoints are ASGI callables and write their answers themselves, since `Request` and `Response`
objects would cost more than the rest of a short request.
"""

from __future__ import annotations

from typing import Any

from starlette.routing import Match, Route, Router

from tripower.api.http import wire
from tripower.api.http.answers import CHAT, COMPLETION
from tripower.api.http.auth.middleware import Authentication
from tripower.api.http.embeddings.endpoint import EmbeddingsEndpoint
from tripower.api.http.exchange import EXCHANGE, Exchange
from tripower.api.http.messages.endpoint import messages_routes
from tripower.api.http.middleware import ErrorBodies, Exchanges, HostGuard
from tripower.api.http.openapi.endpoint import OPENAPI_PATH, OpenApi
from tripower.api.http.origins import Origins
from tripower.api.http.requests.endpoints import CancelRequest, ListRequests
from tripower.api.http.responses.endpoint import responses_routes
from tripower.api.http.router.endpoints import LoadModel, UnloadModel
from tripower.api.http.service import Service
from tripower.api.http.slots.endpoint import Slots
from tripower.api.http.status_endpoints import Health, Metrics, Models, Ready
from tripower.api.http.text_endpoint import TextEndpoint
from tripower.api.http.tokens.endpoints import (
    TokenEndpoint,
    TokenizerInfo,
    apply_template,
    count_input_tokens,
    detokenize,
    tokenize,
)
from tripower.api.http.tokens.requests import APPLY_TEMPLATE, DETOKENIZE, TOKENIZE
from tripower.api.http.tokens.work import TextWork
from tripower.api.http.ui.endpoints import redirect, ui_routes, wants_page
from tripower.runtime.kernel import TripowerError

LOOKING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing and start no work."""


class Application:
    """The ASGI application. `active` are the exchanges whose answer is not complete."""

    def __init__(self, service: Service) -> None:
        self._keepers = service.keepers
        self._has_page = service.server.ui
        self._router = Router(routes(service), redirect_slashes=False, default=self._no_route)
        guarded = HostGuard(Authentication(self._route, service), service.server, Origins(service.server))
        self._exchanges = Exchanges(ErrorBodies(guarded), service.keepers, service.active, self.route_of)

    @property
    def active(self) -> set[Exchange]:
        return self._exchanges.active

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._exchanges(scope, receive, send)

    async def _route(self, scope: Any, receive: Any, send: Any) -> None:
        scope["app"] = self  # makes the router raise instead of answering in plain text
        scope["path"] = plain_path(scope["path"])
        if scope["method"] not in LOOKING:
            self._keepers.check()
        await self._router(scope, receive, send)

    def route_of(self, scope: Any) -> Route | None:
        """Where a request would go, or would go by another method, that has not come to the router."""
        scope = {**scope, "path": plain_path(scope["path"])}
        matches = [(route.matches(scope)[0], route) for route in self._router.routes if isinstance(route, Route)]
        return (
            max(matches, key=lambda match: match[0].value)[1] if any(match is not Match.NONE for match, _ in matches) else None
        )

    async def _no_route(self, scope: Any, receive: Any, send: Any) -> None:
        """Nothing lives here. Says what is meant, where that can be guessed: `/v1` is often left out, or there twice."""
        exchange: Exchange = scope[EXCHANGE]
        if self._has_page and wants_page(exchange):
            await redirect(exchange, "ui")
            return
        path = plain_path(exchange.path)
        cure = "GET /v1/models lists the models, and GET /openapi.json describes every route"
        for meant in (f"/v1{path}", path.removeprefix("/v1")):
            if meant != path and self.route_of({**scope, "path": meant}) is not None:
                cure = f"use {meant[:200]}"
        raise TripowerError(
            f"there is no route {exchange.path[:200]!r}: {cure}", code="route_not_found", status=404, kind="not_found_error"
        )


def routes(service: Service) -> list[Route]:
    """All routes, the busiest first."""
    work = TextWork()
    described = [
        Route("/v1/chat/completions", TextEndpoint(service, wire.CHAT, CHAT), methods=["POST"], name="chat"),
        Route("/v1/completions", TextEndpoint(service, wire.COMPLETION, COMPLETION), methods=["POST"], name="completions"),
        Route("/v1/embeddings", EmbeddingsEndpoint(service), methods=["POST"], name="embeddings"),
        Route("/v1/models", Models(service), methods=["GET"], name="models"),
        Route("/v1/models/{id:path}", Models(service), methods=["GET"], name="model"),
        Route("/health", Health(service), methods=["GET"], name="health"),
        Route("/ready", Ready(service), methods=["GET"], name="ready"),
        Route("/metrics", Metrics(service), methods=["GET"], name="metrics"),
        *token_routes(service, work),
        *responses_routes(service, work),
        *messages_routes(service, work),
        Route("/slots", Slots(service), methods=["GET"], name="slots"),
        Route("/models", Models(service), methods=["GET"], name="router_models"),
        Route("/v1/requests", ListRequests(service), methods=["GET"], name="requests"),
        Route("/v1/requests/{id}", CancelRequest(service), methods=["DELETE"], name="delete_request"),
        Route("/v1/requests/{id}/cancel", CancelRequest(service), methods=["POST"], name="cancel_request"),
        Route("/models/load", LoadModel(service), methods=["POST"], name="load_model"),
        Route("/models/unload", UnloadModel(service), methods=["POST"], name="unload_model"),
        *ui_routes(service),
    ]
    return [*described, Route(OPENAPI_PATH, OpenApi(described, service.keyring), methods=["GET"], name="openapi")]


def token_routes(service: Service, work: TextWork) -> list[Route]:
    """What needs a tokenizer only."""
    count = TokenEndpoint(service, work, wire.CHAT, count_input_tokens)
    return [
        Route("/tokenize", TokenEndpoint(service, work, TOKENIZE, tokenize), methods=["POST"], name="tokenize"),
        Route("/detokenize", TokenEndpoint(service, work, DETOKENIZE, detokenize), methods=["POST"], name="detokenize"),
        Route("/tokenizer_info", TokenizerInfo(service, work), methods=["GET"], name="tokenizer_info"),
        Route(
            "/apply-template",
            TokenEndpoint(service, work, APPLY_TEMPLATE, apply_template),
            methods=["POST"],
            name="apply_template",
        ),
        Route("/v1/chat/completions/input_tokens", count, methods=["POST"], name="chat_input_tokens"),
    ]


def plain_path(path: str) -> str:
    """A path without the host of an absolute target, as proxies send it, and without a slash at its end.

    A redirect to it would lose the body, or a proxy's prefix.
    """
    if path.startswith(("http://", "https://")):
        path = "/" + path.partition("://")[2].partition("/")[2]
    return path.rstrip("/") or "/" if len(path) > 1 else path
