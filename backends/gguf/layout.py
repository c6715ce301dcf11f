"""The tensor list of a GGUF header, checked until every range is known to lie in the file and to touch no other."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from tripower.backends.gguf.cursor import Cursor, refuse
from tripower.backends.gguf.types import TENSOR_TYPES, TensorType

TENSORS_MAX = 262_144
TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8
NAME_BYTES_MAX = 1_024
DIMENSIONS_MAX = 4
ELEMENTS_MAX = 2**33


class TensorInfo(msgspec.Struct, frozen=True):
    """Where one tensor lies. `shape` is canonical: slowest dimension first, so a matrix is (rows, columns)."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    """`F32`, `Q4_1`, …: the names of `backends.gguf.types`."""
    type_id: int
    offset: int
    """Of the first byte, from the beginning of the file."""
    nbytes: int
    block_elements: int
    block_bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one run along the fastest dimension, which always holds whole blocks."""
        return self.shape[-1] // self.block_elements * self.block_bytes


def read_tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    """Read `count` entries; offsets become absolute once the header's end, rounded up to `alignment`, is known."""
    relative: dict[str, TensorInfo] = {}
    for index in range(count):
        tensor = _read_tensor(cursor, index, alignment)
        if tensor.name in relative:
            raise refuse("duplicate", f"tensor {tensor.name}", "is present twice")
        relative[tensor.name] = tensor
    data_start = -(-cursor.position // alignment) * alignment
    _check_ranges(relative.values(), cursor.size - data_start, alignment)
    return {name: msgspec.structs.replace(tensor, offset=data_start + tensor.offset) for name, tensor in relative.items()}


def _read_tensor(cursor: Cursor, index: int, alignment: int) -> TensorInfo:
    name = cursor.string(f"name of tensor {index}", NAME_BYTES_MAX)
    field = f"tensor {name}"
    if not name or not name.isprintable():
        raise refuse("bad_value", f"name of tensor {index}", "is empty or has control characters")
    shape = _read_shape(cursor, field)
    type_id = cursor.u32(f"{field} type")
    kind = TENSOR_TYPES.get(type_id)
    if kind is None:
        raise refuse("unsupported_tensor_type", field, f"has the type id {type_id}, which is not supported")
    offset = cursor.u64(f"{field} offset")
    if offset % alignment:
        raise refuse("misaligned", field, f"has the offset {offset}, which is no multiple of {alignment}")
    return TensorInfo(
        name, shape, kind.name, type_id, offset, _byte_size(field, shape, kind), kind.block_elements, kind.block_bytes
    )


def _read_shape(cursor: Cursor, field: str) -> tuple[int, ...]:
    rank = cursor.u32(f"{field} dimensions")
    if not 1 <= rank <= DIMENSIONS_MAX:
        raise refuse("bad_value", field, f"has {rank} dimensions, outside 1..{DIMENSIONS_MAX}")
    stored = [cursor.u64(f"{field} dimension {index}") for index in range(rank)]
    if 0 in stored:
        raise refuse("bad_value", field, f"has a dimension of zero: {stored}")
    if math.prod(stored) > ELEMENTS_MAX:
        raise refuse("limit_exceeded", field, f"has the dimensions {stored}, more than {ELEMENTS_MAX} elements")
    return tuple(reversed(stored))


def _byte_size(field: str, shape: tuple[int, ...], kind: TensorType) -> int:
    if shape[-1] % kind.block_elements:
        raise refuse(
            "bad_value", field, f"has rows of {shape[-1]} elements, no multiple of {kind.name}'s {kind.block_elements}"
        )
    return math.prod(shape) // kind.block_elements * kind.block_bytes


def _check_ranges(tensors: Iterable[TensorInfo], room: int, alignment: int) -> None:
    """Ranges must follow each other without overlap and with less than `alignment` bytes between and after them."""
    end = 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        field = f"tensor {tensor.name}"
        if tensor.offset < end:
            raise refuse("overlap", field, "shares bytes with another tensor")
        if tensor.offset - end >= alignment:
            raise refuse("gap", field, f"begins {tensor.offset - end} bytes after the tensor before it")
        end = tensor.offset + tensor.nbytes
        if end > room:
            raise refuse("past_end", field, f"ends at {end} where the file has {max(room, 0)} bytes of data")
    if room - end >= alignment:
        raise refuse("gap", "data", f"{room - end} bytes follow the last tensor")
