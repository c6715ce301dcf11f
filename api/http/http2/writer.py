"""The one task that writes for a connection: what all streams have framed since its last write goes out in one piece."""

from __future__ import annotations

import trio

from tripower.api.http.http2.framing import Framing
from tripower.api.http.transport import Transport

UNSENT_BYTES_MAX = 262_144
"""Answers that may wait for the writer; beyond that, streams wait."""


class Writer:
    """See the module. `run` is its task; the rest is for those who have framed something."""

    def __init__(self, framing: Framing, transport: Transport) -> None:
        self._framing = framing
        self._transport = transport
        self._last_words = b""
        self._unsent = 0
        self._wanted = trio.Event()
        self._written = trio.Event()

    def wake(self) -> None:
        """There is something to write."""
        self._wanted.set()

    def count(self, size: int) -> None:
        """A stream has framed so many bytes of an answer."""
        self._unsent += size

    def say_last(self, words: bytes) -> None:
        """Bytes that `h2` does not know of, after everything that it has framed so far."""
        self._last_words = words
        self.wake()

    @property
    def full(self) -> bool:
        """Whether streams have to wait."""
        return self._unsent > UNSENT_BYTES_MAX

    async def wait_for_room(self) -> None:
        """Wait while the client has not taken what was framed for it. Otherwise no checkpoint."""
        while self.full:
            await self._written.wait()

    async def wait_written(self) -> None:
        """Wait until everything that has been framed is on its way."""
        self.wake()
        while self._wanted.is_set():
            await self._written.wait()

    async def run(self) -> None:
        """Write until cancelled. Raises `ClientLost`."""
        while True:
            await self._wanted.wait()
            data, unsent = self._framing.data_to_send() + self._last_words, self._unsent
            self._last_words = b""
            if data:
                await self._transport.send(data)
                self._unsent -= unsent
            else:
                self._wanted = trio.Event()
            written, self._written = self._written, trio.Event()
            written.set()
