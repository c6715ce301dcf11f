"""The terminal while a screen is live: every key at once, another page, no cursor; and as it was before, however that ends."""

from __future__ import annotations

import os
import signal
import termios
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.live import Live


class Terminal:
    """A context manager. All methods are synchronous; drawing blocks as long as the terminal does."""

    def __init__(self, console: Console, keyboard: int) -> None:
        """`keyboard` is the descriptor of a terminal."""
        self.keyboard = keyboard
        self._console = console
        self._live: Live | None = None
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.give_back()

    def take(self) -> None:
        """Switch to the live screen. Ctrl-C and Ctrl-Z stay signals; Ctrl-S holds nothing up."""
        if self._live is not None:
            return
        self._before = termios.tcgetattr(self.keyboard)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        try:
            self._make_raw()
            self._live.start()
        except BaseException:
            self.give_back()
            raise

    def _make_raw(self) -> None:
        raw = list(self._before)
        raw[0] &= ~termios.IXON
        raw[3] &= ~(termios.ICANON | termios.ECHO)
        raw[6] = list(raw[6])
        raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
        raw[6][termios.VQUIT] = b"\0"  # a key like any other
        termios.tcsetattr(self.keyboard, termios.TCSANOW, raw)

    def give_back(self) -> None:
        """Switch to what was there before. Idempotent; a terminal that has gone needs nothing."""
        live, self._live = self._live, None
        if live is None:
            return
        try:
            with suppress(OSError):
                live.stop()
        finally:
            with suppress(termios.error):
                termios.tcsetattr(self.keyboard, termios.TCSANOW, self._before)

    def suspend(self) -> None:
        """Stop the process, as Ctrl-Z does elsewhere; returns when the shell lets it go on in the foreground."""
        self.give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.take()

    def renew(self) -> None:
        """After a stop that nobody announced, the shell has had the terminal: make it ours again."""
        if self._live is not None:
            self._make_raw()
            self._console.set_alt_screen(True)
            self._console.show_cursor(False)

    def draw(self, screen: RenderableType) -> None:
        """Show this, which fills the screen."""
        if self._live is None:
            return
        size = os.get_terminal_size(self.keyboard)  # and not what COLUMNS says, which no new size changes
        if size.columns and size.lines:
            self._console.size = ConsoleDimensions(size.columns, size.lines)
        self._live.update(screen, refresh=True)
