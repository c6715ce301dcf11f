"""The listening sockets, and the connections that come in through them."""

from __future__ import annotations

import errno
import logging
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
ACCEPTED_AT_ONCE = 64
OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class ProtocolSettings(Config):
    def __init__(self, *, root_path: str = "") -> None:
        self.errorlog = None
        self.include_server_header = False
        self.keep_alive_max_requests = sys.maxsize
        self.h11_max_incomplete_size = HEAD_BYTES_MAX
        self.root_path = root_path
        self._date = (0, [(b"date", b"")])

    def response_headers(self, protocol: str) -> list[tuple[bytes, bytes]]:
        now = int(time.time())
        if self._date[0] != now:
            self._date = (now, [(b"date", format_date_time(now).encode())])
        return self._date[1]


class Listener:
    def __init__(self, app: Any, sockets: Sequence[socket.socket], settings: ServerSettings, *, root_path: str = "") -> None:
        self._app = app
        self._sockets = sockets
        self._settings = settings
        self._config = ProtocolSettings(root_path=root_path)
        self._context = WorkerContext(None)
        self._draining = trio.Event()
        self._connections: set[Connection] = set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for sock in self._sockets:
                    accepting.start_soon(self._accept, sock, connections, name=f"accept")
                task_status.started()
                await self._draining.wait()
                accepting.cancel_scope.cancel(reason="the server is draining")
            for sock in self._sockets:
                sock.close()
            for connection in self._connections:
                connection.drain()

    async def _accept(self, sock: socket.socket, connections: trio.Nursery) -> None:
        while True:
            await trio.lowlevel.wait_readable(sock)
            for _ in range(ACCEPTED_AT_ONCE):
                try:
                    accepted, address = sock.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno in OUT_OF_RESOURCES:
                        log.error("cannot accept connections: %s", error.strerror)
                        await trio.sleep(0.1)
                    break
                connections.start_soon(self._serve, accepted, address, name="connection")

    async def _serve(self, accepted: socket.socket, address: Any) -> None:
        transport = Transport(accepted, send_seconds=self._settings.send_timeout_s)
        addresses = parse_socket_addr(accepted.family, address), parse_socket_addr(accepted.family, accepted.getsockname())
        connection = Connection(self._app, self._config, self._context, transport, addresses, body_seconds=self._settings.body_timeout_s)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
