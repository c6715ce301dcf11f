"""Typed access to metadata: a value of the wrong type or out of range is refused by its key."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tripower.backends.gguf.metadata import (
    get_flag,
    get_float,
    get_int,
    get_string,
    require_float,
    require_floats,
    require_int,
    require_ints,
    require_string,
    require_strings,
)
from tripower.runtime.kernel.errors import ModelRefused

METADATA: dict[str, Any] = {
    "int": 5,
    "float": 0.5,
    "flag": True,
    "nan": math.nan,
    "infinite": math.inf,
    "text": "word",
    "long": "x" * 300,
    "texts": ("a", "b"),
    "ints": np.array([1, 2, 3], np.int32),
    "big": np.array([2**63], np.uint64),
    "floats": np.array([0.5, 1.5], np.float32),
    "holes": np.array([0.5, math.nan], np.float32),
    "flags": np.array([True, False]),
}

REFUSED: list[tuple[str, str, Callable[[], object]]] = [
    ("missing_key", "absent", lambda: require_int(METADATA, "absent")),
    ("bad_type", "flag", lambda: require_int(METADATA, "flag")),
    ("bad_type", "float", lambda: require_int(METADATA, "float")),
    ("bad_type", "ints", lambda: require_int(METADATA, "ints")),
    ("bad_value", "int", lambda: require_int(METADATA, "int", 6)),
    ("bad_value", "int", lambda: get_int(METADATA, "int", 0, 0, 4)),
    ("bad_type", "int", lambda: require_float(METADATA, "int")),
    ("bad_value", "nan", lambda: require_float(METADATA, "nan")),
    ("bad_value", "infinite", lambda: get_float(METADATA, "infinite", 0.0)),
    ("bad_value", "float", lambda: require_float(METADATA, "float", 0.6)),
    ("bad_type", "int", lambda: require_string(METADATA, "int")),
    ("limit_exceeded", "long", lambda: get_string(METADATA, "long", "")),
    ("bad_type", "int", lambda: get_flag(METADATA, "int", False)),
    ("bad_type", "text", lambda: require_strings(METADATA, "text")),
    ("bad_value", "texts", lambda: require_strings(METADATA, "texts", 3)),
    ("bad_type", "floats", lambda: require_ints(METADATA, "floats")),
    ("bad_type", "flags", lambda: require_ints(METADATA, "flags")),
    ("bad_value", "ints", lambda: require_ints(METADATA, "ints", 2)),
    ("bad_value", "big", lambda: require_ints(METADATA, "big")),
    ("bad_value", "ints", lambda: require_ints(METADATA, "ints", length=2)),
    ("bad_type", "ints", lambda: require_floats(METADATA, "ints")),
    ("bad_value", "holes", lambda: require_floats(METADATA, "holes")),
]


@pytest.mark.parametrize(("code", "key", "read"), REFUSED)
def test_a_bad_value_is_refused_by_its_key(code: str, key: str, read: Callable[[], object]) -> None:
    with pytest.raises(ModelRefused) as refusal:
        read()
    assert (refusal.value.code, refusal.value.param) == (code, key)
    assert key in refusal.value.message


def test_good_values_are_answered() -> None:
    assert require_int(METADATA, "int", 5, 5) == 5
    assert get_int(METADATA, "absent", 7) == 7
    assert require_float(METADATA, "float", 0.5, 0.5) == 0.5
    assert get_float(METADATA, "absent", 0.25) == 0.25
    assert get_string(METADATA, "text", "") == "word"
    assert require_string(METADATA, "long", 300) == "x" * 300
    assert get_flag(METADATA, "flag", False)
    assert require_strings(METADATA, "texts", 2) == ("a", "b")
    assert require_ints(METADATA, "ints", 1, 3, 3).tolist() == [1, 2, 3]
    assert require_floats(METADATA, "floats").tolist() == [0.5, 1.5]
