"""SIGHUP in the first seconds, before it is known whether there is anything to read again: it is remembered."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_came: list[int] = []


def _remember(number: int, _frame: object) -> None:
    _came.append(number)


@contextmanager
def hold_hangups() -> Iterator[None]:
    """While the block runs a hangup ends nothing, unless `leave_hangups` is called. Of the main thread only, elsewhere without effect."""
    held = hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread()
    if not held or signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL:  # a parent may have said that it is to be ignored
        yield
        return
    _came.clear()
    signal.signal(signal.SIGHUP, _remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def leave_hangups() -> None:
    """From now on they mean what they mean to the system, and so does one that has come."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is _remember:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        repeat_hangup()


def repeat_hangup() -> None:
    """Send one that has come to whoever handles them now."""
    if _came:
        _came.clear()
        signal.raise_signal(signal.SIGHUP)
