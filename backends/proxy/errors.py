"""How a remote server's failures are called here, one class for each reaction, as in `runtime.kernel.errors`.

The messages name the upstream and the cure. They quote what the upstream said, cut to `QUOTE_MAX`, and never a key or a prompt of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tripower.runtime.kernel.errors import InvalidRequest, NotFound, Overloaded, TripowerError, Unavailable

QUOTE_MAX = 300
RETRY_AFTER_MAX = 3600.0


class UpstreamUnreachable(Unavailable):
    """No connection, or one that broke before the answer began."""

    code = "upstream_unreachable"
    status = 502


class UpstreamTruncated(Unavailable):
    """The answer ended without saying why: its text is valid as far as it goes, and not complete."""

    code = "upstream_truncated"
    status = 502


class UpstreamProtocol(Unavailable):
    """The answer is none that an OpenAI-compatible server gives."""

    code = "upstream_protocol"
    status = 502


class UpstreamFailed(Unavailable):
    """The upstream says that it failed (a status of 5xx, or an error in the stream)."""

    code = "upstream_failed"
    status = 502


class UpstreamUnauthorised(Unavailable):
    """The upstream does not accept the key, or wants one: for whoever runs this server to mend."""

    code = "upstream_unauthorised"
    status = 502
    retryable = False


class UpstreamOverloaded(Overloaded):
    """The upstream has no room now (429)."""

    code = "upstream_overloaded"


class UpstreamRefused(InvalidRequest):
    """The upstream refuses the request itself (400, 413, 422 and their like)."""

    code = "upstream_refused"


class UpstreamModelMissing(NotFound):
    """The upstream does not know the model, or the path (404)."""

    code = "upstream_model_not_found"


UPSTREAM_ERRORS: tuple[type[TripowerError], ...] = (
    UpstreamUnreachable,
    UpstreamTruncated,
    UpstreamProtocol,
    UpstreamFailed,
    UpstreamUnauthorised,
    UpstreamOverloaded,
    UpstreamRefused,
    UpstreamModelMissing,
)

CONTEXT_LENGTH = "context_length_exceeded"
"""The one code of an upstream that callers act upon: it is passed on as it is."""


def status_error(status: int, headers: Mapping[str, str], body: bytes, *, where: str, key_variable: str) -> TripowerError:
    """The error that an answer of this status stands for. `where` names the upstream in messages."""
    said, code, param = told(body)
    because = f": {said}" if said else ""
    if 300 <= status < 400:
        return UpstreamProtocol(f"{where} answers with a redirect, which is not followed: name its final address")
    if status in (401, 403):
        cure = f"put its key into {key_variable} and start again"
        return UpstreamUnauthorised(f"{where} does not accept this server's key ({status}): {cure}{because}")
    if status == 404:
        return UpstreamModelMissing(f"{where} does not know the model or the path{because}", param="model")
    if status == 429 or (status == 503 and "retry-after" in headers):
        return UpstreamOverloaded(
            f"{where} has no room now{because}",
            status=status,
            retry_after=retry_after(headers.get("retry-after", "")),
        )
    if 400 <= status < 500 and status != 408:
        return UpstreamRefused(
            f"{where} refuses the request ({status}){because}",
            code=CONTEXT_LENGTH if code == CONTEXT_LENGTH else None,
            param=param,
        )
    return UpstreamFailed(f"{where} failed ({status}){because}")


def told(body: bytes) -> tuple[str, str, str | None]:
    """Message, code and parameter of an error body: an `error` object, an `error` string, a `detail`, or nothing that can be read."""
    try:
        decoded: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "", "", None
    if not isinstance(decoded, dict):
        return "", "", None
    return told_of(decoded.get("error", decoded.get("detail", decoded)))


def told_of(error: Any) -> tuple[str, str, str | None]:
    """The same of the value of an `error` field."""
    if not isinstance(error, dict):
        return quoted(error), "", None
    code, param = error.get("code"), error.get("param")
    return (
        quoted(error.get("message", "")),
        code[:64] if isinstance(code, str) else "",
        param[:64] if isinstance(param, str) else None,
    )


def quoted(text: Any) -> str:
    """What an upstream said, on one line and not too long; empty for what is no text."""
    if not isinstance(text, str):
        return ""
    flat = " ".join("".join(character if character.isprintable() else " " for character in text[: 4 * QUOTE_MAX]).split())
    return flat if len(flat) <= QUOTE_MAX else flat[: QUOTE_MAX - 1] + "…"


def retry_after(value: str) -> float | None:
    """Seconds of a `retry-after` header; None for a date or for nothing that can be read."""
    if not (value.isascii() and value.isdecimal() and len(value) <= 9):
        return None
    return min(float(value), RETRY_AFTER_MAX)
