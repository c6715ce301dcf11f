"""The way to the server that `--url` names: over TCP, over TLS, over a Unix socket; and what keeps one from getting there.

What can be wrong on the way has a cure of its own each: nobody listens, a certificate is not trusted or is another host's, one side
speaks TLS and the other does not. "No server answers" is said of the first only.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import httpx

from tripower.api.cli.event_stream import EventTooLong
from tripower.api.cli.problems import CannotConnect, StreamCut
from tripower.api.pull.responses import is_loopback
from tripower.runtime.kernel import InvalidConfiguration, InvalidRequest

CONNECT_SECONDS = 10.0
CERTIFICATE_FILE = "SSL_CERT_FILE"
UNIX = "unix:"
OTHER_HOST = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_OTHER_SCHEME = re.compile(r"(?!https?:)[A-Za-z][A-Za-z0-9+.-]*:(?!\d+(/|\Z))")
"""`ftp://host`, `file:path`; not `localhost:8420`."""


@attrs.frozen
class Address:
    """Where a server is. `base` ends in a slash and may have a path; `socket` is the path of its Unix socket, or empty."""

    base: str
    socket: str = ""

    def __str__(self) -> str:
        return f"{UNIX}{self.socket}" if self.socket else self.base.rstrip("/")

    @property
    def local(self) -> bool:
        """Whether it is this machine, which is never reached through a proxy."""
        return bool(self.socket) or is_loopback(urlsplit(self.base).hostname or "")


class ServerClient(httpx.AsyncClient):
    """A client of one server."""

    def __init__(self, address: Address, **options: Any) -> None:
        super().__init__(base_url=address.base, **options)
        self.address = address


def address_of(url: str) -> Address:
    """The address without query and fragment, and without a final `/v1`, which people copy along. Raises `InvalidRequest`."""
    if url.startswith(UNIX):
        path = url.removeprefix(UNIX)
        path = path.removeprefix("//") if path.startswith("///") else path
        if path.strip("/"):
            return Address("http://localhost/", str(Path(path).expanduser()))
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        httpx.URL(parts.geturl())
        usable = (
            not re.search(r"\s", url) and parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        )
    except (ValueError, httpx.InvalidURL):
        usable = False
    if not usable or _OTHER_SCHEME.match(url):
        raise InvalidRequest(
            f"{url} is no address of a server: expected something like http://127.0.0.1:8420, or {UNIX}PATH for a Unix socket",
            param="url",
        )
    return Address(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}/")


@asynccontextmanager
async def open_client(url: str, *, cacert: str | None = None) -> AsyncIterator[ServerClient]:
    """A client for this address. Raises `InvalidRequest` when it is none, `InvalidConfiguration` for a bad file of certificates.

    `TRIPOWER_API_KEY` is sent as a bearer token. `cacert`, else `SSL_CERT_FILE`, names what is trusted in place of the well-known authorities.
    """
    address = address_of(url)
    key = os.environ.get("TRIPOWER_API_KEY")
    context = trusted(cacert, os.environ) if address.base.startswith("https:") else None
    # nothing is encrypted without a context, and redirects are not followed: building one would only take time
    verify: Any = False if context is None else context
    async with ServerClient(
        address,
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
        trust_env=not address.local,
        verify=verify,
        transport=httpx.AsyncHTTPTransport(uds=address.socket, verify=verify) if address.socket else None,
    ) as client:
        yield client


def trusted(cacert: str | None, environment: Mapping[str, str]) -> ssl.SSLContext:
    """Whose certificates are accepted. Blocks for a file. Raises `InvalidConfiguration` naming it."""
    file, said = (cacert, "--cacert") if cacert else (environment.get(CERTIFICATE_FILE), CERTIFICATE_FILE)
    if not file:
        return httpx.create_ssl_context()
    try:
        context = ssl.create_default_context(cafile=str(Path(file).expanduser()))
    except OSError as error:  # ssl.SSLError is one
        why = "it holds no certificate in PEM form" if isinstance(error, ssl.SSLError) else error.strerror
        raise InvalidConfiguration(f"{said} {file} cannot be used: {why}", param=said) from error
    context.verify_flags |= (
        ssl.VERIFY_X509_PARTIAL_CHAIN
    )  # a server's own certificate may be named too, not only its authority's
    return context


@contextmanager
def mapped_errors(client: httpx.AsyncClient) -> Iterator[None]:
    """Turn what httpx raises into errors that say what to do."""
    address = str(client.address if isinstance(client, ServerClient) else client.base_url).rstrip("/")
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise CannotConnect(not_reached(address, error)) from error
    except httpx.RemoteProtocolError as error:
        if address.startswith("http:"):
            raise StreamCut(f"what answers at {address} does not speak HTTP; if it speaks TLS, write https://") from error
        raise StreamCut(f"the connection to {address} failed: {error}") from error
    except (httpx.HTTPError, EventTooLong) as error:
        raise StreamCut(f"the connection to {address} failed: {error or type(error).__name__}") from error


def not_reached(address: str, error: BaseException) -> str:
    """Why there is no connection, and what to do."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            if cause.verify_code in OTHER_HOST:
                return f"the certificate of {address} is another host's: {cause.verify_message}; use a name that it has"
            return (
                f"the certificate of {address} is not accepted: {cause.verify_message}; "
                f"if it is the right server, name its certificate, or its authority's, in --cacert FILE or {CERTIFICATE_FILE}"
            )
        if isinstance(cause, ssl.SSLError):
            return f"what answers at {address} does not speak TLS ({cause.reason}): write http:// if that is meant"
        if isinstance(cause, PermissionError):
            return f"{address} may not be opened by this user: server.unix_socket_mode 660 lets the group in"
    return f"no server answers at {address}: start one with `tripower serve MODEL`, or name another with --url"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
