"""The audit log: who did what, one JSON object a line, each bound to the one before by its SHA-256.

A line cannot be changed, taken out or moved without the next one's `prev_sha256` giving it away; what is cut off at the end only shows
against a later copy. Lines are written by a thread of their own from a bounded queue. What to do when the disk fails or the queue is
full is the operator's choice: go on and count, or refuse work until it can be recorded again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tripower.runtime.kernel import TripowerError, Unavailable

log = logging.getLogger("tripower.audit")

EVENTS_MAX = 10_000
"""Events that may wait for the disk."""
GATHER_SECONDS = 0.05
CLOSE_SECONDS = 5.0
LINE_BYTES_MAX = 64 * 1024
FIRST = "0" * 64
"""What the first line follows."""


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line. `reason` is a code, never an exception's text; `tokens` are of prompt and answer."""

    seq: int
    timestamp: float
    request_id: str = ""
    identity: str = ""
    action: str
    model: str = ""
    status: str
    reason: str = ""
    duration_ms: float = 0.0
    tokens: int = 0
    prev_sha256: str


class BrokenChain(TripowerError):
    """An audit log in which something was changed, or that is none."""

    code = "audit_broken"
    status = 409


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AuditEvent).decode


class AuditLog:
    """Appends to a file, mode 0600, and continues its chain. Raises `BrokenChain` when its last line is none of ours, `OSError`."""

    def __init__(self, path: Path) -> None:
        self._seq, self._previous = _last(path)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._events: deque[tuple[float, dict[str, object]]] = deque()
        self._waiting, self._ending = threading.Event(), threading.Event()
        self.lost = 0
        """Events that could not be kept."""
        self.failing = False
        """Whether the latest event could not be kept."""
        self._thread = threading.Thread(target=self._run, name="tripower-audit", daemon=True)
        self._thread.start()

    def record(self, action: str, status: str, **fields: object) -> None:
        """Queue an event. Never blocks; one that finds no place is lost and counted."""
        if len(self._events) >= EVENTS_MAX:
            self._lose(1)
            return
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

    def _run(self) -> None:
        while not (self._ending.is_set() and not self._events):
            self._waiting.wait()
            self._ending.wait(GATHER_SECONDS)
            self._waiting.clear()
            waiting = [self._events.popleft() for _ in range(len(self._events))]
            if waiting:
                self._write(waiting)

    def _write(self, waiting: list[tuple[float, dict[str, object]]]) -> None:
        """All of them or, as far as the chain is concerned, none: a torn line is cut off again."""
        seq, previous, lines = self._seq, self._previous, []
        for timestamp, fields in waiting:
            seq += 1
            event = msgspec.convert({"seq": seq, "timestamp": timestamp, "prev_sha256": previous, **fields}, AuditEvent)
            lines.append(_encode(event))
            previous = hashlib.sha256(lines[-1]).hexdigest()
        data = b"\n".join(lines) + b"\n"
        size = os.fstat(self._descriptor).st_size
        try:
            done = 0
            while done < len(data):
                done += os.write(self._descriptor, data[done:])
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._cut(size)
            self._lose(len(waiting), error)
            return
        self._seq, self._previous, self.failing = seq, previous, False

    def _cut(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            log.error("a torn line stays in the audit log: %s", error.strerror)

    def _lose(self, count: int, error: OSError | None = None) -> None:
        if not self.failing:
            log.error("the audit log takes nothing: %s", error.strerror if error else "its queue is full")
        self.lost += count
        self.failing = True


def _last(path: Path) -> tuple[int, str]:
    """Number and digest of the last line; of nothing, where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LINE_BYTES_MAX))
            tail = file.read()
    except FileNotFoundError:
        return 0, FIRST
    if not tail:
        return 0, FIRST
    last = tail.removesuffix(b"\n").rpartition(b"\n")[2]
    if not tail.endswith(b"\n"):
        raise BrokenChain(f"{path} ends in the middle of a line: keep it aside, and name another file")
    try:
        return _decode(last).seq, hashlib.sha256(last).hexdigest()
    except (msgspec.ValidationError, msgspec.DecodeError):
        raise BrokenChain(f"{path} is no audit log: name another file") from None


def read(path: Path) -> Iterator[AuditEvent]:
    """Every event of a log, checked. Blocks. Raises `BrokenChain` naming the first line that does not follow, `OSError`."""
    seq, previous = 0, FIRST
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            text = line.removesuffix(b"\n")
            try:
                event = _decode(text)
            except (msgspec.ValidationError, msgspec.DecodeError):
                raise BrokenChain(f"{path}: line {number} is no event") from None
            if event.prev_sha256 != previous or event.seq != seq + 1 or text == line:
                raise BrokenChain(f"{path}: line {number} does not follow the one before: something was changed or taken out")
            seq, previous = event.seq, hashlib.sha256(text).hexdigest()
            yield event
