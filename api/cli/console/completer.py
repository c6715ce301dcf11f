"""Completion at the console's prompt: the line editor holds the loop, so this asks on a connection of its own, and blocks."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from tripower.api.console.protocol import Complete, FromServer, Result

PATIENCE_SECONDS = 1.0


class Completer:
    """What the last of some words could become, as the process says. A context manager that closes the connection."""

    def __init__(self, path: Path, also: Sequence[str] = ()) -> None:
        self._path = path
        self._also = tuple(also)
        """Words of the prompt itself."""
        self._lines: BinaryIO | None = None
        self._last = 0

    def complete(self, words: Sequence[str]) -> list[str]:
        """Blocks for a moment. Raises `OSError` or `ValueError` when the process does not answer as it should."""
        if self._lines is None:
            self._lines = self._opened()
        self._last += 1
        try:
            self._lines.write(msgspec.json.encode(Complete(self._last, tuple(words))) + b"\n")
            while line := self._lines.readline():
                frame = msgspec.json.decode(line, type=FromServer)
                if isinstance(frame, Result) and frame.id == self._last:
                    also = [word for word in self._also if len(words) < 2 and word.startswith(words[-1])]
                    return [*frame.value, *also]
        except (OSError, ValueError):
            self._close()
            raise
        self._close()
        raise ConnectionError("the process has ended")

    def _opened(self) -> BinaryIO:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(PATIENCE_SECONDS)
            connection.connect(os.fspath(self._path))
            return connection.makefile("rwb", buffering=0)  # type: ignore[return-value]  # it reads and writes, lines too

    def _close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._close()
