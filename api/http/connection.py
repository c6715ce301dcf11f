"""One client connection: Hypercorn's HTTP/1.1 on our own transport.

Hypercorn parses, checks and frames (`H11Protocol`, `HTTPStream`). What differs here from its own Trio server:

1. The application's task is cancelled when its client leaves. Nobody has to watch `receive()` for it, and no nursery is needed.
2. Reading goes on while a request runs, so that a client that leaves is noticed even behind a pipelined byte or an `Upgrade` header.
   One that closes its sending side behind a complete request, as simple clients do, gets its answer; see `_watch_ended`.
3. Time is bounded in every state: waiting for a request, its head, its body, and (in `Transport`) a client that does not read.
4. What one ASGI message causes is written in one piece, and the head of an answer goes with its first bytes.
5. There are no websockets: an `Upgrade` is ignored, as HTTP allows. `100 Continue` is sent when the body is wanted.
6. A client that begins with HTTP/2's preface is left to `Http2Connection`, which the listener starts on the same transport.
"""

from __future__ import annotations

import logging
import math
import secrets
from typing import Any

import h11
import msgspec
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Request
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream

from tripower.api.http.incoming import Incoming
from tripower.api.http.transport import ClientLost, Transport

log = logging.getLogger("tripower.http")

IDLE_SECONDS = 75.0
"""A kept connection without a request is closed after this; longer than the clients' own limits, so that they close first."""
HEAD_SECONDS = 10.0
"""Time for a request's line and headers, from their first byte."""
PIPELINED_BYTES_MAX = 65_536
"""What a client may send ahead while its request runs. Beyond that, reading pauses until the answer is out."""
ENDED_SECONDS = 0.02
"""For an answer, after a client has ended its side, before it is asked whether it is still there."""
LOOK_SECONDS_MAX = 0.25
"""Between two looks whether it has said no."""
ASK_AGAIN_SECONDS = 5.0
STILL_THERE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""What it is asked by: who has gone altogether resets the connection, and everybody else reads on (RFC 9110, 15.2)."""
DRAIN_SEND_SECONDS = 5.0
"""While draining, a client that takes nothing for this long is dropped."""


PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
"""What HTTP/2 begins with; to a parser of HTTP/1.1 it is a whole request."""
HEADERS_MAX = 256
"""How many headers a request may have."""


class Http2Begun(Exception):
    """The client speaks HTTP/2."""


class Protocol(H11Protocol):
    """Hypercorn's HTTP/1.1 without upgrades, without its pause, and with JSON in its own errors."""

    async def handle_events(self) -> None:
        """Pass on what can be parsed. Returns when there is no more, or the next request has to wait for the answer to this one."""
        while True:
            begun = self._buffered() if self.connection.their_state is h11.IDLE else 0
            try:
                event = self.connection.next_event()
            except h11.RemoteProtocolError as error:
                if self.connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                    await self._send_error_response(error.error_status_hint)
                await self.send(Closed())
                return
            if isinstance(event, h11.Request):
                # h11 bounds a head that is not complete; one that came in a piece is as long as the buffer has become shorter.
                too_long = begun - self._buffered() > self.config.h11_max_incomplete_size or len(event.headers) > HEADERS_MAX
                if event.http_version == b"2.0" or too_long:
                    await self._refuse(event, too_long=too_long)
                    return
                await self.send(Updated(idle=False))
                await self._create_stream(event)
            elif isinstance(event, h11.Data) and self.stream is not None:
                await self.stream.handle(Body(stream_id=STREAM_ID, data=event.data))
            elif isinstance(event, h11.EndOfMessage) and self.stream is not None:
                await self.stream.handle(EndBody(stream_id=STREAM_ID))
            else:
                return

    def _buffered(self) -> int:
        return len(self.connection.trailing_data[0])

    async def _refuse(self, request: h11.Request, *, too_long: bool) -> None:
        """Raises `Http2Begun` when it is no request at all."""
        if request.method == b"PRI" and not self.keep_alive_requests:
            raise Http2Begun
        await self._send_error_response(431 if too_long else 400)
        await self.send(Closed())

    async def _create_stream(self, request: h11.Request) -> None:
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    async def _send_error_response(self, status_code: int) -> None:
        body = REFUSALS.get(status_code, REFUSALS[400])
        request_id = secrets.token_hex(16).encode()
        log.info("bytes that are no request: %d, id %s", status_code, request_id.decode())
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (b"x-request-id", request_id),
            *self.config.response_headers("h11"),
        ]
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())

    async def send_continue(self) -> None:
        """Tell a client that waits for it to send its body."""
        await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))


