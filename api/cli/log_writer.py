"""Log lines written by a thread of their own, so that whoever reads them slowly, or not at all, never holds up the service.

Lines gather for a moment and go out together, which is also cheaper than a write for each. What does not fit is counted and said.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from contextlib import suppress

LINES_MAX = 10_000
GATHER_SECONDS = 0.02
CLOSE_SECONDS = 1.0


class LogWriter(logging.Handler):
    """Writes formatted records to a descriptor, which stays the caller's."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: deque[str | threading.Event] = deque()
        """An event is set when the lines before it are written."""
        self._dropped = 0
        self._waiting = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tripower-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line. Never blocks on the reader."""
        if len(self._lines) >= LINES_MAX:
            self._dropped += 1
            return
        self._lines.append(self.format(record))
        if not self._waiting.is_set():
            self._waiting.set()

    def flush(self) -> None:
        """Wait until what was logged so far is written, for at most a second: what is said next then comes after it. Blocks."""
        if self._thread.is_alive():
            written = threading.Event()
            self._lines.append(written)
            self._waiting.set()
            written.wait(CLOSE_SECONDS)

    def close(self) -> None:
        """Write what is left, for at most a second. Idempotent."""
        self._ending.set()
        self._waiting.set()
        self._thread.join(CLOSE_SECONDS)
        super().close()

    def _run(self) -> None:
        while not (self._ending.is_set() and not self._lines):
            self._waiting.wait()
            self._ending.wait(GATHER_SECONDS)
            self._waiting.clear()
            gathered, self._dropped, dropped = [self._lines.popleft() for _ in range(len(self._lines))], 0, self._dropped
            lines = [each for each in gathered if isinstance(each, str)]
            if dropped:
                lines.append(f"({dropped} log lines were dropped: nobody read them)")
            if lines:
                self._write("\n".join(lines).encode(errors="replace") + b"\n")
            for each in gathered:
                if isinstance(each, threading.Event):
                    each.set()

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # a reader that has gone does not end the service
            while data:
                data = data[os.write(self._descriptor, data) :]
