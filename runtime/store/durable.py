"""Writing so that a crash at any instant leaves the old state or the new one, never a mixture.

The bytes go to a temporary name in the same directory tree, are flushed to the disk, and are renamed; then the directory is flushed,
because a rename lives in the directory and not in the file. All functions block and raise `OSError`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def fsync_directory(directory: Path) -> None:
    """Make renames and removals in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_file(temporary: Path, final: Path) -> None:
    """Give a complete file its final name, replacing what had it. Both must be on one file system."""
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, final)
    fsync_directory(final.parent)


def write_atomically(final: Path, data: bytes) -> None:
    """Make `final` hold exactly `data`. Callers hold a lock: the temporary name is fixed."""
    temporary = final.with_name(final.name + ".new")
    try:
        temporary.write_bytes(data)
        publish_file(temporary, final)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
