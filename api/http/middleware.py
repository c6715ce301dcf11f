"""The layers around every route, outermost first: `Exchanges`, `ErrorBodies`, `HostGuard`. Plain ASGI callables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import trio
from starlette.exceptions import HTTPException
from starlette.routing import Route

from tripower.api.http.errors import error_body, error_headers, internal_error
from tripower.api.http.exchange import EXCHANGE, Exchange, Header
from tripower.api.http.figures import UNMATCHED
from tripower.api.http.hosts import host_name, is_loopback
from tripower.api.http.messages.errors import REQUEST_ID, messages_error_body, speaks_messages
from tripower.api.http.observe.keepers import Keepers
from tripower.api.http.origins import Origins
from tripower.runtime.configuration import ServerSettings
from tripower.runtime.kernel import InvalidRequest, TripowerError

log = logging.getLogger("tripower.http")


class Exchanges:
    """Gives each request its id and its `Exchange`; when it is over, tells those who keep records, without any prompt."""

    def __init__(self, app: Any, keepers: Keepers, active: set[Exchange], route_of: Callable[[Any], Route | None]) -> None:
        self._app = app
        self._keepers = keepers
        self.active = active
        self._route_of = route_of

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange = Exchange(scope, receive, send)
        scope[EXCHANGE] = exchange
        trio.lowlevel.current_task().name = f"request {exchange.request_id.decode()}"  # what the console finds it by
        self.active.add(exchange)
        span = self._keepers.begin(exchange)
        if span is not None:
            exchange.traceparent = span.traceparent
        try:
            await self._app(scope, receive, send)
        except trio.Cancelled:
            exchange.end = "disconnect" if _client_left(scope) else "shutdown"
            raise
        finally:
            self.active.discard(exchange)
            exchange.end = exchange.cut_off or exchange.end
            route = scope.get("route") or self._route_of(scope)  # who is refused by key or rate has not come to the router
            exchange.route = route.path_format if route is not None else UNMATCHED
            self._keepers.end(exchange, route.name if route is not None else "", span)
            exchange.over.set()


def _client_left(scope: Any) -> bool:
    incoming = scope.get("extensions", {}).get("tripower.incoming")
    return incoming is not None and incoming.client_left


class ErrorBodies:
    """Turns every error into an answer, as long as none has begun."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope[EXCHANGE]
        try:
            await self._app(scope, receive, send)
        except TripowerError as error:
            await self._answer(exchange, error)
        except HTTPException as refused:  # from the router: a known path, another verb
            methods = " or ".join(sorted((refused.headers or {}).get("Allow", "another method").split(", ")))
            unsuitable = TripowerError(
                f"{exchange.method} is not possible here: use {methods}", code="method_not_allowed",
                status=refused.status_code, kind="invalid_request_error",
            )  # fmt: skip
            allowed = [(name.lower().encode(), value.encode()) for name, value in (refused.headers or {}).items()]
            await self._answer(exchange, unsuitable, allowed)
        except Exception:
            log.exception("request %s failed", exchange.request_id.decode())
            await self._answer(exchange, internal_error(exchange.request_id))

    async def _answer(self, exchange: Exchange, error: TripowerError, headers: list[Header] | None = None) -> None:
        exchange.end = error.code
        if not exchange.started:
            body, more = error_body(error), headers or []
            if speaks_messages(exchange.path):
                body, more = messages_error_body(error, exchange.request_id), [*more, (REQUEST_ID, exchange.request_id)]
            await exchange.answer(error.status, body, headers=[*error_headers(error), *more])


SINGLE = frozenset({b"authorization", b"x-api-key", b"content-type"})
"""Headers of which a second one would have to be ignored, while something in between may have looked at that."""


def check_single(headers: Iterable[Header]) -> None:
    """Raise `InvalidRequest` for a header that is there twice and can only mean one thing."""
    seen = set[bytes]()
    for name, _ in headers:
        if name in SINGLE and name in seen:
            raise InvalidRequest(f"{name.decode()} is there twice: send one", code="ambiguous_header", param=name.decode())
        seen.add(name)


class HostGuard:
    """On a loopback address, answers only to names of this machine.

    A web page can make a browser ask a local server under a name of the attacker's, but cannot change the Host header that the
    browser sends. Clients that send none are no browsers. What pages may do is for `Origins` to say.
    """

    def __init__(self, app: Any, settings: ServerSettings, origins: Origins) -> None:
        self._app = app
        self._origins = origins
        self._allowed = {host.lower().rstrip(".") for host in (*settings.allowed_hosts, settings.host)}
        self._guards = is_loopback(settings.host)
        self._known: set[bytes] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = scope[EXCHANGE].headers
        if b"transfer-encoding" in headers and b"content-length" in headers:
            raise InvalidRequest("content-length and transfer-encoding contradict each other", code="ambiguous_length")
        if len(headers) != len(scope["headers"]):
            check_single(scope["headers"])
        host = headers.get(b"host")
        if host is not None and host not in self._known and scope["server"] is not None:  # no page reaches a Unix socket
            self._check(host)
        if (self._origins.listed or b"origin" in headers) and await self._origins.answered(scope):
            return
        await self._app(scope, receive, send)

    def _check(self, host: bytes) -> None:
        name = host_name(host.decode("latin-1"))
        if name is None:
            raise InvalidRequest("host: this is no name or address of a server", code="invalid_host", param="host")
        if self._guards and not (name in self._allowed or is_loopback(name)):
            raise TripowerError(
                "this server answers only under a name of this machine: use localhost, or add the name to server.allowed_hosts",
                code="host_not_allowed", status=403, kind="permission_error",
            )  # fmt: skip
        if len(self._known) < 64:
            self._known.add(host)
