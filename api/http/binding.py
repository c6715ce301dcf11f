"""Listening sockets of our own, bound before anything expensive happens.

A port that is taken, or an address that is not this machine's, is a message with its cure, not a failure after a model was loaded.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs

from tripower.api.http.listening.tls import Certificates, certificates
from tripower.api.http.listening.unix_socket import UnixSocket
from tripower.api.http.transport import set_keep_alive, set_user_timeout
from tripower.runtime.configuration import ServerSettings
from tripower.runtime.kernel import InvalidConfiguration

BACKLOG = 1024
FREE_PORT_TRIES = 16
NO_SUCH_FAMILY = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT}


@attrs.frozen
class BoundSockets:
    """Sockets that listen already; connections wait in the kernel until somebody accepts them. A context manager that closes them."""

    sockets: tuple[socket.socket, ...]
    url: str
    """Where a client on this machine reaches them; `unix:PATH` when there is only a Unix socket."""
    port: int
    """0 when there is only a Unix socket."""
    certificates: Certificates | None = None
    """What TCP connections are encrypted with."""
    unix: UnixSocket | None = None

    def close(self) -> None:
        """Close what is still open, and remove the Unix socket. Idempotent."""
        for each in self.sockets:
            each.close()
        if self.unix is not None:
            self.unix.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def bind(settings: ServerSettings) -> BoundSockets:
    """Listen on every address of `settings.host`, and on the Unix socket if there is one. Blocks for a name look-up and small files.

    A name with addresses of both families is bound on those that this machine has. Raises `InvalidConfiguration`.
    """
    secure = certificates(settings)
    if not settings.unix_socket:
        if not settings.tcp:
            raise InvalidConfiguration("server.tcp is off: name a path in server.unix_socket", code="no_listener")
        return _bind_tcp(settings, secure)
    place = Path(settings.unix_socket).expanduser().absolute()  # it is told to people in other folders too
    tcp = _bind_tcp(settings, secure) if settings.tcp else BoundSockets((), f"unix:{place}", 0)
    try:
        unix = UnixSocket.listen(settings.unix_socket, int(settings.unix_socket_mode, 8), BACKLOG)
    except BaseException:
        tcp.close()
        raise
    return attrs.evolve(tcp, sockets=(*tcp.sockets, unix.socket), unix=unix)


def _bind_tcp(settings: ServerSettings, secure: Certificates | None) -> BoundSockets:
    host, port = settings.host, settings.port
    for _ in range(FREE_PORT_TRIES):
        try:
            sockets = _bind_all(_addresses(host, port), port, settings)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port == 0:
                continue  # the free port of the first family is taken in the second
            raise _refusal(host, port, error) from error
        bound = int(sockets[0].getsockname()[1])
        return BoundSockets(tuple(sockets), f"{'https' if secure else 'http'}://{reachable(host)}:{bound}", bound, secure)
    raise InvalidConfiguration(f"no port is free on all addresses of {host}: give one with --port", code="port_in_use")


def reachable(host: str) -> str:
    """The host for a URL: a wildcard address becomes the loopback of its family, an IPv6 address gets brackets."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"[{address}]" if address.version == 6 else str(address)


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidConfiguration(
            f"server.host {host!r} means no address here: use 127.0.0.1, or 0.0.0.0 for all", code="host_unknown"
        ) from error
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))  # type: ignore[misc]  # two or four fields


def _bind_all(
    addresses: Sequence[tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]],
    port: int,
    settings: ServerSettings,
) -> list[socket.socket]:
    """All or nothing, except for addresses whose family this machine lacks when there are others."""
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address in addresses:
            try:
                sockets.append(_listen(family, (address[0], port, *address[2:]), settings))
            except OSError as error:
                if error.errno not in NO_SUCH_FAMILY:
                    raise
                missing = error
            else:
                port = sockets[0].getsockname()[1]
        if not sockets:
            raise missing or OSError(errno.EADDRNOTAVAIL, "no address")
    except BaseException:
        for each in sockets:
            each.close()
        raise
    return sockets


def _listen(family: socket.AddressFamily, address: tuple[object, ...], settings: ServerSettings) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited by accepted sockets, as is the next one
        set_user_timeout(listening, settings.send_timeout_s)
        set_keep_alive(listening)
        if family == socket.AF_INET6:
            # `::` means every address of the machine, any other address itself.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, settings.host != "::")
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _refusal(host: str, port: int, error: OSError) -> InvalidConfiguration:
    if error.errno == errno.EADDRINUSE:
        return InvalidConfiguration(
            f"port {port} on {host} is in use: stop what listens there, or choose another with --port (0 takes a free one)",
            code="port_in_use",
        )
    if error.errno == errno.EACCES:
        return InvalidConfiguration(
            f"port {port} on {host} needs privileges that this process lacks: choose one from 1024 on with --port",
            code="port_forbidden",
        )
    if error.errno in NO_SUCH_FAMILY:
        cure = "use 0.0.0.0: this machine has no IPv6" if ":" in host else "use 127.0.0.1, or 0.0.0.0 for all"
        return InvalidConfiguration(f"server.host {host} is no address of this machine: {cure}", code="address_unavailable")
    return InvalidConfiguration(f"cannot listen on {host} port {port}: {error.strerror or error}", code="bind_failed")
