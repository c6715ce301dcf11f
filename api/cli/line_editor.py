"""Reading lines from a person, or from a pipe.

It blocks the whole loop, on purpose: nothing else has anything to do while a person types, and the line editor needs the main thread,
where Ctrl-C interrupts it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tripower.api.cli.terminal import is_terminal, note

HISTORY_LINES_MAX = 1000
LEFT_SECONDS = 60.0
"""A file that is being written for longer than that is written by nobody any more."""
Complete = Callable[[Sequence[str]], Sequence[str]]
"""What the last of some words could become."""


def read_line(prompt: str, hint: str, *, interrupted: str = "") -> str | None:
    """A line, or None at the end of input. Blocks the thread. At a terminal, Ctrl-C gives `interrupted` and shows the hint.

    Anywhere else it raises `KeyboardInterrupt`.
    """
    terminal = is_terminal(sys.stdin)
    at_interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    at_end = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        return input(prompt) if terminal else sys.stdin.readline() or None
    except EOFError:
        print()
        return None
    except KeyboardInterrupt:
        if not terminal:
            raise
        print()
        note(hint)
        return interrupted
    finally:
        signal.signal(signal.SIGINT, at_interrupt)
        signal.signal(signal.SIGTERM, at_end)


@contextmanager
def history(path: Path) -> Iterator[None]:
    """Lines that were typed before, by arrow keys, and kept at the end of the block in a file for its owner only.

    Blocks for the file. One that cannot be read or written is no reason to stop.
    """
    import readline

    _sweep(path)
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES_MAX)
    try:
        yield
    finally:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            path.chmod(0o600)
            readline.write_history_file(path)


def _sweep(path: Path) -> None:
    """Remove what readline leaves beside a history when it is killed while it writes one."""
    long_ago = time.time() - LEFT_SECONDS
    with suppress(OSError):
        for left in path.parent.glob(f"{path.name}-*.tmp"):
            if left.stat().st_mtime < long_ago:
                left.unlink()


def complete_with(complete: Complete) -> None:
    """Let Tab complete the word that is being typed. What `complete` raises is nothing to complete."""
    import readline

    found: list[str] = []

    def nth(begun: str, number: int) -> str | None:
        if number == 0:
            before = readline.get_line_buffer()[: readline.get_begidx()].split()
            found.clear()
            with suppress(Exception):  # readline would print it into the line
                found.extend(complete([*before, begun]))
        return f"{found[number]} " if number < len(found) else None

    readline.set_completer(nth)
    readline.set_completer_delims(" \t")
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
