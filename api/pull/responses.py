"""One HTTP exchange of a download: following redirects, and turning statuses and broken connections into typed errors."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

import trio

from tripower.runtime.kernel.errors import InvalidRequest, NotFound, Overloaded, TripowerError, Unavailable

if TYPE_CHECKING:
    import httpx

REDIRECTS_MAX = 10
CONNECT_SECONDS = 30.0
SILENCE_SECONDS = 60.0
RETRY_AFTER_MAX = 120.0
_downloading: ContextVar[bool] = ContextVar("tripower_downloading", default=False)


class BrokenOff(Exception):
    """The connection ended, or fell silent, before the answer was complete."""


def is_loopback(host: str) -> bool:
    """Whether a host can only be this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _leave_out(record: logging.LogRecord) -> bool:
    """httpx logs every address, and a redirect's address is often a signed permission."""
    return not _downloading.get()


@asynccontextmanager
async def download_client() -> AsyncIterator[httpx.AsyncClient]:
    """A client with the timeouts of a download and the proxies and certificates of the environment; it logs no addresses."""
    import httpx

    logging.getLogger("httpx").addFilter(_leave_out)  # the same function is added once only
    token = _downloading.set(True)
    try:
        timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
        async with httpx.AsyncClient(
            timeout=timeout, headers={"accept-encoding": "identity", "user-agent": "tripower"}
        ) as client:
            yield client
    finally:
        _downloading.reset(token)


@contextmanager
def translated_errors(source: str) -> Iterator[None]:
    """Map the client's exceptions: a broken connection to `BrokenOff`, an address that is none to `InvalidRequest`."""
    import httpx

    try:
        yield
    except httpx.TimeoutException as error:
        raise BrokenOff(f"{source} did not answer in time") from error
    except (httpx.TransportError, httpx.StreamError) as error:
        if isinstance(error, httpx.UnsupportedProtocol):
            raise InvalidRequest(
                f"{source} leads to an address that cannot be fetched", code="invalid_model_reference"
            ) from error
        raise BrokenOff(f"the connection to {source} failed: {str(error) or type(error).__name__}") from error
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"{source} is no address that can be fetched", code="invalid_model_reference") from error


@asynccontextmanager
async def open_response(
    client: httpx.AsyncClient, url: str, headers: Mapping[str, str], source: str
) -> AsyncIterator[tuple[httpx.Response, httpx.Headers]]:
    """The final response, its body unread, and the headers of the first one, where a hub tells what the file is.

    Credentials among `headers` are dropped by the client when a redirect leaves their host. Raises `BrokenOff` and typed errors.
    """
    with translated_errors(source):
        request = client.build_request("GET", url, headers=dict(headers))
        first: httpx.Headers | None = None
        for _ in range(REDIRECTS_MAX + 1):
            response = await client.send(request, stream=True)
            try:
                first = response.headers if first is None else first
                if response.next_request is None:
                    yield response, first
                    return
                _refuse_downgrade(request, response.next_request, source)
                request = response.next_request
            finally:
                await response.aclose()
    raise Unavailable(f"{source} redirects more than {REDIRECTS_MAX} times", code="redirect_loop")


@asynccontextmanager
async def received(response: httpx.Response, source: str) -> AsyncIterator[AsyncIterator[bytes]]:
    """The chunks of a body as they come, not decoded. Raises `BrokenOff` where the connection does.

    Leaving early is clean: the client's chain of generators ends properly only when an exception passes through all of it from the
    innermost wait, so one more wait is begun in a scope that is cancelled already.
    """
    import httpx

    chunks = response.aiter_raw()
    try:
        with translated_errors(source):
            yield chunks
    finally:
        with suppress(httpx.HTTPError), trio.CancelScope() as scope:
            scope.cancel(reason="the rest of the body is not wanted")
            async for _ in chunks:
                pass


def _refuse_downgrade(request: httpx.Request, following: httpx.Request, source: str) -> None:
    if request.url.scheme == "https" and following.url.scheme != "https" and not is_loopback(following.url.host):
        raise Unavailable(
            f"{source} redirects from https to plain {following.url.scheme}, which is refused", code="insecure_redirect"
        )


def status_error(response: httpx.Response, source: str) -> TripowerError:
    """The typed error for a status that is no success, with what to do about it."""
    status = response.status_code
    if status in (401, 403):
        return InvalidRequest(
            f"{source} is not open to you ({status}): accept its licence on its page and set TRIPOWER_HUB_TOKEN (or HF_TOKEN)",
            code="source_denied",
            status=status,
        )
    if status in (404, 410):
        return NotFound(f"{source} does not exist ({status}): check its spelling", code="artifact_not_found")
    if status == 429 or status == 503:
        seconds = retry_after_seconds(response)
        when = "" if seconds is None else f" in {seconds:.0f} s"
        return Overloaded(f"{source} is busy ({status}): pull again{when}", code="source_busy", retry_after=seconds)
    return Unavailable(f"{source} answered {status} {response.reason_phrase}: pull again later", code="source_failed")


def retry_after_seconds(response: httpx.Response) -> float | None:
    """The server's wish in whole seconds, bounded; None where it states none or a date."""
    text = response.headers.get("retry-after", "")
    return min(float(text), RETRY_AFTER_MAX) if text.isdecimal() else None
