"""What arrives of one request: the ASGI `receive` of its application."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import trio

from tripower.runtime.kernel import TripowerError

UNREAD_BYTES_MAX = 1 << 20
"""Body bytes that may wait for the application; beyond that, reading from the client pauses."""


class BodyTimeout(TripowerError):
    """The body did not arrive in time."""

    code = "request_timeout"
    status = 408
    kind = "invalid_request_error"


class Source(Protocol):
    """Where a request comes from: a connection, or one stream of it."""

    @property
    def awaits_continue(self) -> bool:
        """Whether the client waits for `100 Continue`."""

    @property
    def waiting_since(self) -> float | None:
        """Since when bytes of the answer have been waiting for the client to take them; None while none do."""

    def cut(self, reason: str) -> None:
        """Give up an answer that the client does not read, and whoever works on it. Synchronous, idempotent."""

    async def send_continue(self) -> None:
        """Tell it to go on. Blocks while it takes nothing."""

    def body_complete(self) -> None:
        """The end of the body has been put."""


class Incoming:
    """One writer, the connection, and one reader, the application."""

    __slots__ = ("_arrived", "_failure", "_messages", "_read", "_source", "_unread", "client_left")

    def __init__(self, source: Source) -> None:
        self.client_left = False
        """Whether the client went before its answer was complete. Its application is cancelled then."""
        self._source = source
        self._messages: deque[dict[str, Any]] = deque()
        self._unread = 0
        self._failure: TripowerError | None = None
        self._arrived: trio.Event | None = None
        self._read: trio.Event | None = None

    async def put(self, message: dict[str, Any]) -> None:
        """Take one ASGI message. Blocks while the application is behind with reading."""
        self._messages.append(message)
        if message["type"] == "http.request":
            self._unread += len(message["body"])
            if not message["more_body"]:
                self._source.body_complete()
        else:
            self._unread = 0
            self._wake_writer()
        self._wake_reader()
        while self._unread > UNREAD_BYTES_MAX:
            self._read = trio.Event()
            await self._read.wait()

    async def receive(self) -> dict[str, Any]:
        """The next ASGI message. Blocks until there is one. Raises `BodyTimeout`."""
        if self._source.awaits_continue:
            await self._source.send_continue()
        while not self._messages:
            if self._failure is not None:
                raise self._failure
            self._arrived = trio.Event()
            await self._arrived.wait()
        message = self._messages.popleft()
        if body := message.get("body"):
            self._unread -= len(body)
            if self._unread <= UNREAD_BYTES_MAX:
                self._wake_writer()
        return message

    def fail_body(self, error: TripowerError | None = None) -> None:
        """The body is late, or not wanted because of an error: the next `receive` that would wait raises."""
        self._failure = error or BodyTimeout("the request's body did not arrive in time")
        self._wake_reader()

    @property
    def waiting_since(self) -> float | None:
        """See `Source`."""
        return self._source.waiting_since

    def cut(self, reason: str) -> None:
        """See `Source`."""
        self._source.cut(reason)

    def _wake_reader(self) -> None:
        if self._arrived is not None:
            self._arrived.set()
            self._arrived = None

    def _wake_writer(self) -> None:
        if self._read is not None:
            self._read.set()
            self._read = None
