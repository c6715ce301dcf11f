"""The audit log: who did what, one JSON object a line, each bound to the one before by its SHA-256.

A line cannot be changed, taken out or moved without the next one's `prev_sha256` giving it away; what is cut off at the end only shows
against a later copy. Lines are written by a thread of their own from a bounded queue. While the disk takes nothing they stay in it and
the thread tries again by itself, so that the log recovers without anybody's request; what found no place meanwhile is counted, and the
log has a line that says how many events are missing. Whether work goes on until then is the operator's choice, see `Keepers.check`.

One process writes to a file: two would each continue the chain as they know it, and that looks like a forgery.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self

from tripower.api.http.observe.audit_chain import LOST, end_of
from tripower.runtime.kernel import InvalidConfiguration, Unavailable

log = logging.getLogger("tripower.audit")

EVENTS_MAX = 10_000
"""Events that may wait for the disk."""
GATHER_SECONDS = 0.05
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.25, 5.0
"""Between attempts at a disk that takes nothing: the first pause, which doubles up to the last one."""
CLOSE_SECONDS = 5.0


class AuditLog:
    """Appends to a file, mode 0600, and continues its chain. Opening it blocks for the end of the file.

    Raises `BrokenChain` when its last line is none of ours, `InvalidConfiguration` when another process writes to it or it is no
    regular file, `OSError`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = _open_alone(path)
        try:
            self._chain = end_of(path)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._events: deque[tuple[float, dict[str, object]]] = deque()
        self._waiting, self._ending = threading.Event(), threading.Event()
        self._torn: int | None = None
        """Where a line begins that could be written only in part, as long as it could not be cut off."""
        self._lost_lock = threading.Lock()
        self._lost_unsaid = 0
        self.lost = 0
        """Events that could not be kept, since the start."""
        self.failing = False
        """Whether events wait that the disk does not take, or one found no place."""
        self._thread = threading.Thread(target=self._run, name="tripower-audit", daemon=True)
        self._thread.start()

    def record(self, action: str, status: str, **fields: object) -> None:
        """Queue an event. Never blocks; one that finds no place is lost and counted."""
        if len(self._events) >= EVENTS_MAX:
            self._lose(1)
        else:
            self._events.append((time.time(), {"action": action, "status": status, **fields}))
        if not self._waiting.is_set():
            self._waiting.set()

    def check(self) -> None:
        """Raise `Unavailable` (`audit_failed`) while events cannot be kept."""
        if self.failing:
            raise Unavailable(
                "requests cannot be recorded now: the audit log takes nothing", code="audit_failed", retry_after=5.0
            )

    def close(self) -> None:
        """Write what is queued, for at most five seconds. Blocks; idempotent."""
        self._ending.set()
        self._waiting.set()
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive() and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # The thread.

    def _run(self) -> None:
        pause = RETRY_SECONDS
        while True:
            self._waiting.wait()
            self._waiting.clear()
            self._ending.wait(GATHER_SECONDS)
            last = self._ending.is_set()
            if self._write_waiting():
                pause = RETRY_SECONDS
            elif last:
                self._lose(len(self._events))
                log.error("the audit log ends without %d events that the disk did not take", self._lost_unsaid)
            else:
                self._ending.wait(pause)
                self._waiting.set()
                pause = min(2 * pause, RETRY_SECONDS_MAX)
            if last:
                return

    def _write_waiting(self) -> bool:
        """All that waits or, as far as the chain is concerned, nothing of it. False when it has to be tried again."""
        waiting = list(self._events)
        with self._lost_lock:
            unsaid = self._lost_unsaid
        if not waiting and not unsaid:
            return True
        lines, chain = [], self._chain
        for timestamp, fields in waiting:
            line, chain = chain.follow(timestamp, fields)
            lines.append(line)
        if unsaid:
            missing = {"action": LOST, "status": "failure", "reason": "audit_failed", "count": unsaid}
            line, chain = chain.follow(time.time(), missing)
            lines.append(line)
        try:
            self._append(b"".join(lines))
        except OSError as error:
            if not self.failing:
                log.error("the audit log takes nothing, and it is tried again: %s", error.strerror)
            self.failing = True
            return False
        self._chain = chain
        for _ in waiting:
            self._events.popleft()
        self._recovered(unsaid)
        return True

    def _append(self, data: bytes) -> None:
        """Write and sync. What could be written only in part is cut off again, now or before the next attempt."""
        if self._torn is not None:
            os.ftruncate(self._descriptor, self._torn)
            self._torn = None
        size = os.fstat(self._descriptor).st_size
        try:
            done = 0
            while done < len(data):
                done += os.write(self._descriptor, data[done:])
            os.fdatasync(self._descriptor)
        except OSError:
            self._torn = size
            os.ftruncate(self._descriptor, size)
            self._torn = None
            raise

    def _recovered(self, said: int) -> None:
        with self._lost_lock:
            self._lost_unsaid -= said
            if not self.failing or self._lost_unsaid:
                return
            self.failing = False
        log.warning("the audit log can be written again; %d events are missing, and it says so", said)

    def _lose(self, count: int) -> None:
        with self._lost_lock:
            first = not self._lost_unsaid
            self.lost += count
            self._lost_unsaid += count
            self.failing = True
        if first and count:
            log.error("the audit log loses events: %d wait for the disk, and there is no place for more", len(self._events))


def _open_alone(path: Path) -> int:
    """A descriptor to append by, with the file's lock, which the kernel drops when its holder ends."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidConfiguration(f"{path} is no regular file: server.audit_file needs one", param="server.audit_file")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidConfiguration(
                f"another server writes to the audit log {path}: give each its own server.audit_file", param="server.audit_file"
            ) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
