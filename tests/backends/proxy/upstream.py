"""An upstream that sends the bytes it is told to send, and remembers what it was asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import trio

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
HANG = b""
"""In a script: say nothing more and wait until the other side has gone."""


@attrs.define(eq=False)
class Upstream:
    """Each connection gets one answer, the next of `scripts`: pieces that are sent one after the other, then the end."""

    scripts: list[Sequence[bytes]]
    port: int = 0
    requests: list[Asked] = attrs.Factory(list)
    left: int = 0
    """Clients that went away while they were being kept waiting."""
    gone: trio.Event = attrs.Factory(trio.Event)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            asked = await read_request(stream)
            self.requests.append(asked)
            for piece in self.scripts.pop(0):
                if piece == HANG:
                    await self._hang(stream)
                    return
                await stream.send_all(piece)

    async def _hang(self, stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            assert not await stream.receive_some()
        self.left += 1
        self.gone.set()


@attrs.frozen
class Asked:
    """One request."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def read_request(stream: trio.SocketStream) -> Asked:
    received = b""
    while b"\r\n\r\n" not in received:
        received += await stream.receive_some()
    head, _, body = received.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    while len(body) < int(headers.get("content-length", 0)):
        body += await stream.receive_some()
    return Asked(line, headers, body)


@asynccontextmanager
async def answering(*scripts: Sequence[bytes]) -> AsyncIterator[Upstream]:
    """An upstream on a free port, for as many connections as there are scripts."""
    upstream = Upstream(list(scripts))
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    upstream.port = listener.socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, upstream.serve, [listener])
        yield upstream
        nursery.cancel_scope.cancel()


def chunked(*pieces: bytes, end: bool = True) -> list[bytes]:
    """A streamed answer; without `end` it breaks off."""
    return [STREAM_HEAD, *(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces), *([b"0\r\n\r\n"] if end else [])]


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def delta(text: str | None = None, *, reason: str | None = None, **more: Any) -> dict[str, Any]:
    """A chat chunk."""
    return {"choices": [{"index": 0, "delta": {"content": text, **more}, "finish_reason": reason}]}


def whole(status: str, body: bytes = b"", *headers: str, content_type: str = "application/json") -> list[bytes]:
    """An answer that is not streamed."""
    fields = [f"content-type: {content_type}", f"content-length: {len(body)}", "connection: close", *headers]
    return ["\r\n".join((f"HTTP/1.1 {status}", *fields, "", "")).encode() + body]


DONE = event(b"[DONE]")
USAGE = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}})
MODELS = whole("200 OK", json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode())
