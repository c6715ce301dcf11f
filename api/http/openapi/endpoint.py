"""`GET /openapi.json`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.routing import Route

from tripower.api.http.answers import encode
from tripower.api.http.auth.keyring import Keyring
from tripower.api.http.exchange import EXCHANGE

OPENAPI_PATH = "/openapi.json"


class OpenApi:
    """The document about all given routes and itself, made when it is first asked for. `keyring` says whether keys are asked for."""

    def __init__(self, routes: Iterable[Route], keyring: Keyring) -> None:
        self._keyring = keyring
        self._routes = [*routes, Route(OPENAPI_PATH, self, methods=["GET"], name="openapi")]
        self._document: bytes | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._document is None:
            from tripower.api.http.openapi.document import openapi_document

            self._document = encode(openapi_document(self._routes, scope.get("root_path", ""), keys=self._keyring.enabled))
        await scope[EXCHANGE].answer(200, self._document)
