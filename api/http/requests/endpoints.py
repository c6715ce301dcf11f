"""`GET /v1/requests`, `DELETE /v1/requests/{id}` and `POST /v1/requests/{id}/cancel`.

A caller sees and ends its own requests, an administrator everybody's. An id is the `x-request-id` of the request. One that is unknown
and one that is somebody else's are the same 404, so that nobody can try out ids.

A cancellation is answered when the request has ended: its client has been told, and its seat is free.
"""

from __future__ import annotations

from typing import Any

import msgspec
import trio
from msgspec import UNSET, UnsetType

from tripower.api.http.answers import encode
from tripower.api.http.bodies import check_content_type
from tripower.api.http.exchange import CLIENT_LEFT, EXCHANGE, Exchange
from tripower.api.http.service import Service
from tripower.runtime.kernel import InvalidRequest, TripowerError


class RequestOut(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waits or runs."""

    id: str
    object: str = "request"
    model: str
    route: str
    state: str
    """`waiting` until the first token is there, then `running`."""
    age_seconds: float
    prompt_tokens: int
    completion_tokens: int
    identity: str | UnsetType = UNSET
    """Whose it is; for administrators."""


class RequestListOut(msgspec.Struct, frozen=True):
    """The oldest first."""

    data: tuple[RequestOut, ...]
    object: str = "list"


class CancelledOut(msgspec.Struct, frozen=True):
    """It has ended."""

    id: str
    object: str = "request.cancelled"
    cancelled: bool = True


class ListRequests:
    """What the caller has asked of models and is not answered yet."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope[EXCHANGE]
        mine = sorted(visible(self._service, exchange), key=lambda other: other.began)
        now = trio.current_time()
        await exchange.answer(200, encode(RequestListOut(tuple(request_out(each, now, exchange.admin) for each in mine))))


class CancelRequest:
    """Ends the caller's requests of one id. Cancelling twice at the same time is answered twice with success."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope[EXCHANGE]
        if exchange.method == "POST":
            check_content_type(exchange)
        wanted: str = scope["path_params"]["id"]
        found = [each for each in visible(self._service, exchange) if each.request_id.decode() == wanted]
        if not found:
            raise InvalidRequest(
                f"no request {wanted[:128]!r} of yours waits or runs", code="request_not_found", status=404,
                kind="not_found_error", param="id",
            )  # fmt: skip
        for each in found:
            each.cancel(cancellation())
        with exchange.interruptible(exchange.deadline(self._service.scheduler.deadline_max_s)):
            for each in found:
                await each.over.wait()
            await self._service.runtime.settle()
        await exchange.answer(200, encode(CancelledOut(wanted)))


def visible(service: Service, exchange: Exchange) -> list[Exchange]:
    """The requests to models that a caller may see."""
    return [
        other
        for other in service.active
        if (other.asked is not None or other.model) and (exchange.admin or other.caller.identity == exchange.caller.identity)
    ]


def cancellation() -> TripowerError:
    """What the client of a cancelled request hears."""
    return TripowerError("the request was cancelled by its caller", code="request_cancelled", status=CLIENT_LEFT)


def request_out(exchange: Exchange, now: float, admin: bool) -> RequestOut:
    """One line of the list."""
    return RequestOut(
        id=exchange.request_id.decode(),
        model=exchange.asked.model if exchange.asked is not None else exchange.model,
        route=exchange.path[:200],
        state="running" if exchange.answering else "waiting",
        age_seconds=round(now - exchange.began, 3),
        prompt_tokens=exchange.prompt_tokens,
        completion_tokens=exchange.completion_tokens,
        identity=exchange.caller.label if admin else UNSET,
    )
