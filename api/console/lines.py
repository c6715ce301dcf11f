"""Lines of a stream."""

from __future__ import annotations

import trio

from tripower.runtime.kernel.errors import Unavailable

RECEIVE_BYTES = 1 << 16
LINE_BYTES_MAX = 64 << 20


class Lines:
    """What comes, line by line. One task reads."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._received = bytearray()
        self._searched = 0

    async def receive(self) -> bytes | None:
        """The next line without its end; None when the other side has ended. Blocks. Raises `Unavailable` for one without end."""
        while (end := self._received.find(b"\n", self._searched)) < 0:
            self._searched = len(self._received)
            if self._searched > LINE_BYTES_MAX:
                raise Unavailable("what answers is no console: a line of it has no end", code="no_console")
            try:
                data = await self._stream.receive_some(RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return None
            if not data:
                return None
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        self._searched = 0
        return line
