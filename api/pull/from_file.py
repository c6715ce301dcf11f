"""A model file of this machine, taken into the store.

It is cloned where the file system shares blocks (Btrfs, XFS), else copied; never hard-linked and never used by reference. A hard link
is the same file: whoever writes to the original would change bytes that the store has verified.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import BinaryIO

from tripower.api.pull.model_format import detect_format
from tripower.api.pull.sources import FileSource
from tripower.api.pull.workspace import Fetched, Workspace, check_digest, in_thread
from tripower.runtime.kernel.errors import ModelRefused, NotFound
from tripower.runtime.store import HashingFile, StoredFile
from tripower.runtime.store.errors import mapped_os_errors
from tripower.runtime.store.hashing_file import CHUNK_BYTES

FICLONE = 0x40049409  # _IOW(0x94, 9, int) of linux/fs.h


async def fetch_file(source: FileSource, workspace: Workspace) -> tuple[str, tuple[Fetched, ...]]:
    """(format, files) of a local file. Raises `NotFound`, `ModelRefused` when it changes while it is read, `StoreFull`."""
    return await in_thread(_take, source.path, workspace)


def _take(original: Path, workspace: Workspace) -> tuple[str, tuple[Fetched, ...]]:
    with _open_regular(original) as file:
        before = os.fstat(file.fileno())
        model_format = detect_format(original, str(original))
        copy = workspace.directory / "copy"
        with HashingFile(copy) as growing:
            growing.restart()
            _clone_or_copy(file, growing, before.st_size, workspace)
        after = os.fstat(file.fileno())
    if growing.size != before.st_size or (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise ModelRefused(
            f"{original} changed while it was read; pull it again when nothing writes to it", code="source_changed"
        )
    check_digest(str(original), growing.sha256, workspace.sha256)
    return model_format, (Fetched(StoredFile(original.name, growing.size, growing.sha256), copy),)


def _open_regular(path: Path) -> BinaryIO:
    with mapped_os_errors(path):
        try:
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                raise ModelRefused(
                    f"{path} is a folder, which is used where it lies: `tripower run {path}` needs no pull", code="not_a_file"
                )
            if not stat.S_ISREG(mode):
                raise ModelRefused(f"{path} is not a regular file", code="not_a_file")
            return path.open("rb")
        except FileNotFoundError as error:
            raise NotFound(f"there is no file {path}", code="file_not_found") from error


def _clone_or_copy(file: BinaryIO, growing: HashingFile, size: int, workspace: Workspace) -> None:
    def tell() -> None:
        workspace.meter.show_from_thread("verifying", growing.size, size, os.path.basename(file.name))

    try:
        with growing.path.open("r+b") as target:
            fcntl.ioctl(target.fileno(), FICLONE, file.fileno())
    except OSError:  # another file system, or one that cannot share blocks
        workspace.store.ensure_room(size)
        while chunk := file.read(min(CHUNK_BYTES, size - growing.size)):  # no further: it may grow as fast as it is read
            growing.write(chunk)
            tell()
        growing.flush()
    else:
        growing.keep(size, checkpoint=tell)