def _refusal(message: str, code: str) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}})


REFUSALS = {
    400: _refusal("this is not a valid HTTP request", "bad_request"),
    408: _refusal(f"the request's headers did not arrive within {HEAD_SECONDS:.0f} s", "request_timeout"),
    431: _refusal("the request's headers are too long", "headers_too_large"),
    501: _refusal("this transfer encoding is not supported: send a content-length, or chunked", "unsupported_encoding"),
}


class Connection:
    """A connection from its acceptance to its end. `run` is its task; Hypercorn sees it as the task group of its requests."""

    def __init__(
        self, app: Any, config: Config, context: Any, transport: Transport, addresses: tuple[Any, Any], *, body_seconds: float
    ) -> None:
        client, server = addresses
        self._app = app
        self._transport = transport
        self._body_seconds = body_seconds
        self.protocol = Protocol(
            app, config, context, self, {}, transport.secure, client, server, self._on_event  # type: ignore[arg-type]
        )  # fmt: skip
        self.http2_begun = b""
        """After `run`, if the client speaks HTTP/2: what it has sent. The transport is still open then."""
        self._out: list[bytes] = []
        self._writing = False
        self._request: Incoming | None = None
        self._nursery: trio.Nursery | None = None
        self._reading = trio.CancelScope()
        self._due = math.inf
        self._head_begun = False
        self._attention = False
        self._closing = False
        self._ended = False
        """Whether the client has ended its side and waits for answers."""

    @property
    def busy(self) -> bool:
        """Whether a request is being read or answered."""
        return self._request is not None

    async def run(self) -> None:
        """Serve until either side ends it. Whatever goes wrong ends this connection and nothing else."""
        self._arm(trio.current_time() + IDLE_SECONDS)
        try:
            async with trio.open_nursery() as self._nursery:
                await self._read()
                self._leave("the client left")
        except Exception:
            log.exception("a connection ended with an error")
        finally:
            if not self.http2_begun:
                with trio.CancelScope(shield=True):
                    await self._transport.close(unread=self.protocol.connection.their_state in {h11.SEND_BODY, h11.ERROR})

    def drain(self) -> None:
        """Close as soon as the running request, if there is one, has its answer."""
        self.protocol.keep_alive_requests = self.protocol.config.keep_alive_max_requests  # says `connection: close`
        self._transport.tighten(DRAIN_SEND_SECONDS)
        if not self.busy:
            self._close_soon()

    def _leave(self, reason: str) -> None:
        """The client has gone: cancel whoever works for it."""
        if self._request is not None and self._nursery is not None:
            self._request.client_left = True
            self._nursery.cancel_scope.cancel(reason=reason)

    def cut(self, reason: str) -> None:
        """Give up an answer that the client does not read. The parser may take it for complete already, so the transport goes too."""
        self._leave(reason)
        self._transport.reset()

    # Reading.

    async def _read(self) -> None:
        """Feed the protocol. Returns when the client has ended the connection, or nothing more is wanted from it."""
        while True:
            if not self._attention:
                data = await self._receive()
                if data is not None:
                    if not data:
                        if self._ended or not self._may_wait():
                            return
                        self._ended = True
                        continue
                    self.protocol.connection.receive_data(data)
                elif not self._attention and not self._closing:
                    await self._on_time_over()
            self._attention = False
            if not self._closing:
                try:
                    await self.protocol.handle_events()
                except Http2Begun:
                    self.http2_begun = PREFACE + self.protocol.connection.trailing_data[0]
                    return
            try:
                await self.flush()
            except ClientLost:
                return
            if self._closing:
                return
            if not self.busy and not self._head_begun and self._buffered():
                self._head_begun = True
                self._arm(trio.current_time() + HEAD_SECONDS)

    async def _receive(self) -> bytes | None:
        """The next bytes; None when a time is over or attention is wanted."""
        deadline = min(self._due, trio.current_time() + IDLE_SECONDS)
        with trio.CancelScope(deadline=deadline) as self._reading:
            if self._ended:
                return await self._watch_ended()
            if self.busy and self._buffered() > PIPELINED_BYTES_MAX:
                await trio.sleep_forever()
            return await self._transport.receive()
        return None

    def _may_wait(self) -> bool:
        """Whether a client that has ended its side may be waiting for an answer: to a complete request, of which nothing is out.

        On HTTP/1.0 it could not be asked whether it is still there, and TLS does not pass on that it is not; there it counts as one
        that left, and so it does in the middle of an answer.
        """
        parser = self.protocol.connection
        assert isinstance(parser, h11.Connection)
        return (
            self.busy
            and not self._transport.secure
            and parser.their_http_version == b"1.1"
            and parser.their_state in {h11.DONE, h11.MUST_CLOSE}
            and parser.our_state is h11.SEND_RESPONSE
        )

    async def _watch_ended(self) -> bytes:
        """Return nothing when a client that has ended its side turns out to have gone. Blocks until then.

        The end of its side looks the same in both cases. Whoever has gone answers the next bytes with a reset; while there are none of
        an answer, an interim one takes their place.
        """
        pause, asks_at = ENDED_SECONDS, trio.current_time() + ENDED_SECONDS
        while not self._transport.broken:
            await trio.sleep(pause)
            waits = self.protocol.connection.our_state is h11.SEND_RESPONSE and not (self._out or self._writing)
            if waits and trio.current_time() >= asks_at:
                self._transport.send_nowait(STILL_THERE)
                pause, asks_at = ENDED_SECONDS / 8, trio.current_time() + ASK_AGAIN_SECONDS
            else:
                pause = min(2 * pause, LOOK_SECONDS_MAX)
        return b""

    async def _on_time_over(self) -> None:
        if trio.current_time() < self._due:
            return
        self._due = math.inf
        if self._request is not None:
            self._request.fail_body()
            return
        if self._head_begun:
            await self.protocol._send_error_response(408)
        self._closing = True

    def _buffered(self) -> int:
        return len(self.protocol.connection.trailing_data[0])

    def _arm(self, due: float) -> None:
        """Something has to happen by then. The scope's deadline is only moved when it would fire too late; when early, it is renewed."""
        self._due = due
        if due >= self._reading.deadline:
            return  # moving it costs more than a renewal now and then
        self._reading.deadline = due

    @property
    def awaits_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends its body."""
        return self.protocol.connection.they_are_waiting_for_100_continue

    @property
    def waiting_since(self) -> float | None:
        """Since when bytes of an answer have been waiting for the client; None while none do."""
        return self._transport.waiting_since

    async def send_continue(self) -> None:
        """Tell it to go on."""
        await self.protocol.send_continue()
        await self.flush()

    def body_complete(self) -> None:
        """The whole request is here; from now on its time is its own."""
        self._due = math.inf

    def _wake(self) -> None:
        self._attention = True
        self._reading.cancel(reason="the connection wants attention")

    def _close_soon(self) -> None:
        self._closing = True
        self._wake()

    # Writing.

    async def _on_event(self, event: Event) -> None:
        """What the protocol wants done to the socket. Nothing here blocks: bytes are kept for `flush`."""
        if isinstance(event, RawData):
            if event.data:
                self._out.append(event.data)
        elif isinstance(event, Closed):
            if self.protocol.stream is None:  # the answer is complete; else whoever works on it is in vain
                self._request = None
            self._close_soon()
        elif isinstance(event, Updated):
            if event.idle:
                self._request = None
                self._head_begun = False
                self._arm(trio.current_time() + IDLE_SECONDS)
                if self._buffered():
                    self._wake()
                elif self._ended:
                    self._close_soon()
            else:
                self._arm(trio.current_time() + self._body_seconds)

    async def flush(self) -> None:
        """Write what has queued. A second caller leaves its bytes to the one that is writing. Raises `ClientLost`."""
        if self._writing:
            return
        self._writing = True
        try:
            while self._out:
                data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
                self._out.clear()
                await self._transport.send(data)
        finally:
            self._writing = False

    # What Hypercorn asks of a task group.

    async def spawn_app(self, app: Any, config: Config, scope: Any, send: Any) -> Any:
        """Start the application for one request; returns the function that takes what arrives of it."""
        assert self._nursery is not None
        request = self._request = Incoming(self)
        scope["extensions"]["tripower.incoming"] = request
        self._nursery.start_soon(self._run_app, request, scope, send, name="request")
        return request.put

    async def _run_app(self, request: Incoming, scope: Any, stream_send: Any) -> None:
        async def send(message: Any) -> None:
            await stream_send(message)
            if message["type"] != "http.response.start":
                await self._flush_or_leave()

        try:
            await self._app(scope, request.receive, send)
        except Exception:
            log.exception("the application failed")
        await stream_send(None)
        await self._flush_or_leave()

    async def _flush_or_leave(self) -> None:
        try:
            await self.flush()
        except ClientLost as lost:
            self._leave(str(lost))
            await trio.lowlevel.checkpoint()
