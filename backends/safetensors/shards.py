"""The weight files of a checkpoint: one, or as many as its index names; opened, checked and mapped.

An index is untrusted too: a shard's name is a plain file name in the folder, never a path, and the index must agree with the
shards' own headers tensor by tensor.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tripower.backends.reading import read_at
from tripower.backends.safetensors.documents import open_regular, read_object, refuse
from tripower.backends.safetensors.header import StoredTensor, read_header
from tripower.runtime.kernel.errors import ModelRefused

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
SHARDS_MAX = 256
"""Each takes a descriptor while the checkpoint is open."""

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, modification and change time, as `backends.gguf.reader` has them."""


class Shard:
    """One open file. Blocks while the header is read. Raises `ModelRefused`: `missing_file`, `unreadable`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor, status = open_regular(path)
        self.stamp = _stamp(status)
        self._mapped: mmap | None = None
        try:
            if not status.st_size:
                raise refuse("truncated", path.name, "is empty")
            self._mapped = mmap(self._descriptor, status.st_size, access=ACCESS_READ)
            self.tensors = read_header(self._mapped, status.st_size, path.name)
            self.check_unchanged()
        except (OSError, ValueError) as error:
            self.close()
            raise ModelRefused(f"cannot map {path}: {error}", code="unreadable", param=path.name) from error
        except BaseException:
            self.close()
            raise

    def view(self, tensor: StoredTensor) -> NDArray[np.uint8]:
        """Its bytes, uint8 [nbytes], read-only, on the map."""
        self.check_unchanged()
        assert self._mapped is not None, "the file was closed"
        return np.frombuffer(self._mapped, np.uint8, tensor.nbytes, tensor.offset)

    def read_into(self, tensor: StoredTensor, target: NDArray[np.uint8]) -> None:
        """Copy its bytes to `target`, uint8 [nbytes]: a file cut short meanwhile is `source_changed`, not a crash. Blocks."""
        read_at(self._descriptor, tensor.offset, target)
        self.check_unchanged()

    def changed(self) -> bool:
        """Whether the path no longer leads to the same, untouched file."""
        try:
            return _stamp(os.stat(self.path)) != self.stamp
        except OSError:
            return True

    def check_unchanged(self) -> None:
        if _stamp(os.fstat(self._descriptor))[2:4] != self.stamp[2:4]:
            raise ModelRefused(
                f"{self.path} was modified while it was loaded: load it again", code="source_changed", param=self.path.name
            )

    def close(self) -> None:
        """Give up the descriptor and the map; idempotent. Views that still exist keep the map until they are gone."""
        if self._descriptor < 0:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        mapped, self._mapped = self._mapped, None
        if mapped is not None:
            with suppress(BufferError):  # a view is alive; its last reference unmaps
                mapped.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_shards(folder: Path, single: str = SINGLE) -> list[Shard]:
    """Every weight file of the checkpoint, open: those of its index, or `single` where it has none.

    Raises `ModelRefused`; nothing stays open then.
    """
    index = read_object(folder, INDEX)
    if index is None:
        return [Shard(folder / single)]
    places = _weight_map(index)
    with ExitStack() as opened:
        shards = {name: opened.enter_context(Shard(folder / name)) for name in sorted(set(places.values()))}
        _check_index(places, shards)
        opened.pop_all()
        return list(shards.values())


def _weight_map(index: dict[str, Any]) -> dict[str, str]:
    places = index.get("weight_map")
    field = f"{INDEX} weight_map"
    if not isinstance(places, dict) or not places:
        raise refuse("bad_type", field, "is not an object with the file of each tensor")
    for tensor, name in places.items():
        if not isinstance(name, str) or not _is_plain(name):
            raise refuse("bad_value", f"{field} {tensor}", "is not the name of a .safetensors file in this folder")
    if len(set(places.values())) > SHARDS_MAX:
        raise refuse("limit_exceeded", field, f"names more than {SHARDS_MAX} files")
    return places


def _is_plain(name: str) -> bool:
    return (
        name.endswith(SUFFIX)
        and name.isprintable()
        and not set(name) & set("/\\:")
        and not name.startswith(".")
        and len(name.encode(errors="replace")) <= 255
    )


def _check_index(places: dict[str, str], shards: dict[str, Shard]) -> None:
    for tensor, name in places.items():
        if tensor not in shards[name].tensors:
            raise refuse("missing_tensor", tensor, f"{INDEX} says that {name} has it, and it has not")
    for name, shard in shards.items():
        for tensor in shard.tensors:
            if places.get(tensor) != name:
                raise refuse("duplicate", tensor, f"is in {name}, where {INDEX} does not place it")


def _stamp(status: os.stat_result) -> Stamp:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
