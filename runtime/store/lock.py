"""A lock between processes, on one file.

`flock` is dropped by the kernel when its holder ends, however it ends, so nothing goes stale. The holder writes its process id and
what it is doing into the file, so that whoever waits can say for whom. A lock file is never removed: removing it would let two
processes lock two different files of the same name.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trio

from tripower.runtime.store.errors import StoreBusy, mapped_os_errors

POLL_SECONDS = 0.1
HOLDER_BYTES_MAX = 200


class FileLock:
    """One exclusive lock. `purpose` is shown to those who wait. An instance is held at most once at a time."""

    def __init__(self, path: Path, purpose: str) -> None:
        self.path = path
        self.purpose = purpose
        self._descriptor: int | None = None

    def acquire_nowait(self) -> bool:
        """Take the lock if it is free; False when someone else has it."""
        assert self._descriptor is None, "a FileLock is not re-entrant"
        with mapped_os_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    return False
                raise
        self._descriptor = descriptor
        self._sign()
        return True

    def _sign(self) -> None:
        """Say who holds it. A full disk must not prevent that files are removed, so a failure is no error."""
        assert self._descriptor is not None
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"process {os.getpid()}, {self.purpose}".encode()[:HOLDER_BYTES_MAX], 0)
        except OSError:
            return

    def release(self) -> None:
        """Give it back. Does nothing when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> str:
        """Who holds it, for a message to people; an instant later it may be someone else."""
        try:
            with self.path.open("rb") as file:
                text = file.read(HOLDER_BYTES_MAX).decode(errors="replace")
        except OSError:
            text = ""
        return text or "another process"

    @contextmanager
    def held(self, *, wait_seconds: float) -> Iterator[None]:
        """Hold it for the block. Blocks the thread for up to `wait_seconds`, then raises `StoreBusy`."""
        give_up = time.monotonic() + wait_seconds
        while not self.acquire_nowait():
            if time.monotonic() >= give_up:
                raise self._busy()
            time.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            self.release()

    @asynccontextmanager
    async def held_async(
        self, *, deadline: float = math.inf, on_wait: Callable[[str], None] | None = None
    ) -> AsyncIterator[None]:
        """Hold it for the block; until `deadline` on Trio's clock, then `StoreBusy`. Cancellation leaves it as it was.

        `on_wait` is called with the holder once before the wait and again whenever the holder changes.
        """
        told = None
        while not self.acquire_nowait():
            if trio.current_time() >= deadline:
                raise self._busy()
            if on_wait is not None and (holder := self.holder()) != told:
                on_wait(holder)
                told = holder
            await trio.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            self.release()

    def _busy(self) -> StoreBusy:
        return StoreBusy(f"{self.holder()}, still works on the store: wait for it or end it, then repeat ({self.purpose})")
