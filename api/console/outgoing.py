"""What a connection still has to send: lines in order, within bounds, written by one task so that no line is cut in its middle."""

from __future__ import annotations

from collections import deque

import trio

from tripower.api.http.transport import Transport

OUTGOING_BYTES_MAX = 1 << 20
"""Of lines that wait to be written, beside the last one. Whoever has another one waits too."""
BURST_BYTES = 1 << 18
"""What is joined into one write."""


class Outgoing:
    """Lines on their way to one client. `run` is its task."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._news = trio.Event()
        self._room = trio.Event()

    async def put(self, line: bytes) -> None:
        """Queue a line. Blocks while too much waits already, and may be cancelled then; always a checkpoint."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._bytes > OUTGOING_BYTES_MAX:
            await self._room.wait()
        self._lines.append(line)
        self._bytes += len(line)
        self._news.set()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def run(self) -> None:
        """Write until the client is lost, which raises `ClientLost`, or until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            while self._lines:
                await self._transport.send(self._taken())
                self._room.set()
                self._room = trio.Event()
                await trio.lowlevel.checkpoint()

    def last_words(self, lines: bytes) -> None:
        """Write what waits and these lines as far as the socket takes them at once. Synchronous; for the end."""
        waiting = b"".join(self._lines)
        self._lines.clear()
        self._transport.send_nowait(waiting + lines)

    def _taken(self) -> bytes:
        burst = [self._lines.popleft()]
        size = len(burst[0])
        while self._lines and size + len(self._lines[0]) <= BURST_BYTES:
            burst.append(self._lines.popleft())
            size += len(burst[-1])
        self._bytes -= size
        return b"".join(burst)
