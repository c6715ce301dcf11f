"""A file that is hashed while it grows, so that no byte is read twice.

A download appends to it. When an earlier attempt left a beginning, `keep` reads that beginning once to bring the hash up to date,
which costs far less than fetching it again. All methods block; writing raises `StoreFull` or `StoreDenied`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tripower.runtime.store.errors import mapped_os_errors

CHUNK_BYTES = 1 << 20


def no_checkpoint() -> None:
    """For callers that cannot be cancelled."""


class HashingFile:
    """An open file at `path`, created when absent. Starts at its end of nothing: call `keep` to go on from what lies there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with mapped_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(exist_ok=True)
            self._file = path.open("r+b")
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        """Digest of the first `size` bytes."""
        return self._hash.hexdigest()

    def stored(self) -> int:
        """Bytes that the file has on the disk, hashed or not."""
        return self._file.seek(0, 2)

    def keep(self, length: int, *, sha256: str | None = None, checkpoint: Callable[[], None] = no_checkpoint) -> bool:
        """Take the next `length` bytes that lie in the file into the hash; they must have the digest `sha256`, where one is given.

        False, with nothing taken, when the file is shorter or the digest differs. `checkpoint` is called between chunks and may raise.
        """
        whole, own, taken = self._hash.copy(), hashlib.sha256(), 0
        self._file.seek(self.size)
        while taken < length:
            checkpoint()
            chunk = self._file.read(min(length - taken, CHUNK_BYTES))
            if not chunk:
                return False
            whole.update(chunk)
            own.update(chunk)
            taken += len(chunk)
        if sha256 is not None and own.hexdigest() != sha256:
            return False
        self._hash = whole
        self.size += length
        return True

    def cut(self) -> None:
        """Drop what lies behind the hashed part, so that `write` appends to known bytes."""
        with mapped_os_errors(self.path):
            self._file.truncate(self.size)
            self._file.seek(self.size)

    def restart(self) -> None:
        """Forget everything: an empty file."""
        self._hash = hashlib.sha256()
        self.size = 0
        self.cut()

    def write(self, data: bytes) -> None:
        """Append."""
        with mapped_os_errors(self.path):
            self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def flush(self) -> None:
        """Hand buffered bytes to the system, which may be when a full disk shows."""
        with mapped_os_errors(self.path):
            self._file.flush()

    def close(self) -> None:
        """Idempotent."""
        with mapped_os_errors(self.path):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        try:
            self._file.close()
        except OSError:
            return  # the error that is on its way says more
