"""Errors as OpenAI clients expect them: `{"error": {"message", "type", "param", "code"}}` and the headers that steer retries.

The official client tries twice more after 408, 409, 429 and 5xx, obeys `x-should-retry`, `retry-after-ms` and `retry-after` in this
order, and gives up at once when the wait is longer than 120 s.
"""

from __future__ import annotations

import math

import msgspec

from tripower.api.http.exchange import Header
from tripower.runtime.kernel import TripowerError

RETRY_AFTER_MAX = 120.0
RETRY_AFTER_DEFAULT = 1.0
MESSAGE_CHARACTERS_MAX = 2000


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


def internal_error(request_id: bytes) -> TripowerError:
    """What a client hears of a fault that nobody expected. The log knows the rest, under the same id."""
    return TripowerError(f"something went wrong inside the server; request {request_id.decode()}")


def error_body(error: TripowerError) -> bytes:
    """The JSON of an error, always valid and of bounded length."""
    message = error.message[:MESSAGE_CHARACTERS_MAX].encode(errors="replace").decode()
    param = error.param.encode(errors="replace").decode()[:200] if error.param is not None else None
    return msgspec.json.encode(ErrorBody(ErrorDetail(message, error.kind, param, error.code)))


def error_headers(error: TripowerError) -> list[Header]:
    """Whether and when to come back, and with what."""
    if error.status == 401:
        return [(b"www-authenticate", b"Bearer")]
    if error.status < 500 and error.status != 429:
        return []
    if not error.retryable:
        return [(b"x-should-retry", b"false")]
    seconds = error.retry_after
    if seconds is None or not math.isfinite(seconds):
        seconds = RETRY_AFTER_DEFAULT
    milliseconds = round(1000 * min(max(seconds, 0.001), RETRY_AFTER_MAX))
    return [(b"retry-after", b"%d" % math.ceil(milliseconds / 1000)), (b"retry-after-ms", b"%d" % milliseconds)]
