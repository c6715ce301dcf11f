"""The layer that lets requests in: by key, or, where there are no keys, everybody.

It stands before the router and denies by default. What is open is compared with the target exactly as it came, so no other spelling of
a path gets past it: doubled slashes, dot segments, upper case or escapes can lead to nothing that is open, and whatever they lead to
needs a key. Unknown paths and verbs do too, so without a key nobody learns what there is.
"""

from __future__ import annotations

from typing import Any

import trio

from tripower.api.http.exchange import EXCHANGE, Exchange
from tripower.api.http.hosts import is_loopback
from tripower.api.http.service import Service
from tripower.api.http.ui.files import PATHS
from tripower.runtime.kernel import TripowerError

OPEN = frozenset({"/health", "/ready", *PATHS})
"""For those who watch whether the service lives, and for browsers: they say nothing of requests or callers."""
OPEN_METHODS = frozenset({"GET", "HEAD"})
COUNTED_METHODS = frozenset({"POST"})
"""Of requests that count against a key's rate: those that start work."""
FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")
"""Headers by which a proxy says for whom it asks: its own address says nothing then."""


class Authentication:
    """Finds out who asks (`exchange.caller`, `.admin`, `.meter`), and refuses whoever has no key or has used up its minute."""

    def __init__(self, app: Any, service: Service) -> None:
        self._app = app
        self._keyring = service.keyring
        self._figures = service.figures
        self._open = OPEN if service.server.ui else OPEN - PATHS

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope[EXCHANGE]
        if not self._keyring.enabled:
            exchange.admin = is_local(scope)
        elif not (scope["method"] in OPEN_METHODS and route_path(scope) in self._open):
            self._authenticate(exchange)
        await self._app(scope, receive, send)

    def _authenticate(self, exchange: Exchange) -> None:
        keys = given_keys(exchange.headers)
        for key in keys:
            holder = self._keyring.find(key)
            if holder is not None:
                exchange.caller, exchange.admin, exchange.meter = holder.caller, holder.key.admin, holder.meter
                if exchange.method in COUNTED_METHODS:
                    holder.meter.admit(trio.current_time())
                return
        self._figures.count_auth_failure("invalid" if keys else "missing")
        raise TripowerError(
            "this API key is not known here" if keys else "an API key is needed: send it as `Authorization: Bearer KEY`",
            code="invalid_api_key",
            status=401,
            kind="authentication_error",
        )


def given_keys(headers: dict[bytes, bytes]) -> list[bytes]:
    """The keys that a request carries: a bearer token, and what stands in `x-api-key`."""
    scheme, _, token = headers.get(b"authorization", b"").strip().partition(b" ")
    given = [token.strip()] if scheme.lower() == b"bearer" else []
    given.append(headers.get(b"x-api-key", b"").strip())
    return [key for key in given if key]


def route_path(scope: Any) -> str:
    """The path as it came, escapes included, behind the prefix under which a proxy shows this server."""
    path: str = scope["raw_path"].decode("latin-1")
    prefix = scope.get("root_path", "")
    return path.removeprefix(prefix) if prefix and path.startswith(f"{prefix}/") else path


def is_local(scope: Any) -> bool:
    """Whether a request comes from this machine, and through no proxy on it."""
    client = scope.get("client")
    direct = not any(name in scope[EXCHANGE].headers for name in FORWARDED)
    return direct and (client is None or not client[0] or is_loopback(client[0]))


def require_admin(exchange: Exchange, service: Service) -> None:
    """Raise 403 for whoever may not administer. Where there are no keys, that is whoever is not on this machine."""
    if exchange.admin:
        return
    service.figures.count_auth_failure("admin")
    cure = "use a key with `admin = true`" if service.keyring.enabled else "ask from this machine, or set up admin keys"
    raise TripowerError(
        f"this route is for administrators: {cure}", code="admin_key_required", status=403, kind="permission_error"
    )
