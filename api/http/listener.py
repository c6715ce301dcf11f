"""The listening sockets, and the connections that come in through them."""

from __future__ import annotations

import errno
import logging
import resource
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol
from wsgiref.handlers import format_date_time

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.utils import parse_socket_addr

from tripower.api.http.connection import Connection
from tripower.api.http.http2 import Http2Connection
from tripower.api.http.listening.handshake import Handshake
from tripower.api.http.listening.secure_transport import SecureTransport
from tripower.api.http.listening.tls import Certificates
from tripower.api.http.transport import Transport
from tripower.runtime.configuration import ServerSettings

log = logging.getLogger("tripower.http")

HEAD_BYTES_MAX = 32 * 1024
"""A request's line and headers together."""
CONNECTIONS_MAX = 4096
ACCEPTED_AT_ONCE = 64
PAUSE_SECONDS = 0.1
"""Pause after an accept that failed for want of descriptors or memory."""
OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Served(Protocol):
    """One stage of a connection's life. At most one of them owns its transport at a time."""

    @property
    def busy(self) -> bool:
        """Whether somebody waits for an answer."""

    async def run(self) -> None:
        """From its beginning to its end."""

    def drain(self) -> None:
        """End as soon as what is asked for is answered."""


class ProtocolSettings(Config):
    """Hypercorn's settings as we want them: no server header, no end after 1,000 requests, no logging of its own."""

    def __init__(self, root_path: str = "") -> None:
        self.errorlog = None
        self.include_server_header = False
        self.keep_alive_max_requests = sys.maxsize
        self.h11_max_incomplete_size = HEAD_BYTES_MAX
        self.root_path = root_path
        self._date: tuple[int, list[tuple[bytes, bytes]]] = (0, [])

    def response_headers(self, protocol: str) -> list[tuple[bytes, bytes]]:
        """The date, written once a second."""
        now = int(time.time())
        if self._date[0] != now:
            self._date = (now, [(b"date", format_date_time(now).encode("ascii"))])
        return self._date[1]


class Listener:
    """Accepts connections and serves an ASGI application on them. `run` is its task."""

    def __init__(
        self,
        app: Any,
        sockets: Sequence[socket.socket],
        settings: ServerSettings,
        certificates: Certificates | None = None,
    ) -> None:
        self._app = app
        self._sockets = sockets
        self._settings = settings
        self._certificates = certificates
        self._config = ProtocolSettings(settings.root_path)
        self._context = WorkerContext(None)
        self._drain = trio.Event()
        self._ended = trio.Event()
        self._connections: dict[Served, None] = {}
        self._addresses: dict[str, int] = {}
        """Open connections of each address, where their number has a limit."""
        self._connections_max = connections_max()
        self._freed = trio.Event()
        self.accepted = 0

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    @property
    def draining(self) -> bool:
        return self._drain.is_set()

    def drain(self) -> None:
        """Accept nothing more, close idle connections, and the others after their answer. Synchronous, idempotent."""
        self._drain.set()

    async def wait_quiet(self) -> None:
        """Wait until `run` has ended."""
        await self._ended.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until drained or cancelled. Closes the sockets in the first case only."""
        try:
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    for listening in self._sockets:
                        accepting.start_soon(self._accept, listening, connections, name="accept")
                    task_status.started()
                    await self._drain.wait()
                    accepting.cancel_scope.cancel(reason="the server is draining")
                for listening in self._sockets:
                    listening.close()
                await self._context.terminated.set()
                for connection in list(self._connections):
                    connection.drain()
        finally:
            self._ended.set()

    async def _accept(self, listening: socket.socket, connections: trio.Nursery) -> None:
        while True:
            await trio.lowlevel.wait_readable(listening)
            await self._make_room()
            for _ in range(min(ACCEPTED_AT_ONCE, self._connections_max - len(self._connections))):
                try:
                    accepted, address = listening.accept()
                except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                    break
                except OSError as error:
                    log.error("cannot accept a connection: %s", error.strerror)
                    if error.errno in OUT_OF_RESOURCES:
                        await trio.sleep(PAUSE_SECONDS)
                    break
                self._start(accepted, address, connections)

    async def _make_room(self) -> None:
        """When all places are taken, close the oldest connection that is idle; when none is idle, wait for one that ends."""
        if len(self._connections) < self._connections_max:
            return
        for connection in self._connections:
            if not connection.busy:
                connection.drain()
                break
        while len(self._connections) >= self._connections_max:
            if self._freed.is_set():
                self._freed = trio.Event()
            await self._freed.wait()

    def _start(self, accepted: socket.socket, address: Any, connections: trio.Nursery) -> None:
        self.accepted += 1
        unix = accepted.family == socket.AF_UNIX
        here = parse_socket_addr(accepted.family, accepted.getsockname())
        there = parse_socket_addr(accepted.family, address)
        if not self._admit(there):
            accepted.close()
            return
        first: Served
        if self._certificates is None or unix:
            transport = Transport(accepted, send_seconds=self._settings.send_timeout_s)
            first = self._first_version(transport, (there, here))
        else:
            context = self._certificates.context
            transport = SecureTransport(accepted, context, send_seconds=self._settings.send_timeout_s)
            first = Handshake(transport)
        self._connections[first] = None
        connections.start_soon(self._serve, first, transport, (there, here), name="connection")

    def _first_version(self, transport: Transport, addresses: tuple[Any, Any]) -> Connection:
        return Connection(
            self._app, self._config, self._context, transport, addresses, body_seconds=self._settings.body_timeout_s
        )

    def _second_version(self, transport: Transport, addresses: tuple[Any, Any], begun: bytes = b"") -> Http2Connection:
        return Http2Connection(
            self._app, self._config, self._context, transport, addresses,
            body_seconds=self._settings.body_timeout_s, send_seconds=self._settings.send_timeout_s, begun=begun,
        )  # fmt: skip

    async def _serve(self, stage: Served, transport: Transport, addresses: tuple[Any, Any]) -> None:
        """A connection is a stage or two or three: its handshake, HTTP/1.1, HTTP/2."""
        following: Served | None = stage
        try:
            while following is not None:
                stage = following
                self._connections[stage] = None
                if self.draining:
                    stage.drain()
                try:
                    await stage.run()
                finally:
                    del self._connections[stage]
                following = self._following(stage, transport, addresses)
        finally:
            self._leave(addresses[0])
            self._freed.set()

    def _following(self, stage: Served, transport: Transport, addresses: tuple[Any, Any]) -> Served | None:
        if isinstance(stage, Connection) and stage.http2_begun:
            return self._second_version(transport, addresses, stage.http2_begun)
        if isinstance(stage, Handshake) and stage.done:
            return (self._second_version if stage.protocol == "h2" else self._first_version)(transport, addresses)
        return None

    def _admit(self, address: tuple[str, int] | None) -> bool:
        """Whether this address may have one more connection. Unix sockets have no addresses, so there is no limit for them."""
        most = self._settings.connections_per_address
        if not most or address is None:
            return True
        count = self._addresses.get(address[0], 0)
        if count >= most:
            log.info("refused a connection: one address has %d already", count)
            return False
        self._addresses[address[0]] = count + 1
        return True

    def _leave(self, address: tuple[str, int] | None) -> None:
        if address is not None and (count := self._addresses.get(address[0])):
            if count == 1:
                del self._addresses[address[0]]
            else:
                self._addresses[address[0]] = count - 1


def connections_max() -> int:
    """Half of the descriptors that this process may have, so that files and other sockets find some."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(CONNECTIONS_MAX, descriptors // 2 if descriptors > 0 else CONNECTIONS_MAX))
