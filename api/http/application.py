"""The routes and the layers around them.

Starlette's `Router` finds the endpoint; endpoints are ASGI callables and write their answers themselves, since `Request` and `Response`
objects would cost more than the rest of a short request.
"""

from __future__ import annotations

from typing import Any

from starlette.routing import Route, Router

from tripower.api.http import wire
from tripower.api.http.answers import CHAT, COMPLETION
from tripower.api.http.exchange import EXCHANGE, Exchange
from tripower.api.http.middleware import ErrorBodies, Exchanges, HostGuard
from tripower.api.http.service import Service
from tripower.api.http.status_endpoints import Health, Metrics, Models, Ready
from tripower.api.http.text_endpoint import TextEndpoint
from tripower.runtime.kernel import TripowerError


class Application:
    """The ASGI application. `active` are the exchanges whose answer is not complete."""

    def __init__(self, service: Service) -> None:
        self._router = Router(routes(service), redirect_slashes=False, default=no_route)
        self._exchanges = Exchanges(ErrorBodies(HostGuard(self._route, service.server)), service.figures)

    @property
    def active(self) -> set[Exchange]:
        return self._exchanges.active

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._exchanges(scope, receive, send)

    async def _route(self, scope: Any, receive: Any, send: Any) -> None:
        scope["app"] = self  # makes the router raise instead of answering in plain text
        path = scope["path"]
        if path.startswith(("http://", "https://")):  # the absolute form of a target, as proxies send it
            scope["path"] = path = "/" + path.partition("://")[2].partition("/")[2]
        if len(path) > 1 and path.endswith("/"):
            scope["path"] = path.rstrip("/") or "/"  # a redirect would lose the body, or a proxy's prefix
        await self._router(scope, receive, send)


def routes(service: Service) -> list[Route]:
    """All routes, the busiest first."""
    return [
        Route("/v1/chat/completions", TextEndpoint(service, wire.CHAT, CHAT), methods=["POST"], name="chat"),
        Route("/v1/completions", TextEndpoint(service, wire.COMPLETION, COMPLETION), methods=["POST"], name="completions"),
        Route("/v1/models", Models(service), methods=["GET"], name="models"),
        Route("/v1/models/{id:path}", Models(service), methods=["GET"], name="model"),
        Route("/health", Health(service), methods=["GET"], name="health"),
        Route("/ready", Ready(service), methods=["GET"], name="ready"),
        Route("/metrics", Metrics(service), methods=["GET"], name="metrics"),
    ]


async def no_route(scope: Any, receive: Any, send: Any) -> None:
    """Nothing lives here."""
    exchange: Exchange = scope[EXCHANGE]
    raise TripowerError(
        f"there is no route {exchange.path[:200]!r}", code="route_not_found", status=404, kind="not_found_error"
    )
