"""What web pages may do here: the Origin header, in both of its uses.

A page of another origin can make a browser send requests to a local server, but cannot hide where it comes from. On a loopback address
such requests are refused unless they only look; and the answers to those a browser keeps from the page, as long as we do not say that it
may read them (CORS). Pages that may do both are listed in `server.cors_origins`. No cookies are used, so no credentials are allowed.
"""

from __future__ import annotations

import re
from typing import Any

from tripower.api.http.exchange import EXCHANGE, Exchange, Header
from tripower.api.http.hosts import is_loopback
from tripower.runtime.configuration import ServerSettings
from tripower.runtime.kernel import TripowerError

LOOKING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
METHODS = b"GET, POST, DELETE"
HEADERS = re.compile(rb"[A-Za-z0-9_, -]{1,2048}")
"""Names of headers that a page wants to send."""
USUAL_HEADERS = b"authorization, content-type"
PREFLIGHT_SECONDS = b"600"
VARY: Header = (b"vary", b"origin")
READABLE: Header = (b"access-control-expose-headers", b"*")


class Origins:
    """Asked before authentication, since a preflight carries no key, and after the check of Host."""

    def __init__(self, settings: ServerSettings) -> None:
        self.listed = frozenset(origin.encode() for origin in settings.cors_origins)
        """Pages that may use the server. Where there are some, every answer says that it depends on who asks."""
        self._all = b"*" in self.listed
        self._guards = is_loopback(settings.host)

    async def answered(self, scope: Any) -> bool:
        """Note what the answer has to say to browsers; True when a preflight has been answered. Raises `TripowerError` (403)."""
        exchange: Exchange = scope[EXCHANGE]
        origin = exchange.headers.get(b"origin")
        if origin is None:
            exchange.more_headers = (VARY,)
        elif self._all or origin in self.listed:
            exchange.more_headers = (VARY, READABLE, (b"access-control-allow-origin", b"*" if self._all else origin))
            if is_preflight(exchange):
                await exchange.answer(200, b"", headers=allowances(exchange))
                return True
        else:
            self._stranger(scope, exchange, origin)
        return False

    def _stranger(self, scope: Any, exchange: Exchange, origin: bytes) -> None:
        """Raise 403 when a page that is not listed wants more than to look. Our own pages are no strangers."""
        if self.listed:
            exchange.more_headers = (VARY,)
        changes = self._guards and scope["server"] is not None and exchange.method not in LOOKING
        if (changes or (self.listed and is_preflight(exchange))) and not is_same(origin, exchange.headers.get(b"host")):
            raise TripowerError(
                f"pages of {origin[:200].decode('latin-1')} may not use this server: list it in server.cors_origins if they shall",
                code="origin_not_allowed", status=403, kind="permission_error",
            )  # fmt: skip


def is_preflight(exchange: Exchange) -> bool:
    """Whether a browser asks on behalf of a page what the page may send."""
    return exchange.method == "OPTIONS" and b"access-control-request-method" in exchange.headers


def is_same(origin: bytes, host: bytes | None) -> bool:
    """Whether a page came from the very server that it asks."""
    scheme, _, name = origin.partition(b"://")
    return scheme in (b"http", b"https") and host is not None and name.lower() == host.strip().lower()


def allowances(exchange: Exchange) -> list[Header]:
    """What a listed page may send."""
    wanted = exchange.headers.get(b"access-control-request-headers", b"")
    headers = [
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", wanted if HEADERS.fullmatch(wanted) else USUAL_HEADERS),
        (b"access-control-max-age", PREFLIGHT_SECONDS),
    ]
    if b"access-control-request-private-network" in exchange.headers:
        headers.append((b"access-control-allow-private-network", b"true"))
    return headers
