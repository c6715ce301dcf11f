"""`GET /ui`, its two files, and `GET /ui/state`, which the status view asks once a second while somebody looks at it."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.routing import Route

from tripower.api.http.answers import encode
from tripower.api.http.auth.middleware import require_admin
from tripower.api.http.exchange import EXCHANGE, Exchange
from tripower.api.http.service import Service
from tripower.api.http.ui.files import FILES, GUARDS, File
from tripower.api.overview.figures import Overview
from tripower.runtime.kernel import ActorStatistics


class ActorOut(msgspec.Struct, frozen=True, kw_only=True):
    """An actor at this moment, as the tree shows it. Parents come before their children; the root's parent is empty."""

    name: str
    kind: str
    parent: str
    state: str
    message: str | None
    """What it has in hand."""
    handling_seconds: float
    inbox: int
    inbox_max: int
    inbox_peak: int
    pending: int
    handled: int
    restarts: int


class StateOut(msgspec.Struct, frozen=True, kw_only=True):
    """What the status view shows."""

    overview: Overview
    actors: tuple[ActorOut, ...]


class PageFile:
    """An ASGI callable that answers with one file, or with 304 where the browser has it already."""

    def __init__(self, file: File) -> None:
        self._file = file

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope[EXCHANGE]
        file = self._file
        if exchange.path.endswith("/"):  # what the page names is beside it
            await redirect(exchange, f"../{file.path.rpartition('/')[2]}")
        elif knows(exchange, file.etag):
            await exchange.answer_unchanged(file.headers)
        else:
            await exchange.answer(200, file.content, content_type=file.content_type, headers=file.headers)


class UiState:
    """The server's state. Where a key is an administrator's, only those see it; else everybody who has one, where there are keys."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope[EXCHANGE]
        if any(key.admin for key in self._service.keyring.keys):
            require_admin(exchange, self._service)
        overview = await self._service.overview.look()
        actors = tuple(map(actor_out, self._service.runtime.statistics()))
        await exchange.answer(
            200, encode(StateOut(overview=overview, actors=actors)), headers=(*GUARDS, (b"cache-control", b"no-store"))
        )


def actor_out(actor: ActorStatistics) -> ActorOut:
    """What the page shows of an actor; what it publishes itself is in the overview."""
    return ActorOut(**{name: getattr(actor, name) for name in ActorOut.__struct_fields__})


def ui_routes(service: Service) -> list[Route]:
    """The page's routes; none where `server.ui` is off."""
    if not service.server.ui:
        return []
    return [
        *(Route(file.path, PageFile(file), methods=["GET"], name=file.route) for file in FILES),
        Route("/ui/state", UiState(service), methods=["GET"], name="ui_state"),
    ]


def wants_page(exchange: Exchange) -> bool:
    """Whether a browser, and no program, asks for the root."""
    return (
        exchange.method in ("GET", "HEAD")
        and exchange.path in ("", "/")
        and b"text/html" in exchange.headers.get(b"accept", b"")
    )


async def redirect(exchange: Exchange, location: str) -> None:
    """Send a browser to a place beside this one: relative, so that it is right behind every proxy."""
    await exchange.answer(307, b"", content_type=b"text/plain", headers=(*GUARDS, (b"location", location.encode())))


def knows(exchange: Exchange, etag: bytes) -> bool:
    """Whether the browser has this very content."""
    return etag in [each.strip().removeprefix(b"W/") for each in exchange.headers.get(b"if-none-match", b"").split(b",")]
