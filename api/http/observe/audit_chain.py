"""The audit log's lines: JSON objects, each bound to the one before by its SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from tripower.runtime.kernel import TripowerError

LINE_BYTES_MAX = 64 * 1024
FIRST = "0" * 64
"""What the first line follows."""
LOST = "lost"
"""The action of a line that stands for events that are missing."""


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
    count: int | UnsetType = UNSET
    """How many events are missing; of `lost` only."""
    prev_sha256: str


class BrokenChain(TripowerError):
    """An audit log in which something was changed, or that is none."""

    code = "audit_broken"
    status = 409


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AuditEvent).decode


class Chain:
    """Where a log ends: the number of its last line, and its digest. Immutable; `follow` gives the next place."""

    __slots__ = ("digest", "seq")

    def __init__(self, seq: int = 0, digest: str = FIRST) -> None:
        self.seq, self.digest = seq, digest

    def follow(self, timestamp: float, fields: dict[str, object]) -> tuple[bytes, Chain]:
        """The line of an event, with its end, and the place behind it. What no UTF-8 can hold is replaced by question marks."""
        event = msgspec.convert({**fields, "seq": self.seq + 1, "timestamp": timestamp, "prev_sha256": self.digest}, AuditEvent)
        try:
            line = _encode(event)
        except UnicodeEncodeError:
            return self.follow(timestamp, {name: _clean(value) for name, value in fields.items()})
        return line + b"\n", Chain(event.seq, hashlib.sha256(line).hexdigest())


def _clean(value: object) -> object:
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def end_of(path: Path) -> Chain:
    """The end of a log on disk. Blocks. Raises `BrokenChain` when its last line is none of ours, `OSError`."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LINE_BYTES_MAX))
        tail = file.read()
    if not tail:
        return Chain()
    last = tail.removesuffix(b"\n").rpartition(b"\n")[2]
    if not tail.endswith(b"\n"):
        raise BrokenChain(f"{path} ends in the middle of a line: keep it aside, and name another file")
    try:
        return Chain(_decode(last).seq, hashlib.sha256(last).hexdigest())
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
