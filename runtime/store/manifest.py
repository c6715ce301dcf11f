"""Manifests: the names of the store, and what each name stands for.

A manifest is a small JSON file that lists the files of one model, the one to load first. The files themselves are blobs named by
their SHA-256, so a name inside a manifest is for people and becomes part of a path only in `Store.folder`, which checks it. The manifest's own file name is the
digest of the model's name: `a:b`, `a/b` and `A/B` never collide on any file system, and no name can leave the directory.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import Annotated

import msgspec

from tripower.runtime.kernel.errors import InvalidRequest

Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}\\Z")]
NAME_BYTES_MAX = 512
FILES_MAX = 512
_DOMAIN = b"tripower/model-name/v1\x00"
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*){0,3}")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f=\ud800-\udfff]")


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a model: what its publisher calls it, its length in bytes, its digest."""

    name: str
    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Sha256


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one name of the store stands for. The first file is the model itself, the others lie beside it."""

    name: str
    source: str
    """The reference that it was pulled from, in canonical form and without credentials."""
    format: str
    """`gguf` or `safetensors`."""
    created: datetime
    files: Annotated[tuple[StoredFile, ...], msgspec.Meta(min_length=1, max_length=FILES_MAX)]

    @property
    def primary(self) -> StoredFile:
        """The file that an engine opens."""
        return self.files[0]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)


def checked_name(name: str) -> str:
    """`name`, or `InvalidRequest` when it cannot be the name of a model: empty, too long, with spaces, `=` or control characters."""
    if not name or _FORBIDDEN.search(name) or len(name.encode()) > NAME_BYTES_MAX:
        raise InvalidRequest(
            f"{name[:80]!r} cannot be the name of a model: 1 to {NAME_BYTES_MAX} bytes without spaces, `=` or control characters",
            code="invalid_model_name",
        )
    return name


def checked_file_name(name: str) -> str:
    """`name`, or `InvalidRequest` when it is not the plain name of a file in a folder or in a folder of that."""
    if not _FILE_NAME.fullmatch(name) or len(name) > 255:
        raise InvalidRequest(f"{name[:80]!r} cannot be the name of a file of a model", code="invalid_file_name")
    return name


def manifest_file_name(name: str) -> str:
    """The file that holds the manifest of `name`."""
    return hashlib.sha256(_DOMAIN + name.encode()).hexdigest() + ".json"


def encode_manifest(manifest: Manifest) -> bytes:
    """JSON, readable by people. Does not block."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """The manifest in `data`; raises `msgspec.MsgspecError` when it is not one."""
    return msgspec.json.decode(data, type=Manifest)
