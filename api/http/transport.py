"""One accepted connection as bytes.

Hypercorn writes inside a shielded scope, so a client that stops reading pins its request for ever. Here a write may be cancelled, and
one that makes no progress for too long ends the connection. Either way part of an answer may already be on the wire, so nothing can
follow it: the connection is reset.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import struct

import trio

RECEIVE_BYTES = 65_536
LINGER_SECONDS = 2.0
LINGER_BYTES = 16 << 20
_RESET = struct.pack("ii", 1, 0)


class ClientLost(ConnectionError):
    """The client has gone, or has taken nothing for so long that it counts as gone."""


class Transport:
    """A non-blocking socket in Trio. One task reads, one writes."""

    __slots__ = ("_closed", "_send_seconds", "_socket", "_stall", "waiting_since")

    secure = False
    """Whether what passes is encrypted."""

    def __init__(self, connected: socket.socket, *, send_seconds: float) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._send_seconds = send_seconds
        self._stall: trio.CancelScope | None = None
        self.waiting_since: float | None = None
        """Since when a write has been waiting for the client to take it, on Trio's clock; None while none does."""
        self._closed = False

    async def receive(self) -> bytes:
        """Some bytes, or none at all when the other side has ended. Blocks; always a checkpoint."""
        while not self._closed:
            try:
                await trio.lowlevel.wait_readable(self._socket)
                return self._socket.recv(RECEIVE_BYTES)
            except (BlockingIOError, InterruptedError):
                continue
            except (OSError, trio.ClosedResourceError):
                break
        return b""

    @property
    def broken(self) -> bool:
        """Whether the connection is over in both directions, as far as the kernel has heard."""
        if self._closed:
            return True
        look = select.poll()
        look.register(self._socket, 0)  # errors and hangups are told unasked
        return bool(look.poll(0))

    def send_nowait(self, data: bytes) -> None:
        """Write a few bytes, or none where the buffer is full. What goes wrong shows in `broken`."""
        with contextlib.suppress(OSError):
            if not self._closed and 0 < self._socket.send(data) < len(data):
                self.reset()

    async def send(self, data: bytes) -> None:
        """Write everything. Blocks only while the socket's buffer is full, and is no checkpoint otherwise.

        Raises `ClientLost` when the client has gone or takes nothing for `send_seconds`. After an exception, a cancellation included,
        the connection is reset.
        """
        if self._closed:
            raise ClientLost("the connection is closed")
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.reset()
            raise ClientLost("the client has gone") from error
        if sent != len(data):
            await self._send_rest(memoryview(data)[sent:])

    async def _send_rest(self, rest: memoryview) -> None:
        done, self.waiting_since = False, trio.current_time()
        try:
            while rest:
                await self._wait_for_progress()
                try:
                    rest = rest[self._socket.send(rest) :]
                except (BlockingIOError, InterruptedError):
                    continue
            done = True
        except ClientLost:  # an `OSError` too
            raise
        except (OSError, trio.ClosedResourceError) as error:
            raise ClientLost("the client has gone") from error
        finally:
            self._stall = self.waiting_since = None
            if not done:
                self.reset()

    async def _wait_for_progress(self) -> None:
        with trio.CancelScope(deadline=trio.current_time() + self._send_seconds) as self._stall:
            await trio.lowlevel.wait_writable(self._socket)
        if self._stall.cancelled_caught:
            raise ClientLost(f"the client took nothing for {self._send_seconds:.0f} s")

    def tighten(self, send_seconds: float) -> None:
        """From now on a write may stand still for no longer than this; one that stands still already is included."""
        self._send_seconds = min(self._send_seconds, send_seconds)
        if self._stall is not None:
            self._stall.deadline = min(self._stall.deadline, trio.current_time() + self._send_seconds)

    def reset(self) -> None:
        """Close at once, whatever is on its way. Idempotent."""
        if not self._closed:
            with contextlib.suppress(OSError):  # a socket that the other side has reset already may refuse
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._close()

    async def close(self, *, unread: bool) -> None:
        """End after what was sent has arrived. Idempotent; blocks for at most `LINGER_SECONDS`.

        With `unread`, the client may still be sending a body that nobody wants. Closing under it would reset the connection and take
        the answer with it, so a little more is read and thrown away first.
        """
        if self._closed:
            return
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            unread = False
        try:
            if unread:
                with trio.move_on_after(LINGER_SECONDS):
                    await self._discard()
        finally:
            self._close()

    async def _discard(self) -> None:
        left = LINGER_BYTES
        while left > 0 and (data := await Transport.receive(self)):  # as it comes: not worth decrypting
            left -= len(data)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


def set_user_timeout(sock: socket.socket, seconds: float) -> None:
    """Let the kernel give up on data that a peer does not acknowledge; inherited by accepted sockets. Where it exists."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None and seconds < math.inf:
        sock.setsockopt(socket.IPPROTO_TCP, option, int(seconds * 1000))


KEEP_ALIVE_IDLE, KEEP_ALIVE_BETWEEN, KEEP_ALIVE_PROBES = 30, 10, 3


def set_keep_alive(sock: socket.socket) -> None:
    """Let the kernel notice within a minute that a silent peer is no more, though nothing is being sent to it; inherited likewise."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEP_ALIVE_IDLE),
        ("TCP_KEEPINTVL", KEEP_ALIVE_BETWEEN),
        ("TCP_KEEPCNT", KEEP_ALIVE_PROBES),
    ):
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
