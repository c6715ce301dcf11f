"""One request of an HTTP/2 connection: a task with its own scope, its share of the windows, and its end.

Hypercorn's `HTTPStream` turns it into ASGI and back, as for HTTP/1.1. What the application writes is cut into frames as the client's
windows allow; one that makes no progress for `send_timeout_s` is reset, and the other streams of its connection go on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import trio
from h2.exceptions import ProtocolError
from hypercorn.protocol.events import Body, EndBody, Event, Request, Response
from hypercorn.protocol.http_stream import HTTPStream

from tripower.api.http.incoming import Incoming

if TYPE_CHECKING:
    from tripower.api.http.http2.connection import Http2Connection

log = logging.getLogger("tripower.http")

TURN_BYTES = 65_536
"""What a stream may put on the wire before the others have had their turn."""


class StreamIncoming(Incoming):
    """Gives the client's window back as the application reads, so that unread bytes are bounded by the window."""

    __slots__ = ("_stream",)

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self._stream = stream

    async def receive(self) -> dict[str, Any]:
        """See `Incoming.receive`."""
        message = await super().receive()
        if body := message.get("body"):
            self._stream.acknowledge(len(body))
        return message


class Stream:
    """A request and its answer. Hypercorn sees it as the task group that runs the application."""

    def __init__(self, connection: Http2Connection, number: int, *, expects_continue: bool) -> None:
        self.number = number
        self.complete = False
        """Whether the end of the answer is on its way."""
        self.request_complete = False
        self.waiting_since: float | None = None
        """Since when bytes of the answer have been waiting for the client to take them; None while none do."""
        self.awaits_continue = expects_continue
        """Whether the client wants to hear `100 Continue` before it sends its body."""
        self._connection = connection
        self._incoming = StreamIncoming(self)
        self._http = HTTPStream(
            connection.app,
            connection.config,
            connection.context,
            self,  # type: ignore[arg-type]  # the one method of a task group that it calls
            connection.secure,
            connection.client,
            connection.server,
            self._on_event,
            number,
        )
        self._scope = trio.CancelScope()
        self._out = bytearray()
        self._ended = False
        self._unacknowledged = 0
        self._window = trio.Event()

    # What arrives.

    async def begin(self, request: Request) -> None:
        """Start the application."""
        await self._http.handle(request)

    async def take_body(self, data: bytes) -> None:
        """Pass a piece of the body on. Never blocks: the window bounds what has not been read."""
        self._unacknowledged += len(data)
        await self._http.handle(Body(stream_id=self.number, data=data))

    async def end_body(self) -> None:
        """The request is complete."""
        self.request_complete = True
        await self._http.handle(EndBody(stream_id=self.number))

    def body_complete(self) -> None:
        """Called when the end of the body has been passed on."""
        self._connection.upload_over(self)

    def fail_body(self) -> None:
        """The body is late."""
        self._incoming.fail_body()

    def acknowledge(self, count: int | None = None) -> None:
        """Give the client so much of its window back; None for all that it lacks."""
        count = self._unacknowledged if count is None else min(count, self._unacknowledged)
        self._unacknowledged -= count
        self._connection.acknowledge(self.number, count)

    async def send_continue(self) -> None:
        """Tell a client that waits for it to send its body."""
        self.awaits_continue = False
        self._connection.framing.send_headers(self.number, [(b":status", b"100")])
        self._connection.writer.wake()

    def leave(self, reason: str) -> None:
        """The client wants no answer any more: cancel whoever works on it."""
        self._incoming.client_left = True
        self._scope.cancel(reason=reason)

    def cut(self, reason: str) -> None:
        """Give up an answer that the client does not read; the other streams go on."""
        self.leave(reason)

    def window_opened(self) -> None:
        """There may be room for more of the answer."""
        self._window.set()

    # The application.

    async def spawn_app(self, app: Any, config: Any, scope: Any, send: Any) -> Any:
        """Start the application; returns the function that takes what arrives for it."""
        scope["extensions"] = {"tripower.incoming": self._incoming}
        self._connection.start_soon(self._run, app, scope, send)
        return self._incoming.put

    async def _run(self, app: Any, scope: Any, stream_send: Any) -> None:
        async def send(message: Any) -> None:
            await stream_send(message)
            if message["type"] != "http.response.start":
                await self._push()

        try:
            with self._scope:
                try:
                    await app(scope, self._incoming.receive, send)
                except Exception:
                    log.exception("the application failed")
                await stream_send(None)
                await self._push()
        finally:
            self._connection.stream_over(self)

    # What leaves.

    async def _on_event(self, event: Event) -> None:
        if isinstance(event, Body):
            self._out += event.data
        elif isinstance(event, EndBody):
            self._ended = True
        elif isinstance(event, Response):
            self.awaits_continue = False
            headers = [(b":status", b"%d" % event.status_code), *event.headers]
            headers += self._connection.config.response_headers("h2")
            try:  # `h2` leaves out what HTTP/2 has no place for, such as `connection`
                self._connection.framing.send_headers(self.number, headers)
            except ProtocolError:
                self.leave("the stream is closed")

    async def _push(self) -> None:
        """Put what the application has written on the wire. Blocks while the windows are closed, or much is unsent."""
        try:
            while True:
                try:
                    sent = self._push_some()
                except ProtocolError:
                    sent = 0
                    self.leave("the stream is closed")
                self._connection.writer.wake()
                if not self._out:
                    break
                if sent:
                    await trio.lowlevel.checkpoint()
                else:
                    self._note_wait()
                    await self._wait_for_window()
                await self._wait_for_room()
            await self._wait_for_room()
        finally:
            self.waiting_since = None

    async def _wait_for_room(self) -> None:
        writer = self._connection.writer
        if writer.full:
            self._note_wait()
        await writer.wait_for_room()

    def _note_wait(self) -> None:
        if self.waiting_since is None:
            self.waiting_since = trio.current_time()

    def _push_some(self) -> int:
        """Frames for one turn. Returns how many bytes they hold. Raises `ProtocolError` when nothing may follow on this stream."""
        framing, sent = self._connection.framing, 0
        while self._out and sent < TURN_BYTES:
            window = framing.local_flow_control_window(self.number)
            size = min(len(self._out), window, framing.max_outbound_frame_size)
            if size <= 0:
                break
            data = bytes(self._out[:size])
            del self._out[:size]
            self.complete = self._ended and not self._out
            framing.send_data(self.number, data, end_stream=self.complete)
            sent += size
            self._connection.writer.count(size)
            self._connection.earn()
        if self._ended and not self._out and not self.complete:
            self.complete = True
            framing.end_stream(self.number)
        return sent

    async def _wait_for_window(self) -> None:
        """Wait until the client takes more. One that does not for too long wants nothing, on this stream."""
        seconds = self._connection.send_seconds
        self._window = trio.Event()
        with trio.move_on_after(seconds) as waiting:
            await self._window.wait()
        if waiting.cancelled_caught:
            self.leave(f"the client took nothing for {seconds:.0f} s")
            await trio.lowlevel.checkpoint()
