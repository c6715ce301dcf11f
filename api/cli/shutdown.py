"""How a service ends: what each signal asks for, and a process that ends even if its device never answers again."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress

import trio

from tripower.api.cli import exit_codes
from tripower.api.cli.terminal import end_process


class Shutdown:
    """What signals have asked for so far."""

    def __init__(self) -> None:
        self.asked = False
        """Whether the first has come, or somebody at the console has asked instead."""
        self.at_once = trio.Event()
        """Set by the second."""
        self._scope = trio.CancelScope()

    def until_asked(self) -> trio.CancelScope:
        """A scope for work that the first signal cancels; cancelled from the start when that has come already."""
        self._scope = trio.CancelScope()
        if self.asked:
            self._scope.cancel(reason="a signal came")
        return self._scope

    def ask(self) -> None:
        """What the first signal does. Synchronous, idempotent."""
        if not self.asked:
            self.asked = True
            self._scope.cancel(reason="a signal came, or somebody at the console asked")

    async def watch(self, signals: AsyncIterator[int]) -> None:
        """Pass signals on. The third ends the process."""
        async for _ in signals:
            if not self.asked:
                self.ask()
            elif not self.at_once.is_set():
                self.at_once.set()
            else:
                end_process(exit_codes.FORCED)


@contextmanager
def end_within(seconds: float) -> Iterator[None]:
    """If the block takes longer, end the process under it: a thread that hangs in native code cannot be ended otherwise."""
    timer = threading.Timer(seconds, _end_process)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_process() -> None:
    with suppress(OSError):
        os.write(sys.stderr.fileno(), b"tripower: the device does not answer; the process ends without it\n")
    end_process(exit_codes.FORCED)
