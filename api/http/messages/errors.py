"""Errors as Anthropic's clients expect them: `{"type": "error", "error": {"type", "message", …}, "request_id"}`.

The class that a client raises goes by the status, so that stays; the type says the same in Anthropic's words.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tripower.api.http.errors import MESSAGE_CHARACTERS_MAX
from tripower.runtime.kernel import TripowerError

PATH = "/v1/messages"
REQUEST_ID = b"request-id"
"""The header in which Anthropic's clients look for it."""
TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class MessagesFault(msgspec.Struct, frozen=True):
    """`code` and `param` are ours, as on every other route; Anthropic's clients pass over them."""

    type: str
    message: str
    code: str
    param: str | None = None


class MessagesError(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "error"
    error: MessagesFault
    request_id: str


def messages_error(error: TripowerError, request_id: bytes) -> MessagesError:
    """The body of an error, always valid and of bounded length."""
    kind = TYPES.get(error.status) or ("invalid_request_error" if error.status < 500 else "api_error")
    message = error.message[:MESSAGE_CHARACTERS_MAX].encode(errors="replace").decode()
    param = error.param.encode(errors="replace").decode()[:200] if error.param is not None else None
    return MessagesError(error=MessagesFault(kind, message, error.code, param), request_id=request_id.decode())


def messages_error_body(error: TripowerError, request_id: bytes) -> bytes:
    """The JSON of `messages_error`."""
    return msgspec.json.encode(messages_error(error, request_id))


def speaks_messages(path: str) -> bool:
    """Whether errors on this path have Anthropic's shape."""
    return path == PATH or path.startswith(PATH + "/")
