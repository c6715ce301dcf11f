"""A bounded walk over the bytes in front of a GGUF file's tensor data.

Every number in the header is a claim. The cursor believes a length only after comparing it with the bytes that are left, in the
file and in the budget for the whole header, so a hostile length is refused before anything of its size is allocated.
"""

from __future__ import annotations

import struct
from mmap import mmap

from tripower.runtime.kernel.errors import ModelRefused

HEADER_BYTES_MAX = 100_000_000
STRING_BYTES_MAX = 2**20
SHOWN_CHARACTERS = 80

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """Reads numbers and strings from `position` on. `field` names what is read, for the refusal."""

    def __init__(self, data: mmap, size: int) -> None:
        self.data = data
        self.size = size
        self.position = 0

    def skip(self, count: int, field: str) -> int:
        """Move over `count` bytes that exist, and return where they begin."""
        start = self.position
        if count > self.size - start:
            raise refuse("truncated", field, f"wants {count} bytes where the file has {self.size - start} left")
        if start + count > HEADER_BYTES_MAX:
            raise refuse("limit_exceeded", field, f"the header is larger than {HEADER_BYTES_MAX} bytes")
        self.position = start + count
        return start

    def u32(self, field: str) -> int:
        value: int = _U32.unpack_from(self.data, self.skip(4, field))[0]
        return value

    def u64(self, field: str) -> int:
        value: int = _U64.unpack_from(self.data, self.skip(8, field))[0]
        return value

    def count(self, field: str, maximum: int, item_bytes: int) -> int:
        """A u64 that counts items of at least `item_bytes` bytes each, all of which must still fit into the file."""
        value = self.u64(field)
        if value > maximum:
            raise refuse("limit_exceeded", field, f"is {value}, more than {maximum}")
        if value * item_bytes > self.size - self.position:
            raise refuse("truncated", field, f"claims {value} items where the file has {self.size - self.position} bytes left")
        return value

    def string(self, field: str, maximum: int = STRING_BYTES_MAX) -> str:
        """A length and as many bytes of strict UTF-8."""
        length = self.count(field, maximum, 1)
        start = self.skip(length, field)
        try:
            return self.data[start : self.position].decode()
        except UnicodeDecodeError as error:
            raise refuse("invalid_utf8", field, "is not valid UTF-8") from error

    def strings(self, field: str, count: int) -> list[str]:
        """As many strings, one after the other: the short way through a vocabulary. Where one is odd, `string` says what is wrong."""
        data, size_at, end = self.data, _U64.unpack_from, min(self.size, HEADER_BYTES_MAX)
        found: list[str] = []
        at = self.position
        while len(found) < count and at + 8 <= end:
            length = size_at(data, at)[0]
            stop = at + 8 + length
            if length > STRING_BYTES_MAX or stop > end:
                break
            try:
                found.append(data[at + 8 : stop].decode())
            except UnicodeDecodeError:
                break
            at = stop
        self.position = at
        found += [self.string(field) for _ in range(count - len(found))]
        return found


def refuse(code: str, field: str, reason: str) -> ModelRefused:
    """The refusal of a file because of one field, whose name may come from the file and is shown escaped and cut."""
    shown = field if field.isprintable() else ascii(field)
    if len(shown) > SHOWN_CHARACTERS:
        shown = shown[:SHOWN_CHARACTERS] + "…"
    return ModelRefused(f"GGUF {shown}: {reason}", code=code, param=shown)
