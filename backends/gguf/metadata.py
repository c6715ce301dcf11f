"""Typed access to GGUF metadata: every value is checked where it is read, and a refusal names the key.

`require_…` refuses a missing key, `get_…` answers a default instead; both refuse a value of the wrong type or outside its range.
Nothing here blocks. All errors are `ModelRefused` with `param` set to the key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tripower.runtime.kernel.errors import ModelRefused

MetadataValue = bool | int | float | str | tuple[str, ...] | NDArray[np.generic]
"""Arrays of strings are tuples, arrays of numbers and booleans are numpy arrays of the stored type."""
Metadata = Mapping[str, MetadataValue]

INT_MAX = 2**31 - 1
NAME_LENGTH_MAX = 256


def require_int(metadata: Metadata, key: str, minimum: int = 0, maximum: int = INT_MAX) -> int:
    """An integer in `minimum..maximum`. Booleans and floats are not integers."""
    value = _require(metadata, key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type(key, "an integer", value)
    if not minimum <= value <= maximum:
        raise ModelRefused(f"{key} is {value}, outside {minimum}..{maximum}", code="bad_value", param=key)
    return value


def get_int(metadata: Metadata, key: str, default: int, minimum: int = 0, maximum: int = INT_MAX) -> int:
    """Like `require_int`, with a default for a missing key."""
    return require_int(metadata, key, minimum, maximum) if key in metadata else default


def require_float(metadata: Metadata, key: str, minimum: float = -math.inf, maximum: float = math.inf) -> float:
    """A finite float in `minimum..maximum`."""
    value = _require(metadata, key)
    if not isinstance(value, float):
        raise _wrong_type(key, "a float", value)
    if not math.isfinite(value):
        raise ModelRefused(f"{key} is not a finite number", code="bad_value", param=key)
    if not minimum <= value <= maximum:
        raise ModelRefused(f"{key} is {value}, outside {minimum}..{maximum}", code="bad_value", param=key)
    return value


def get_float(metadata: Metadata, key: str, default: float, minimum: float = -math.inf, maximum: float = math.inf) -> float:
    """Like `require_float`, with a default for a missing key."""
    return require_float(metadata, key, minimum, maximum) if key in metadata else default


def require_string(metadata: Metadata, key: str, length_max: int = NAME_LENGTH_MAX) -> str:
    """A string of at most `length_max` characters: names are short, and end up in messages and logs."""
    value = _require(metadata, key)
    if not isinstance(value, str):
        raise _wrong_type(key, "a string", value)
    if len(value) > length_max:
        raise ModelRefused(f"{key} has {len(value)} characters, more than {length_max}", code="limit_exceeded", param=key)
    return value


def get_string(metadata: Metadata, key: str, default: str, length_max: int = NAME_LENGTH_MAX) -> str:
    """Like `require_string`, with a default for a missing key."""
    return require_string(metadata, key, length_max) if key in metadata else default


def get_flag(metadata: Metadata, key: str, default: bool) -> bool:
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise _wrong_type(key, "a boolean", value)
    return value


def require_strings(metadata: Metadata, key: str, length: int | None = None) -> tuple[str, ...]:
    """An array of strings, of exactly `length` items where that is given."""
    value = _require(metadata, key)
    if not isinstance(value, tuple):
        raise _wrong_type(key, "an array of strings", value)
    _check_length(key, len(value), length)
    return value


def require_ints(
    metadata: Metadata, key: str, minimum: int = 0, maximum: int = INT_MAX, length: int | None = None
) -> NDArray[np.int64]:
    """A one-dimensional int64 array whose items all lie in `minimum..maximum`."""
    value = _require(metadata, key)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
        raise _wrong_type(key, "an array of integers", value)
    _check_length(key, len(value), length)
    if len(value) and not (minimum <= int(value.min()) and int(value.max()) <= maximum):
        raise ModelRefused(f"{key} has an item outside {minimum}..{maximum}", code="bad_value", param=key)
    return value.astype(np.int64)


def require_floats(metadata: Metadata, key: str, length: int | None = None) -> NDArray[np.float64]:
    """A one-dimensional float64 array of finite numbers."""
    value = _require(metadata, key)
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        raise _wrong_type(key, "an array of floats", value)
    _check_length(key, len(value), length)
    if not np.isfinite(value).all():
        raise ModelRefused(f"{key} has an item that is not a finite number", code="bad_value", param=key)
    return value.astype(np.float64)


def _require(metadata: Metadata, key: str) -> MetadataValue:
    if key not in metadata:
        raise ModelRefused(f"the model file has no {key}", code="missing_key", param=key)
    return metadata[key]


def _check_length(key: str, found: int, length: int | None) -> None:
    if length is not None and found != length:
        raise ModelRefused(f"{key} has {found} items, expected {length}", code="bad_value", param=key)


def _wrong_type(key: str, wanted: str, value: object) -> ModelRefused:
    found = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    return ModelRefused(f"{key} is not {wanted} (found {found})", code="bad_type", param=key)
