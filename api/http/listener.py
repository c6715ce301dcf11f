"""The listening sockets, and the connections that come in through them."""

from __future__ import annotations

import errno
import logging
import resource
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any
from wsgiref.handlers import format_date_time

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.utils import parse_socket_addr

from tripower.api.http.connection import Connection
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


class ProtocolSettings(Config):
    """Hypercorn's settings as we want them: no server header, no end after 1,000 requests, no logging of its own."""

    def __init__(self) -> None:
        self.errorlog = None
        self.include_server_header = False
        self.keep_alive_max_requests = sys.maxsize
        self.h11_max_incomplete_size = HEAD_BYTES_MAX
        self._date: tuple[int, list[tuple[bytes, bytes]]] = (0, [])

    def response_headers(self, protocol: str) -> list[tuple[bytes, bytes]]:
        """The date, written once a second."""
        now = int(time.time())
        if self._date[0] != now:
            self._date = (now, [(b"date", format_date_time(now).encode("ascii"))])
        return self._date[1]


class Listener:
    """Accepts connections and serves an ASGI application on them. `run` is its task."""

    def __init__(self, app: Any, sockets: Sequence[socket.socket], settings: ServerSettings) -> None:
        self._app = app
        self._sockets = sockets
        self._settings = settings
        self._config = ProtocolSettings()
        self._context = WorkerContext(None)
        self._drain = trio.Event()
        self._ended = trio.Event()
        self._connections: dict[Connection, None] = {}
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
                for connection in self._connections:
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
        transport = Transport(accepted, send_seconds=self._settings.send_timeout_s)
        here = parse_socket_addr(accepted.family, accepted.getsockname())
        there = parse_socket_addr(accepted.family, address)
        connection = Connection(
            self._app, self._config, self._context, transport, (there, here), body_seconds=self._settings.body_timeout_s
        )
        self._connections[connection] = None
        connections.start_soon(self._serve, connection, name="connection")

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            del self._connections[connection]
            self._freed.set()


def connections_max() -> int:
    """Half of the descriptors that this process may have, so that files and other sockets find some."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(CONNECTIONS_MAX, descriptors // 2 if descriptors > 0 else CONNECTIONS_MAX))
