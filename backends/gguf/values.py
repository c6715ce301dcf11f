"""The key/value pairs of a GGUF header.

Numbers become Python numbers, arrays of numbers numpy arrays (copied, so that nothing keeps the file mapped), arrays of strings
tuples. Arrays of arrays are refused: no shipped model has them, and their nesting would be bounded by nothing but the file.
"""

from __future__ import annotations

import struct

import numpy as np

from tripower.backends.gguf.cursor import Cursor, refuse
from tripower.backends.gguf.metadata import MetadataValue

PAIRS_MAX = 65_536
KEY_BYTES_MAX = 65_535
ARRAY_ITEMS_MAX = 2**22
STRING_ITEMS_MAX = 2**22
"""Over all arrays together: a Python string takes six times the room of a short string in the file."""
PAIR_BYTES_MIN = 8 + 1 + 4 + 1
STRING_BYTES_MIN = 8

_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 10: "<Q", 11: "<q", 12: "<d"}
_DTYPES = {
    number: np.dtype(name)
    for number, name in {
        0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "u1", 10: "<u8", 11: "<i8", 12: "<f8",
    }.items()
}  # fmt: skip


def read_pairs(cursor: Cursor, count: int) -> dict[str, MetadataValue]:
    """Read `count` pairs. Raises `ModelRefused` with the key as `param`."""
    metadata: dict[str, MetadataValue] = {}
    room = STRING_ITEMS_MAX
    for index in range(count):
        key = cursor.string(f"key {index}", KEY_BYTES_MAX)
        if not key:
            raise refuse("bad_value", f"key {index}", "is empty")
        if key in metadata:
            raise refuse("duplicate", key, "is present twice")
        value = metadata[key] = _read_value(cursor, key, room)
        if isinstance(value, tuple):
            room -= len(value)
    return metadata


def _read_value(cursor: Cursor, key: str, strings_max: int) -> MetadataValue:
    kind = cursor.u32(key)
    if kind == _STRING:
        return cursor.string(key)
    if kind == _ARRAY:
        return _read_array(cursor, key, strings_max)
    if kind == _BOOL:
        value = cursor.data[cursor.skip(1, key)]
        if value > 1:
            raise refuse("bad_value", key, f"is the boolean {value}, neither 0 nor 1")
        return bool(value)
    if kind not in _NUMBERS:
        raise refuse("bad_type", key, f"has the unknown value type {kind}")
    form = _NUMBERS[kind]
    number: int | float = struct.unpack_from(form, cursor.data, cursor.skip(struct.calcsize(form), key))[0]
    return number


def _read_array(cursor: Cursor, key: str, strings_max: int) -> MetadataValue:
    kind = cursor.u32(key)
    if kind == _ARRAY:
        raise refuse("bad_type", key, "is an array of arrays")
    if kind == _STRING:
        return _read_strings(cursor, key, strings_max)
    if kind not in _DTYPES:
        raise refuse("bad_type", key, f"has items of the unknown value type {kind}")
    dtype = _DTYPES[kind]
    length = cursor.count(key, ARRAY_ITEMS_MAX, dtype.itemsize)
    start = cursor.skip(length * dtype.itemsize, key)
    items = np.frombuffer(cursor.data[start : cursor.position], dtype)
    if kind != _BOOL:
        return items
    if length and items.max() > 1:
        raise refuse("bad_value", key, "has a boolean that is neither 0 nor 1")
    return items.astype(np.bool_)


def _read_strings(cursor: Cursor, key: str, strings_max: int) -> tuple[str, ...]:
    length = cursor.count(key, strings_max, STRING_BYTES_MIN)
    return tuple(cursor.strings(key, length))
