"""Small results kept beside the compiled kernels: what was measured once on a machine. Losing them costs time, nothing else.

A file is checked by its own digest, as compiled code is: what is damaged is measured again.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tripower.backends.picolm.native.compile import DIGEST_BYTES, kernel_cache, sources_digest, write_whole

T = TypeVar("T")


def read_kept(name: str, kind: type[T]) -> T | None:
    """What was kept under this name by the same sources; None if there is nothing, or nothing that can be read."""
    try:
        return _decode(kernel_cache() / _file_name(name), kind)
    except RuntimeError:  # no home folder
        return None


def list_kept(beginning: str, kind: type[T]) -> list[T]:
    """All that the same sources kept under names that begin so, in order of name; what cannot be read is left out."""
    try:
        paths = sorted(kernel_cache().glob(f"{beginning}*{_file_name('')}"))
    except (OSError, RuntimeError):
        return []
    return [value for path in paths if (value := _decode(path, kind)) is not None]


def write_kept(name: str, value: Any) -> None:
    """Keep a value. A folder that cannot be written is no error."""
    content = msgspec.json.encode(value)
    with contextlib.suppress(OSError, RuntimeError):
        write_whole(kernel_cache() / _file_name(name), hashlib.sha256(content).digest() + content)


def _file_name(name: str) -> str:
    return f"{name}-{sources_digest().hex()[:16]}.kept"


def _decode(path: Path, kind: type[T]) -> T | None:
    try:
        if not path.is_file():
            return None
        content = path.read_bytes()
        digest, value = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        return msgspec.json.decode(value, type=kind) if hashlib.sha256(value).digest() == digest else None
    except (OSError, msgspec.DecodeError):
        return None
