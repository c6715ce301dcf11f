"""`POST /v1/responses` and `POST /v1/responses/input_tokens`."""

from __future__ import annotations

from starlette.routing import Route

from tripower.api.http.dialects.counting import count_input_tokens
from tripower.api.http.dialects.endpoint import DialectEndpoint
from tripower.api.http.responses.requests import RESPONSE, ResponseIn
from tripower.api.http.responses.writer import ResponseWriter
from tripower.api.http.service import Service
from tripower.api.http.tokens.endpoints import TokenEndpoint
from tripower.api.http.tokens.work import TextWork


def responses_routes(service: Service, work: TextWork) -> list[Route]:
    """The dialect's routes."""
    count = TokenEndpoint[ResponseIn](service, work, RESPONSE, count_input_tokens)
    names = {"messages": "input", "max_tokens": "max_output_tokens"}
    endpoint = DialectEndpoint[ResponseIn](service, RESPONSE, ResponseWriter, names=names)
    return [
        Route("/v1/responses", endpoint, methods=["POST"], name="responses"),
        Route("/v1/responses/input_tokens", count, methods=["POST"], name="responses_input_tokens"),
    ]
