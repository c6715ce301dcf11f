"""One HTTP/2 connection: a task that reads, a task that writes, and a task for each request.

The writer is a task of its own because a write that is cancelled ends the connection, and one request's client may leave at any time.
It also joins what all streams have written since it last looked into one write. What a client may cause is bounded:

1. Requests at the same time, headers and bodies: by the settings that we announce, which `h2` enforces.
2. Resets, its own and those that it provokes (CVE-2023-44487, CVE-2025-8671): by a budget; over it comes `ENHANCE_YOUR_CALM`.
3. Frames that cost work and carry nothing (settings, pings, priorities, empty data, windows): by another, refilled by what is sent to it.
4. Answers that it does not take: bytes wait in the application, not here; see `Stream`, and `Transport` for the connection as a whole.
5. Time, as for HTTP/1.1: of a body, and without any request, whatever else arrives meanwhile. Priorities are ignored, so there is no tree of them to be made dear.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from typing import Any

import h2.events
import trio
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from hypercorn.config import Config
from hypercorn.protocol.events import Request
from hypercorn.utils import filter_pseudo_headers

from tripower.api.http.connection import DRAIN_SEND_SECONDS, IDLE_SECONDS
from tripower.api.http.http2.budget import Budget
from tripower.api.http.http2.framing import STREAMS_MAX, Framing, request_target
from tripower.api.http.http2.stream import Stream
from tripower.api.http.http2.writer import Writer
from tripower.api.http.transport import ClientLost, Transport

log = logging.getLogger("tripower.http")

GOODBYE_SECONDS = 1.0
"""For the last frames of a connection that ends."""
PIECE_BYTES = 8192
"""What is parsed at a time, so that a budget is looked at before a thousand frames have been worked on."""
RESETS_MAX, RESETS_PER_SECOND = 100, 10
CONTROL_MAX, CONTROL_PER_SECOND = 2000, 200
CONTROL_PER_FRAME = 4.0
"""Control frames that a client earns with each data frame it is sent; two window updates are usual."""

CONTROL = (
    h2.events.RemoteSettingsChanged,
    h2.events.SettingsAcknowledged,
    h2.events.PingReceived,
    h2.events.PingAckReceived,
    h2.events.PriorityUpdated,
    h2.events.WindowUpdated,
    h2.events.AlternativeServiceAvailable,
    h2.events.UnknownFrameReceived,
)


class Http2Connection:
    """A connection from its first frame to its end. `run` is its task."""

    def __init__(
        self,
        app: Any,
        config: Config,
        context: Any,
        transport: Transport,
        addresses: tuple[Any, Any],
        *,
        body_seconds: float,
        send_seconds: float,
        begun: bytes = b"",
    ) -> None:
        self.app, self.config, self.context = app, config, context
        self.client, self.server = addresses
        self.secure = transport.secure
        self.send_seconds = send_seconds
        self.framing = Framing()
        self.writer = Writer(self.framing, transport)
        self._transport = transport
        self._body_seconds = body_seconds
        self._begun = begun
        self._streams: dict[int, Stream] = {}
        self._uploads: dict[Stream, float] = {}
        """When each body that is still arriving has to be complete; the earliest first."""
        self._idle_from = trio.current_time()
        self._resets = Budget(RESETS_MAX, RESETS_PER_SECOND)
        self._control = Budget(CONTROL_MAX, CONTROL_PER_SECOND)
        self._nursery: trio.Nursery | None = None
        self._reading = trio.CancelScope()
        self._attention = False
        self._draining = False

    @property
    def busy(self) -> bool:
        """Whether a request is being read or answered."""
        return bool(self._streams)

    async def run(self) -> None:
        """Serve until either side ends it. Whatever goes wrong ends this connection and nothing else."""
        try:
            async with trio.open_nursery() as self._nursery:
                self.framing.begin()
                self._nursery.start_soon(self._write, name="write")
                await self._read()
                self._leave("the connection ended")
        except Exception:
            log.exception("a connection ended with an error")
        finally:
            with trio.CancelScope(shield=True):
                with trio.move_on_after(GOODBYE_SECONDS), contextlib.suppress(ClientLost):
                    await self._transport.send(self.framing.data_to_send())
                await self._transport.close(unread=True)

    def drain(self) -> None:
        """Take no new request, and close when the running ones have their answers."""
        if not self._draining:
            self._draining = True
            self.send_seconds = min(self.send_seconds, DRAIN_SEND_SECONDS)
            self._transport.tighten(DRAIN_SEND_SECONDS)
            self.writer.say_last(self.framing.last_words())
            self._wake()

    def _leave(self, reason: str) -> None:
        for stream in self._streams.values():
            stream.leave(reason)
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel(reason=reason)

    # Reading.

    async def _read(self) -> None:
        """Feed the parser. Returns when the client has ended the connection, has broken the rules, or nothing is wanted from it."""
        data: bytes | None = self._begun
        while True:
            if data:
                for start in range(0, len(data), PIECE_BYTES):
                    if not await self._take(data[start : start + PIECE_BYTES]):
                        return
                self.writer.wake()
            if self._over():
                await self.writer.wait_written()
                return
            data = await self._receive()
            if data == b"":
                return

    def _over(self) -> bool:
        """Whether nothing keeps the connection open."""
        return not self._streams and (self._draining or trio.current_time() >= self._idle_from + IDLE_SECONDS)

    async def _receive(self) -> bytes | None:
        """The next bytes; None when a time is over or attention is wanted."""
        if self._attention:
            self._attention = False
            return None
        with trio.CancelScope(deadline=self._due()) as self._reading:
            return await self._transport.receive()
        self._attention = False
        now = trio.current_time()
        for stream in [stream for stream, due in self._uploads.items() if due <= now]:
            del self._uploads[stream]
            stream.fail_body()
        return None

    def _due(self) -> float:
        body = next(iter(self._uploads.values()), math.inf)
        return body if self._streams else min(body, self._idle_from + IDLE_SECONDS)

    def _wake(self) -> None:
        self._attention = True
        self._reading.cancel(reason="the connection wants attention")

    async def _take(self, data: bytes) -> bool:
        """Work on some bytes. False when the connection must end; what there is to say about it is waiting to be sent."""
        try:
            events = self.framing.receive_data(data)
        except ProtocolError as error:
            log.info("a client broke the rules of HTTP/2: %s", error)
            return False
        for event in events:
            if isinstance(event, h2.events.ConnectionTerminated):
                return False
            if not self._affordable(event):
                log.info("a client's HTTP/2 connection costs too much: %s", type(event).__name__)
                self.framing.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
                return False
            await self._on_event(event)
        return True

    def _affordable(self, event: h2.events.Event) -> bool:
        if isinstance(event, h2.events.StreamReset):
            return self._resets.spend()
        if isinstance(event, CONTROL) or (isinstance(event, h2.events.DataReceived) and not event.data):
            return self._control.spend()
        return True

    async def _on_event(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            await self._begin(event)
        elif isinstance(event, h2.events.DataReceived):
            await self._on_data(event)
        elif isinstance(event, h2.events.StreamEnded):
            if stream := self._streams.get(event.stream_id):
                await stream.end_body()
        elif isinstance(event, h2.events.StreamReset):
            if stream := self._streams.get(event.stream_id):
                stream.leave("the client reset the stream")
        elif isinstance(event, h2.events.WindowUpdated):
            self._windows_opened(event.stream_id)
        elif isinstance(event, h2.events.RemoteSettingsChanged) and SettingCodes.INITIAL_WINDOW_SIZE in event.changed_settings:
            self._windows_opened(0)

    async def _on_data(self, event: h2.events.DataReceived) -> None:
        stream, data = self._streams.get(event.stream_id), event.data or b""
        padding = event.flow_controlled_length - (len(data) if stream else 0)
        self.acknowledge(event.stream_id, padding)
        if stream and data:
            await stream.take_body(data)

    def _windows_opened(self, number: int) -> None:
        for stream in self._streams.values() if number == 0 else filter(None, [self._streams.get(number)]):
            stream.window_opened()

    async def _begin(self, event: h2.events.RequestReceived) -> None:
        number, headers = event.stream_id, event.headers
        target = request_target(headers)
        if self._draining or len(self._streams) >= STREAMS_MAX:  # those whose client left may not have ended yet
            self.reset(number, ErrorCodes.REFUSED_STREAM)
            return
        if target is None:
            self.reset(number, ErrorCodes.PROTOCOL_ERROR)
            return
        expects = any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)
        stream = self._streams[number] = Stream(self, number, expects_continue=expects)
        self._uploads[stream] = trio.current_time() + self._body_seconds
        self._control.earn(CONTROL_PER_FRAME)
        method, path = target
        request = Request(
            stream_id=number,
            headers=filter_pseudo_headers(list(headers)),
            http_version="2",
            method=method,
            raw_path=path,
            state={},  # type: ignore[arg-type]
        )
        await stream.begin(request)

    # What streams ask for.

    def start_soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run a request's task."""
        assert self._nursery is not None
        self._nursery.start_soon(function, *arguments, name="request")

    def stream_over(self, stream: Stream) -> None:
        """A request's task has ended. What is missing of either direction will not come."""
        del self._streams[stream.number]
        self._uploads.pop(stream, None)
        stream.acknowledge()
        if not stream.complete:
            self.reset(stream.number, ErrorCodes.INTERNAL_ERROR)
        elif not stream.request_complete:
            self.reset(stream.number, ErrorCodes.NO_ERROR)  # the answer stands; the client may stop sending (RFC 9113, 8.1)
        self.writer.wake()
        if not self._streams:
            self._idle_from = trio.current_time()
            if self._draining:
                self._wake()
            else:
                self._reading.deadline = self._due()

    def upload_over(self, stream: Stream) -> None:
        """A request has arrived completely; from now on its time is its own."""
        self._uploads.pop(stream, None)

    def acknowledge(self, number: int, count: int) -> None:
        """Give the client so much of its windows back."""
        if count:
            with contextlib.suppress(ProtocolError):
                self.framing.acknowledge_received_data(count, number)
            self.writer.wake()

    def reset(self, number: int, code: ErrorCodes) -> None:
        """End a stream that has not ended. Without effect on one that has."""
        with contextlib.suppress(ProtocolError):
            self.framing.reset_stream(number, code)
        self.writer.wake()

    async def _write(self) -> None:
        try:
            await self.writer.run()
        except ClientLost as lost:
            self._leave(str(lost))

    def earn(self) -> None:
        """The client has been sent a data frame, so it may have something to say about it."""
        self._control.earn(CONTROL_PER_FRAME)
