"""A client of HTTP/2 on one connection, by the `h2` library, which tests may also make misbehave."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import h2.connection
import h2.events
import trio
from h2.config import H2Configuration

from tests.api.serving import Answer

Frames = h2.connection.H2Connection


class Http2Client:
    """Keeps what arrives by stream. `frames` is the protocol; `send` puts on the wire what was asked of it."""

    def __init__(self, stream: trio.abc.Stream, *, acknowledges: bool = True) -> None:
        self.stream = stream
        self.frames = Frames(H2Configuration(header_encoding="utf-8"))
        self.frames.initiate_connection()
        self.answers: dict[int, Answer] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.goodbye: int | None = None
        """The code of the server's `GOAWAY`."""
        self.closed = False
        self._acknowledges = acknowledges

    async def send(self, raw: bytes = b"") -> None:
        """What the protocol wants to say, and raw bytes after it."""
        await self.stream.send_all(self.frames.data_to_send() + raw)

    async def begin(self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, end: bool = True) -> int:
        """Send a request; returns the number of its stream."""
        number = self.frames.get_next_available_stream_id()
        self.ask_nowait(number, path, body, headers=headers, end=end)
        await self.send()
        return number

    def ask_nowait(
        self, number: int, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, end: bool = True
    ) -> None:
        """Frame a request."""
        method = "GET" if body is None else "POST"
        fields = {":method": method, ":scheme": "http", ":authority": "localhost", ":path": path}
        if body is not None:
            fields["content-type"] = "application/json"
        self.frames.send_headers(number, list((fields | dict(headers or {})).items()), end_stream=end and body is None)
        if body is not None:
            self.frames.send_data(number, json.dumps(body).encode(), end_stream=end)

    async def ask(self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None) -> Answer:
        """A whole request and its answer."""
        return await self.finish(await self.begin(path, body, headers=headers))

    async def finish(self, number: int) -> Answer:
        """The whole answer on a stream."""
        await self.read_until(lambda: number in self.ended or number in self.resets)
        assert number in self.ended, f"stream {number} was reset: {self.resets}"
        return self.answers[number]

    async def read_until(self, condition: Callable[[], bool]) -> None:
        """Take in what arrives until something is so."""
        while not condition():
            assert not self.closed, "the server closed"
            await self.read_some()

    async def read_to_end(self) -> None:
        """Take in what arrives until the server closes."""
        while not self.closed:
            await self.read_some()

    async def read_some(self) -> None:
        try:
            data = await self.stream.receive_some(65_536)
        except trio.BrokenResourceError:
            data = b""
        self.closed = not data
        for event in self.frames.receive_data(data) if data else []:
            self._take(event)
        if not self.closed:
            try:
                await self.send()
            except trio.BrokenResourceError:
                self.closed = True

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived(headers=headers, stream_id=number):
                fields = {str(name): str(value) for name, value in headers or []}
                self.answers[number] = Answer(int(fields.pop(":status")), fields, b"")
            case h2.events.DataReceived(data=data, stream_id=number, flow_controlled_length=length):
                self.answers[number].body += data or b""
                if self._acknowledges and length:
                    self.frames.acknowledge_received_data(length, number)
            case h2.events.StreamEnded(stream_id=number):
                self.ended.add(number)
            case h2.events.StreamReset(stream_id=number, error_code=code):
                self.resets[number] = int(code or 0)
            case h2.events.ConnectionTerminated(error_code=code):
                self.goodbye = int(code or 0)


@asynccontextmanager
async def http2(port: int, *, acknowledges: bool = True) -> AsyncIterator[Http2Client]:
    """A client that begins with HTTP/2 because it knows that the server speaks it."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = Http2Client(stream, acknowledges=acknowledges)
        await client.send()
        yield client
