"""Parts of an answer as server-sent events with names.

As in a chat stream, what has come since the last write goes out as one write, with events for each token. The events that open an
answer go out with the first part, or with the first sign of life if that is earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import trio

from tripower.api.http.dialects.following import Following
from tripower.api.http.exchange import Exchange
from tripower.api.http.sse import HEADERS
from tripower.runtime.kernel import TripowerError

if TYPE_CHECKING:
    from tripower.api.http.dialects.endpoint import AnswerWriter

_encode = msgspec.json.Encoder().encode


class PartStream:
    """Writes one generation to its client."""

    def __init__(self, exchange: Exchange, writer: AnswerWriter, following: Following, *, quiet_seconds: float) -> None:
        self.following = following
        self._exchange = exchange
        self._writer = writer
        self._quiet_seconds = quiet_seconds
        self._opened = False
        self._pending = b""

    async def follow(self) -> None:
        """Write events as they come; the last ones are kept for `finish`. Blocks for as long as the model and the client need.

        Raises the error of a failed generation, after what came before it has been written.
        """
        following = self.following
        while not following.ended:
            with trio.move_on_after(self._quiet_seconds) as quiet:
                steps = await following.receive()
            if quiet.cancelled_caught:
                await self._write(self._opening() + self._writer.keep_alive)
                continue
            self._exchange.completion_tokens = following.tokens
            events = [event for step in steps for event in step]
            data = self._opening() if events else b""
            data += b"".join(map(self._writer.event, events))
            if following.finished is not None:
                self._pending = data
            elif data:
                await self._write(data)
        if following.failure is not None:
            raise following.failure

    async def finish(self) -> None:
        """Write the end of a complete answer."""
        pending = self._pending or self._opening()
        await self._write(pending + self._writer.end(self.following), last=True)

    async def fail(self, error: TripowerError) -> None:
        """Write the end of an answer that cannot be completed. What came before it stays valid."""
        await self._write(self._writer.fail(error, self.following), last=True)

    def _opening(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        return self._writer.opening(self.following)

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        if not self._exchange.started:
            await self._exchange.start_stream([*HEADERS, *self._writer.headers])
        await self._exchange.write(data, last=last)


def event_bytes(name: str, data: Any) -> bytes:
    """One event, with its name before its data."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(data) + b"\n\n"
