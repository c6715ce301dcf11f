"""A pseudo terminal, with a thread that takes what is written to it, so that no writer ever waits."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

PATIENCE = 30.0
"""Seconds after which a test gives up: never reached by one that passes."""


class PseudoTerminal:
    """`master` is the side of whoever looks and types, `slave` that of the program."""

    def __init__(self, columns: int, lines: int) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(columns, lines)
        self._changed = threading.Condition()
        self._written = ""
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    @property
    def written(self) -> str:
        """Everything so far."""
        with self._changed:
            return self._written

    def wait_for(self, *texts: str) -> str:
        """Wait until something with each of these texts has been written since the last call; returns it. Blocks."""
        with self._changed:
            assert self._changed.wait_for(lambda: all(text in self._written for text in texts), PATIENCE), self._written[-4000:]
            taken, self._written = self._written, ""
            return taken

    def _take(self) -> None:
        with suppress(OSError):
            while data := os.read(self.master, 65_536):
                with self._changed:
                    self._written += data.decode(errors="replace")
                    self._changed.notify_all()

    def close(self) -> None:
        os.close(self.slave)  # which ends the thread's read
        self._thread.join(PATIENCE)
        os.close(self.master)


@contextmanager
def pseudo_terminal(columns: int = 80, lines: int = 24) -> Iterator[PseudoTerminal]:
    """A terminal of this size for the length of the block. Whatever program it was given to must have ended by then."""
    terminal = PseudoTerminal(columns, lines)
    try:
        yield terminal
    finally:
        terminal.close()
