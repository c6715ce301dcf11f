"""A small HTTP/1.1 client on Trio: one keep-alive connection, whole answers or the events of a stream.

It shares the machine with the server it measures, so it does little: no redirects, no compression, no cookies.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

import msgspec
import trio

from tripower.runtime.kernel import Unavailable

HEAD_BYTES_MAX = 64 * 1024
RECEIVE_BYTES = 64 * 1024
DONE = b"[DONE]"


class Answer(msgspec.Struct, frozen=True):
    """A complete answer."""

    status: int
    body: bytes


def build_request(
    method: str, path: str, body: bytes = b"", *, host: str = "127.0.0.1", headers: Mapping[str, str] | None = None
) -> bytes:
    """The bytes of one request, to be sent many times."""
    head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return f"{head}{more}\r\n".encode() + body


class HttpConnection:
    """One connection, one request at a time. All methods block; they raise `Unavailable` when the server ends in the middle."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", receive_buffer: int = 0) -> None:
        """`receive_buffer`: bytes that the kernel may keep for a slow reader; 0 leaves it to choose."""
        self._address = (host, port)
        self._receive_buffer = receive_buffer
        self.headers: dict[bytes, bytes] = {}
        """Of the answer that was begun last, names in lower case."""
        self._stream: trio.SocketStream | None = None
        self._buffer = bytearray()
        self._left = 0
        self._chunked = self._last_read = False

    async def open(self) -> None:
        """Connect. Done by `async with`; who calls it must `close`."""
        try:
            self._stream = await self._connect()
        except OSError as error:
            raise Unavailable(f"nobody listens on port {self._address[1]}: {error}") from error

    async def _connect(self) -> trio.SocketStream:
        if not self._receive_buffer:
            return await trio.open_tcp_stream(*self._address)
        connecting = trio.socket.socket()
        try:  # the kernel agrees on a window while it connects, so its size has to be known before
            connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
            await connecting.connect(self._address)
        except BaseException:
            connecting.close()
            raise
        return trio.SocketStream(connecting)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether it has been opened and not been closed by us."""
        return self._stream is not None

    def close(self) -> None:
        """Close at once, in the middle of anything: a task that reads gets `trio.ClosedResourceError`. Synchronous, idempotent."""
        if self._stream is not None:
            self._stream.socket.close()
            self._stream = None

    async def fetch(self, request: bytes) -> Answer:
        """Send a request and read the whole answer."""
        status = await self.begin(request)
        pieces = []
        while piece := await self.read_piece():
            pieces.append(piece)
        return Answer(status, b"".join(pieces))

    async def begin(self, request: bytes) -> int:
        """Send a request and read the head of the answer; returns its status. `read_piece` gives the body."""
        try:
            await self._open_stream().send_all(request)
        except trio.BrokenResourceError as error:
            raise Unavailable("the server closed the connection") from error
        head = await self._read_until(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        self.headers = headers = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
        self._chunked = b"chunked" in headers.get(b"transfer-encoding", b"").lower()
        self._left = 0 if self._chunked else int(headers.get(b"content-length", 0))
        self._last_read = False
        return int(first.split(b" ")[1])

    async def read_piece(self, bytes_max: int = RECEIVE_BYTES) -> bytes:
        """The next piece of the body as it came, at most `bytes_max` of it, b"" at its end."""
        if self._last_read:
            return b""
        if self._chunked and not self._left:
            self._left = int(bytes(await self._read_until(b"\r\n")).split(b";")[0], 16)
            if not self._left:
                await self._read_until(b"\r\n")
        if not self._left:
            self._last_read = True
            return b""
        if not self._buffer:
            await self._receive(bytes_max)
        piece = bytes(self._buffer[: min(self._left, bytes_max)])
        del self._buffer[: len(piece)]
        self._left -= len(piece)
        if self._chunked and not self._left:
            await self._read_until(b"\r\n")
        return piece

    async def _read_until(self, mark: bytes) -> bytes:
        while (end := self._buffer.find(mark)) < 0:
            if len(self._buffer) > HEAD_BYTES_MAX:
                raise Unavailable("the server's answer is no HTTP")
            await self._receive()
        found = bytes(self._buffer[:end])
        del self._buffer[: end + len(mark)]
        return found

    async def _receive(self, bytes_max: int = RECEIVE_BYTES) -> None:
        try:
            data = await self._open_stream().receive_some(bytes_max)
        except trio.BrokenResourceError as error:
            raise Unavailable("the server reset the connection") from error
        if not data:
            raise Unavailable("the server closed the connection in the middle of an answer")
        self._buffer += data

    def _open_stream(self) -> trio.SocketStream:
        if self._stream is None:
            raise trio.ClosedResourceError("the connection is closed")
        return self._stream


class EventSplitter:
    """Cuts a stream of bytes into the payloads of server-sent events. Comments are skipped; `ended` is set by `[DONE]`."""

    def __init__(self) -> None:
        self.ended = False
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The payloads that are complete now."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == DONE:
                self.ended = True
            else:
                yield payload
