"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

from starlette.routing import Route

from tripower.api.http.dialects.counting import count_tokens
from tripower.api.http.dialects.endpoint import DialectEndpoint
from tripower.api.http.messages.requests import COUNT_TOKENS, MESSAGES, CountTokensIn, MessagesIn
from tripower.api.http.messages.writer import MessageWriter
from tripower.api.http.service import Service
from tripower.api.http.tokens.endpoints import TokenEndpoint
from tripower.api.http.tokens.work import TextWork


def messages_routes(service: Service, work: TextWork) -> list[Route]:
    """The dialect's routes."""
    messages = DialectEndpoint[MessagesIn](service, MESSAGES, MessageWriter, fills_context=True)
    count = TokenEndpoint[CountTokensIn](service, work, COUNT_TOKENS, count_tokens)
    return [
        Route("/v1/messages", messages, methods=["POST"], name="messages"),
        Route("/v1/messages/count_tokens", count, methods=["POST"], name="count_tokens"),
    ]
