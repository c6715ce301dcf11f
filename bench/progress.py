"""A line for people who wait, on standard error, so that standard output stays a report."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tripower.bench.paired import Progress

WIDTH = 110
LINE_SECONDS = 5.0
"""Where the line cannot be replaced, in a log, a new one comes no more often than this."""


@contextmanager
def progress_line() -> Iterator[Progress]:
    """A function that shows what is being done; on a terminal each text replaces the one before, and nothing is left at the end."""
    terminal = sys.stderr.isatty()
    due = 0.0

    def show(text: str) -> None:
        nonlocal due
        if terminal:
            sys.stderr.write(f"\r\x1b[K{text[:WIDTH]}")
        elif time.monotonic() >= due:
            due = time.monotonic() + LINE_SECONDS
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    try:
        yield show
    finally:
        if terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
