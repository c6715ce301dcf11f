"""A transport whose bytes are encrypted: OpenSSL between two memory buffers, over the plain one.

`trio.SSLStream` would do, but its writes go through `send_all` of a stream, which says neither how long a client has taken nothing nor
lets a deadline be tightened while it waits; and `Connection` wants both.
"""

from __future__ import annotations

import contextlib
import socket
import ssl

import trio

from tripower.api.http.transport import RECEIVE_BYTES, ClientLost, Transport

_BODY = (
    b'{"error":{"message":"this port speaks TLS: use https://","type":"invalid_request_error","param":null,'
    b'"code":"https_required"}}'
)
PLAIN_HTTP = b"\r\n".join(
    (
        b"HTTP/1.1 400 Bad Request",
        b"content-type: application/json",
        b"content-length: %d" % len(_BODY),
        b"connection: close",
        b"",
        _BODY,
    )
)
"""For a client that took the port for a plain one. It would only see rubbish otherwise."""


class SecureTransport(Transport):
    """See the module. `shake_hands` first."""

    __slots__ = ("_incoming", "_outgoing", "_sending", "_tls")

    secure = True

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, *, send_seconds: float) -> None:
        super().__init__(connected, send_seconds=send_seconds)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._sending = trio.Lock()

    async def shake_hands(self) -> str | None:
        """Agree on keys; returns the protocol that the client chose, if it chose one. Blocks without bound: put a deadline around it.

        Raises `ClientLost` when the client leaves or speaks anything else; it has been told so then.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._send_pending()
                await self._receive_some()
            except ssl.SSLError as error:
                if error.reason == "HTTP_REQUEST":
                    await super().send(PLAIN_HTTP)
                else:
                    await self._send_pending()  # the alert that says why
                await super().close(unread=True)
                raise ClientLost(f"no TLS could be agreed on: {error.reason}") from error
            else:
                await self._send_pending()
                return self._tls.selected_alpn_protocol()

    async def receive(self) -> bytes:
        """See `Transport.receive`; a checkpoint only when it blocks. An end that the client has not announced counts as one too."""
        while True:
            try:
                return self._tls.read(RECEIVE_BYTES)
            except ssl.SSLWantReadError:
                try:
                    await self._send_pending()
                    await self._receive_some()
                except ClientLost:
                    return b""
            except (ssl.SSLError, ValueError):  # an announced end, or bytes that nobody with the keys has sent
                await trio.lowlevel.checkpoint()
                return b""

    async def send(self, data: bytes) -> None:
        """See `Transport.send`."""
        if self._closed:
            raise ClientLost("the connection is closed")
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            self.reset()
            raise ClientLost("the client has gone") from error
        await self._send_pending()

    async def close(self, *, unread: bool) -> None:
        """See `Transport.close`; the end is announced first."""
        if not self._closed:
            with contextlib.suppress(ssl.SSLError, ValueError):
                self._tls.unwrap()
            rest = self._outgoing.read()
            with contextlib.suppress(OSError):  # a client that takes nothing does not want to hear the end either
                self._socket.send(rest)
        await super().close(unread=unread)

    async def _receive_some(self) -> None:
        data = await super().receive()
        if not data:
            raise ClientLost("the client has gone")
        self._incoming.write(data)

    async def _send_pending(self) -> None:
        """Records leave in the order in which they were made: one task sends, others wait for it."""
        if not self._outgoing.pending:
            return
        try:
            self._sending.acquire_nowait()
        except trio.WouldBlock:
            await self._sending.acquire()
        try:
            if data := self._outgoing.read():
                await super().send(data)
        finally:
            self._sending.release()
