"""A GGUF file, opened once, checked whole, and mapped.

The file is untrusted. Its header is read under fixed limits (see `cursor`, `values` and `layout`), with no recursion and nothing
allocated on a claim alone; whatever is wrong is a `ModelRefused` whose `param` names the field. Opening reads the header only;
weights are touched when `data` or `read` is called. The format is described in ggml's `docs/gguf.md`.

A mapped file that someone shortens would kill the process at the next touch, and one that someone overwrites would give mixed
weights. So `data` and `read` compare the file's stamp first, and whoever holds a file long can ask `changed()`. A rename over the
path is harmless: the map keeps the old file.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tripower.backends.gguf.cursor import Cursor, refuse
from tripower.backends.gguf.layout import TENSOR_BYTES_MIN, TENSORS_MAX, TensorInfo, read_tensors
from tripower.backends.gguf.metadata import MetadataValue, get_int
from tripower.backends.gguf.values import PAIR_BYTES_MIN, PAIRS_MAX, read_pairs
from tripower.backends.reading import read_at
from tripower.runtime.kernel.errors import ModelRefused

MAGIC = b"GGUF"
VERSIONS = (2, 3)
HEADER_BYTES_MIN = 4 + 4 + 8 + 8
ALIGNMENT_DEFAULT = 32
ALIGNMENT_MIN, ALIGNMENT_MAX = 8, 65_536

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, modification and change time: a rewrite that keeps the length still moves the last."""


class GgufFile:
    """An open file. Use as a context manager; arrays from `data` stay valid after it, and keep the map alive themselves."""

    def __init__(self, path: Path, descriptor: int, mapped: mmap, stamp: Stamp) -> None:
        self.path = path
        self.stamp = stamp
        self.size = stamp[2]
        self._descriptor = descriptor
        self._mapped: mmap | None = mapped
        self.metadata: dict[str, MetadataValue]
        self.tensors: dict[str, TensorInfo]
        self.metadata, self.tensors = _parse(mapped, self.size)

    def tensor(self, name: str) -> TensorInfo:
        """Where a tensor lies; `ModelRefused` (`missing_tensor`) if there is none of this name."""
        if name not in self.tensors:
            raise ModelRefused(f"the model file has no tensor {name}", code="missing_tensor", param=name)
        return self.tensors[name]

    def data(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes, uint8 [nbytes], as a read-only view of the map: blocks on page faults while it is used.

        Raises `ModelRefused` (`missing_tensor`, `source_changed`).
        """
        tensor = self.tensor(name)
        self._check_unchanged()
        assert self._mapped is not None, "the file was closed"
        return np.frombuffer(self._mapped, np.uint8, tensor.nbytes, tensor.offset)

    def read(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes, uint8 [nbytes], as a copy: a file cut short meanwhile is `source_changed`, not a crash. Blocks."""
        tensor = self.tensor(name)
        assert self._mapped is not None, "the file was closed"
        copy = np.empty(tensor.nbytes, np.uint8)
        read_at(self._descriptor, tensor.offset, copy)
        self._check_unchanged()
        return copy

    def changed(self) -> bool:
        """Whether the path no longer leads to the same, untouched file. Blocks for one or two system calls."""
        try:
            return _stamp(os.stat(self.path)) != self.stamp
        except OSError:
            return True

    def close(self) -> None:
        """Give up the descriptor and the map; idempotent. Views that still exist keep the map until they are gone."""
        if self._mapped is None:
            return
        os.close(self._descriptor)
        mapped, self._mapped = self._mapped, None
        with suppress(BufferError):  # a view is alive; its last reference unmaps
            mapped.close()

    def _check_unchanged(self) -> None:
        if self._mapped is not None and _stamp(os.fstat(self._descriptor))[2:4] != self.stamp[2:4]:
            raise ModelRefused(
                f"{self.path} was modified while it was loaded: load it again", code="source_changed", param=str(self.path)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_gguf(path: Path | str) -> GgufFile:
    """Open and check a single-file GGUF model. Blocks while the header is read.

    Raises `ModelRefused`: `not_found`, `unreadable`, `not_gguf`, `unsupported_version`, `split_file`, `truncated`,
    `limit_exceeded`, `invalid_utf8`, `bad_type`, `bad_value`, `duplicate`, `unsupported_tensor_type`, `misaligned`, `overlap`,
    `gap`, `past_end`, `source_changed`.
    """
    path = Path(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not block the open
    except FileNotFoundError as error:
        raise ModelRefused(f"there is no model file {path}", code="not_found", param=str(path)) from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise ModelRefused(f"cannot read {path}: {error}", code="unreadable", param=str(path)) from error
    try:
        return _open(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def _open(path: Path, descriptor: int) -> GgufFile:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise ModelRefused(f"{path} is not a regular file", code="unreadable", param=str(path))
    if status.st_size < HEADER_BYTES_MIN:
        raise refuse("truncated", "header", f"{path.name} has {status.st_size} bytes, fewer than an empty header")
    try:
        mapped = mmap(descriptor, status.st_size, access=ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelRefused(f"cannot map {path}: {error}", code="unreadable", param=str(path)) from error
    try:
        file = GgufFile(path, descriptor, mapped, _stamp(status))
        file._check_unchanged()
    except BaseException:
        mapped.close()
        raise
    return file


def _parse(mapped: mmap, size: int) -> tuple[dict[str, MetadataValue], dict[str, TensorInfo]]:
    cursor = Cursor(mapped, size)
    _check_version(cursor)
    tensor_count = cursor.count("tensor count", TENSORS_MAX, TENSOR_BYTES_MIN)
    if not tensor_count:
        raise refuse("bad_value", "tensor count", "is zero")
    pair_count = cursor.count("key count", PAIRS_MAX, PAIR_BYTES_MIN)
    metadata = read_pairs(cursor, pair_count)
    _check_single(metadata)
    return metadata, read_tensors(cursor, tensor_count, _alignment(metadata))


def _check_version(cursor: Cursor) -> None:
    start = cursor.skip(4, "magic")
    if cursor.data[start : start + 4] != MAGIC:
        raise refuse("not_gguf", "magic", "the file does not begin with 'GGUF'")
    version = cursor.u32("version")
    if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
        raise refuse("unsupported_version", "version", "is big-endian; only little-endian files are supported")
    if version not in VERSIONS:
        raise refuse("unsupported_version", "version", f"is {version}; supported are {VERSIONS[0]} and {VERSIONS[1]}")


def _alignment(metadata: dict[str, MetadataValue]) -> int:
    key = "general.alignment"
    alignment = get_int(metadata, key, ALIGNMENT_DEFAULT, ALIGNMENT_MIN, ALIGNMENT_MAX)
    if alignment & (alignment - 1):
        raise refuse("bad_value", key, f"is {alignment}, not a power of two")
    return alignment


def _check_single(metadata: dict[str, MetadataValue]) -> None:
    key = "split.count"
    parts = get_int(metadata, key, 1)
    if parts > 1:
        raise refuse("split_file", key, f"the model is split over {parts} files; merge them into one first")


def _stamp(status: os.stat_result) -> Stamp:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
