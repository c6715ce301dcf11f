"""The part of `tripower doctor` about where `serve` would listen: free, taken by a server of ours, or not to be had.

A server of ours is recognised the way it speaks: over TLS where the settings say so, and over its Unix socket.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from tripower.api.http.auth import keys_configured
from tripower.api.http.binding import bind, reachable
from tripower.api.http.listening.exposure import check_exposure
from tripower.runtime.configuration import Configuration, ServerSettings
from tripower.runtime.kernel.errors import TripowerError

PROBE_SECONDS = 1.0
IN_USE = ("port_in_use", "socket_in_use")


class ListenerFinding(msgspec.Struct, frozen=True):
    """What there is to say of one place to listen at."""

    name: str
    value: str
    reason: str = ""
    state: Literal["ok", "note", "fail"] = "ok"


def listener(configuration: Configuration) -> Iterator[ListenerFinding]:
    """Whether `serve` would find its places free, or is there already. Blocks for a second at each place at most."""
    server = configuration.server
    try:
        check_exposure(server, has_keys=keys_configured(configuration))
    except TripowerError as error:
        yield ListenerFinding("exposure", "refused", error.message, "fail")
    if server.tcp or not server.unix_socket:
        alone = msgspec.structs.replace(server, unix_socket="")
        over = " over TLS" if server.tls_certificate else ""
        yield _place(f"{server.host} port {server.port}", alone, lambda: _tcp(server), over)
    if server.unix_socket:
        alone = msgspec.structs.replace(server, tcp=False, tls_certificate="", tls_key="", tls_key_password_file="")
        yield _place(f"unix:{server.unix_socket}", alone, lambda: _Unix(server.unix_socket))


def _place(
    name: str, alone: ServerSettings, connect: Callable[[], http.client.HTTPConnection], over: str = ""
) -> ListenerFinding:
    try:
        with bind(alone):
            return ListenerFinding(name, "free", over.strip())
    except TripowerError as error:
        if error.code in IN_USE and is_ours(connect()):
            return ListenerFinding(name, "in use", f"a tripower server answers there{over}", "note")
        return ListenerFinding(name, "not to be had", error.message, "fail")


def is_ours(connection: http.client.HTTPConnection) -> bool:
    """Whether a tripower server answers. Blocks for a second at most."""
    try:
        connection.request("GET", "/ready")
        return "ready" in msgspec.json.decode(connection.getresponse().read(), type=dict[str, object])
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return False
    finally:
        connection.close()


def _tcp(server: ServerSettings) -> http.client.HTTPConnection:
    host = reachable(server.host).strip("[]")
    if not server.tls_certificate:
        return http.client.HTTPConnection(host, server.port, timeout=PROBE_SECONDS)
    # its certificate may be for the name that others know this machine by, and nothing is told that others may not know
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, server.port, timeout=PROBE_SECONDS, context=context)


class _Unix(http.client.HTTPConnection):
    """A connection by a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PROBE_SECONDS)
        self._path = str(Path(path).expanduser().absolute())

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PROBE_SECONDS)
        self.sock.connect(self._path)
