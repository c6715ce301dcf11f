"""SIGHUP: the API keys and the certificate are read again, and what runs goes on.

Only where there is a file to read: without one, a hangup ends the server as it ends every other program, say with its terminal.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from tripower.api.cli.hangup import repeat_hangup
from tripower.api.cli.terminal import note
from tripower.api.http.actor import ReloadKeys
from tripower.api.http.listening.tls import Certificates
from tripower.runtime.configuration import AuthSettings
from tripower.runtime.kernel import Ref, TripowerError


@contextmanager
def hangups(settings: AuthSettings, certificates: Certificates | None = None) -> Iterator[AsyncIterator[int] | None]:
    """The hangups that come while the block runs, and one that came before; None where they are left to the system."""
    if not (settings.keys_file or certificates) or not hasattr(signal, "SIGHUP"):
        yield None
        return
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        repeat_hangup()
        yield signals


async def reload_at_hangups(
    api: Ref[Any], signals: AsyncIterator[int] | None, certificates: Certificates | None = None, *, with_keys: bool = True
) -> None:
    """Read what can be read again at each. Never returns; what cannot be used is told, and the old stays in force."""
    if signals is not None:
        async for _ in signals:
            if with_keys:
                note(await reload_keys(api))
            if certificates is not None:
                note(await trio.to_thread.run_sync(reload_certificates, certificates))
    await trio.sleep_forever()


async def reload_keys(api: Ref[Any]) -> str:
    """Read them once. What came of it, in a line."""
    try:
        reloaded = await api.ask(ReloadKeys())
    except TripowerError as error:
        return f"the old API keys stay in force: {error.message}"
    return f"{reloaded.keys} API key{'' if reloaded.keys == 1 else 's'} in force"


def reload_certificates(certificates: Certificates) -> str:
    """Read them once, for new connections. Blocks for the files. What came of it, in a line."""
    try:
        certificates.reload()
    except TripowerError as error:
        return f"the old certificate stays in force: {error.message}"
    return "the certificate was read again"
