"""The header of one SafeTensors file, checked until every range is known to lie in the file and to touch no other.

The format is a length (u64, little-endian), that many bytes of JSON, and the tensors' bytes, tiled without holes. Everything in
it is a claim: a length is compared with the file before anything of its size is allocated, and shape, type and range of a
tensor must say the same. Rules: `weights-and-residency.md` ID-17 to ID-21; the format is described in the `safetensors`
package.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from mmap import mmap
from typing import Any

import msgspec

from tripower.backends.gguf.layout import ELEMENTS_MAX, NAME_BYTES_MAX, TENSORS_MAX
from tripower.backends.safetensors.documents import decode_object, refuse

LENGTH_BYTES = 8
HEADER_BYTES_MAX = 32 << 20
"""A tensor takes some 120 bytes of it, so that this is room for every checkpoint known, many times over."""
METADATA_PAIRS_MAX = 1_024
RANK_MAX = 16

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""Bits of an element of each type that the format knows."""


class StoredTensor(msgspec.Struct, frozen=True):
    """Where one tensor lies in its file. `shape` has the slowest dimension first; `offset` is that of the first byte."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_header(data: mmap, size: int, file_name: str) -> dict[str, StoredTensor]:
    """The tensors of a file of `size` bytes, by name.

    Raises `ModelRefused`: `truncated`, `limit_exceeded`, `invalid_utf8`, `invalid_json`, `duplicate`, `bad_type`, `bad_value`,
    `unsupported_tensor_type`, `overlap`, `gap`, `trailing`, `past_end`.
    """
    length = _header_length(data, size, file_name)
    text = data[LENGTH_BYTES : LENGTH_BYTES + length]
    field = f"{file_name} header"
    if text[:1] != b"{" or text.rstrip(b" ")[-1:] != b"}":
        raise refuse("bad_value", field, "is not a JSON object with nothing but spaces behind it")
    entries = decode_object(text, field)
    _check_metadata(entries.pop("__metadata__", {}), field)
    if not entries:
        raise refuse("bad_value", field, "has no tensors")
    if len(entries) > TENSORS_MAX:
        raise refuse("limit_exceeded", field, f"has {len(entries)} tensors, more than {TENSORS_MAX}")
    start = LENGTH_BYTES + length
    tensors = {name: _read_tensor(name, entry, start) for name, entry in entries.items()}
    _check_ranges(tensors.values(), start, size, file_name)
    return tensors


def _header_length(data: mmap, size: int, file_name: str) -> int:
    field = f"{file_name} header length"
    if size < LENGTH_BYTES + 2:
        raise refuse("truncated", field, f"the file has {size} bytes, fewer than an empty header")
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if length > HEADER_BYTES_MAX:
        raise refuse("limit_exceeded", field, f"is {length}, more than {HEADER_BYTES_MAX}")
    if length < 2:
        raise refuse("bad_value", field, f"is {length}")
    if length > size - LENGTH_BYTES:
        raise refuse("truncated", field, f"is {length} where the file has {size - LENGTH_BYTES} bytes left")
    return length


def _check_metadata(pairs: Any, field: str) -> None:
    if not isinstance(pairs, dict) or not all(isinstance(value, str) for value in pairs.values()):
        raise refuse("bad_type", f"{field} __metadata__", "is not an object of strings")
    if len(pairs) > METADATA_PAIRS_MAX:
        raise refuse("limit_exceeded", f"{field} __metadata__", f"has {len(pairs)} pairs, more than {METADATA_PAIRS_MAX}")


def _read_tensor(name: str, entry: Any, start: int) -> StoredTensor:
    field = f"tensor {name}"
    if not name or not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX:
        raise refuse("bad_value", field, "has a name that is empty, too long or has control characters")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise refuse("bad_type", field, "is not an object of dtype, shape and data_offsets")
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise refuse("unsupported_tensor_type", field, "has a type that the format does not know")
    shape = _integers(entry["shape"], f"{field} shape", RANK_MAX)
    if math.prod(shape) > ELEMENTS_MAX:
        raise refuse("limit_exceeded", f"{field} shape", f"is more than {ELEMENTS_MAX} elements")
    offsets = _integers(entry["data_offsets"], f"{field} data_offsets", 2)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise refuse("bad_value", f"{field} data_offsets", "is not a begin and an end")
    nbytes = offsets[1] - offsets[0]
    if math.prod(shape) * BITS[dtype] != 8 * nbytes:
        raise refuse("bad_value", field, f"takes {nbytes} bytes, which is not what {list(shape)} of {dtype} take")
    return StoredTensor(name, dtype, shape, start + offsets[0], nbytes)


def _integers(value: Any, field: str, length_max: int) -> tuple[int, ...]:
    """A list of integers that are not negative; booleans are not integers."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise refuse("bad_type", field, "is not a list of integers")
    if len(value) > length_max:
        raise refuse("limit_exceeded", field, f"has {len(value)} items, more than {length_max}")
    if any(not 0 <= item < 2**63 for item in value):
        raise refuse("bad_value", field, "has an item that is negative or too large")
    return tuple(value)


def _check_ranges(tensors: Iterable[StoredTensor], start: int, size: int, file_name: str) -> None:
    """Ranges must tile the bytes behind the header; tensors without bytes may lie on any boundary."""
    end = start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        field = f"tensor {tensor.name}"
        if tensor.offset < end:
            raise refuse("overlap", field, "shares bytes with another tensor")
        if tensor.offset > end:
            raise refuse("gap", field, f"begins {tensor.offset - end} bytes after the tensor before it")
        end = tensor.offset + tensor.nbytes
        if end > size:
            raise refuse("past_end", field, f"ends at {end} where {file_name} has {size} bytes")
    if end < size:
        raise refuse("trailing", file_name, f"{size - end} bytes follow the last tensor")
