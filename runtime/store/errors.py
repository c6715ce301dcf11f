"""What can go wrong with files of the store, and the one seam where an `OSError` becomes one of these.

| class | what to do |
| --- | --- |
| `StoreFull` | make room, then repeat: the operation left nothing half done |
| `StoreDenied` | give the user write access, or point `TRIPOWER_HOME` elsewhere |
| `StoreBusy` | wait for the process that the message names, or end it |
| `DigestMismatch` | the bytes are not the ones that were promised; nothing was kept |
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tripower.runtime.kernel.errors import ModelRefused, Unavailable


class StoreFull(Unavailable):
    """The file system has no room, or the user's quota is used up."""

    code = "disk_full"
    status = 507
    kind = "server_error"


class StoreDenied(Unavailable):
    """The store's files cannot be read or written by this user."""

    code = "store_denied"
    status = 500
    kind = "server_error"
    retryable = False


class StoreBusy(Unavailable):
    """Another process held a lock for longer than the caller wanted to wait."""

    code = "store_busy"


class DigestMismatch(ModelRefused):
    """A file's SHA-256 differs from the one that was promised."""

    code = "integrity_mismatch"


FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def store_full(where: Path, needed: int | None = None) -> StoreFull:
    """The error for a full disk, with the cure. `needed` is in bytes."""
    amount = f"; {needed / 1e6:.0f} MB are needed" if needed else ""
    return StoreFull(
        f"no space left on the disk that holds {where}{amount}: free some (`tripower list`, `tripower rm NAME`) "
        f"or set TRIPOWER_HOME to a directory on a larger disk"
    )


@contextmanager
def mapped_os_errors(where: Path) -> Iterator[None]:
    """Turn a full disk and missing permissions into their typed errors; any other `OSError` into `Unavailable`."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise store_full(where) from error
        if error.errno in DENIED:
            raise StoreDenied(
                f"no permission to use {error.filename or where}: make it writable for this user or set TRIPOWER_HOME to another directory"
            ) from error
        raise Unavailable(f"cannot use {error.filename or where}: {error.strerror or error}", code="store_failed") from error
