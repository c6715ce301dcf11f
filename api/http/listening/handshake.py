"""The first stage of an encrypted connection."""

from __future__ import annotations

import logging

import trio

from tripower.api.http.listening.secure_transport import SecureTransport
from tripower.api.http.transport import ClientLost

log = logging.getLogger("tripower.http")

HANDSHAKE_SECONDS = 10.0
"""Time for agreeing on keys. A client needs two round trips."""


class Handshake:
    """Agrees on keys, in a task of its own, so that accepting goes on meanwhile. `run` is its task."""

    def __init__(self, transport: SecureTransport) -> None:
        self._transport = transport
        self.done = False
        """Whether keys are agreed on; the transport is open then, else closed."""
        self.protocol: str | None = None
        """What the client chose by ALPN."""

    @property
    def busy(self) -> bool:
        """Never: nobody has asked for anything yet."""
        return False

    async def run(self) -> None:
        """Shake hands, within `HANDSHAKE_SECONDS`. What goes wrong ends this connection and nothing else."""
        try:
            with trio.move_on_after(HANDSHAKE_SECONDS):
                self.protocol = await self._transport.shake_hands()
                self.done = True
        except ClientLost as lost:
            log.info("a connection ended before it began: %s", lost)
        finally:
            if not self.done:
                self._transport.reset()

    def drain(self) -> None:
        """End at once."""
        self._transport.reset()
