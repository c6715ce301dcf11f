"""`GET /openapi.json`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.routing import Route

from tripower.api.http.answers import encode
from tripower.api.http.exchange import EXCHANGE

OPENAPI_PATH = "/openapi.json"


class OpenApi:
    """The document about all given routes and itself, made when it is first asked for."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = [*routes, Route(OPENAPI_PATH, self, methods=["GET"], name="openapi")]
        self._document: bytes | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._document is None:
            from tripower.api.http.openapi.document import openapi_document

            self._document = encode(openapi_document(self._routes, scope.get("root_path", "")))
        await scope[EXCHANGE].answer(200, self._document)
