"""Where a remote server is: `http[s]://host[:port]/base/path#model`, checked before anything is sent.

Query and user are refused rather than dropped, since both may hold secrets that would end up in lists. Plain http shows everybody on the
way what is asked, and anybody there may answer: it is for this machine, or where `proxy.allow_plain` says that the way is safe.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import quote, unquote, urlsplit

import msgspec

from tripower.runtime.kernel.errors import InvalidRequest

PREFIX = "proxy:"
FORM = "proxy:https://HOST[:PORT]/v1#MODEL"
ADDRESS_BYTES_MAX = 4096
_UNFIT = re.compile(r"[\x00-\x20\x7f\ud800-\udfff\\]")


class Upstream(msgspec.Struct, frozen=True):
    """A server and one of its models. `base` ends without a slash; an empty `model` means the only one there."""

    base: str
    model: str

    @property
    def text(self) -> str:
        """The canonical form, which `parse_upstream` reads."""
        return f"{self.base}#{quote(self.model, safe='/:@+,')}" if self.model else self.base

    @property
    def origin(self) -> str:
        """Host and port, for messages."""
        return urlsplit(self.base).netloc

    def url(self, path: str) -> str:
        """The address of an endpoint."""
        return f"{self.base}/{path}"


def parse_upstream(text: str, *, allow_plain: bool) -> Upstream:
    """The server and model that a source names, with or without the prefix. Raises `InvalidRequest` naming the form."""
    address = text.removeprefix(PREFIX)
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _refused("the address is malformed") from error
    if parts.scheme not in ("http", "https") or not host:
        raise _refused("the address begins with https:// and a host")
    if len(address.encode(errors="replace")) > ADDRESS_BYTES_MAX or _UNFIT.search(address):
        raise _refused("the address is too long or has characters that none has")
    if "@" in parts.netloc:
        raise _refused("credentials in an address would end up in lists and logs: put the key into TRIPOWER_UPSTREAM_KEY")
    if parts.query:
        raise _refused("an address has no query")
    if parts.scheme == "http" and not (allow_plain or is_loopback(host)):
        raise _refused("plain http shows what is asked to everybody on the way: use https, or set proxy.allow_plain=true")
    shown = f"[{host}]" if ":" in host else host
    netloc = shown if port is None else f"{shown}:{port}"
    return Upstream(f"{parts.scheme}://{netloc}{_path(parts.path)}", unquote(parts.fragment))


def _path(path: str) -> str:
    segments = [unquote(segment) for segment in path.split("/") if segment]
    if any(segment in (".", "..") or "/" in segment for segment in segments):
        raise _refused("the path of an address has no dots and no escaped slashes")
    return "".join("/" + quote(segment, safe="") for segment in segments)


def is_loopback(host: str) -> bool:
    """Whether only this machine can be meant."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(f"this cannot be a remote model: {reason}. Write {FORM}", code="invalid_model_reference")
