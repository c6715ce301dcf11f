"""The header of a SafeTensors file: what is read, and that each way of being wrong is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.safetensors.rigs import refused
from tripower.backends.safetensors.shards import Shard
from tripower.runtime.kernel.errors import ModelRefused

safetensors_numpy = pytest.importorskip("safetensors.numpy")

NAME = "m.safetensors"
HEADER, LENGTH = f"{NAME} header", f"{NAME} header length"


def entry(begin: int = 0, end: int = 8, *, shape: Any = (2,), dtype: Any = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end], **more}


def file_of(header: Any, data: bytes = bytes(8), *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensors_of(content: bytes, folder: Path) -> Any:
    (folder / NAME).write_bytes(content)
    with Shard(folder / NAME) as shard:
        return shard.tensors


REFUSED: dict[str, tuple[bytes, str, str]] = {
    "an empty file": (b"", "truncated", NAME),
    "fewer bytes than a length": (b"1234", "truncated", LENGTH),
    "a length of zero": (bytes(16), "bad_value", LENGTH),
    "a length beyond the file": (file_of(b"{}", length=100), "truncated", LENGTH),
    "a length of half the numbers": (file_of(b"{}", length=2**63), "limit_exceeded", LENGTH),
    "a length that wraps": (file_of(b"{}", length=2**64 - 3), "limit_exceeded", LENGTH),
    "a space in front": (file_of(b' {"a": 1}'), "bad_value", HEADER),
    "a list": (file_of(b"[1, 2, 3]"), "bad_value", HEADER),
    "something behind the object": (file_of(b'{"a": {}}x'), "bad_value", HEADER),
    "no tensors": (file_of(b"{}"), "bad_value", HEADER),
    "only metadata": (file_of({"__metadata__": {"a": "b"}}), "bad_value", HEADER),
    "half a character": (file_of(b'{"\xc3": 1}'), "invalid_utf8", HEADER),
    "half an object": (file_of(b'{"a": {"b}'), "invalid_json", HEADER),
    "not a number": (file_of(b'{"a": NaN}'), "invalid_json", HEADER),
    "a number of many digits": (file_of(b'{"a": ' + b"9" * 5_000 + b"}"), "invalid_json", HEADER),
    "deep nesting": (file_of(b'{"a": ' + b"[" * 100_000 + b"}"), "limit_exceeded", HEADER),
    "a tensor twice": (file_of(b'{"a": 1, "a": 2}'), "duplicate", f"{HEADER} a"),
    "a field twice": (file_of(b'{"a": {"dtype": "F32", "dtype": "F16"}}'), "duplicate", f"{HEADER} dtype"),
    "metadata of numbers": (file_of({"__metadata__": {"a": 1}, "a": entry()}), "bad_type", f"{HEADER} __metadata__"),
    "metadata that is a list": (file_of({"__metadata__": [], "a": entry()}), "bad_type", f"{HEADER} __metadata__"),
    "too much metadata": (
        file_of({"__metadata__": {str(number): "" for number in range(1_025)}, "a": entry()}),
        "limit_exceeded",
        f"{HEADER} __metadata__",
    ),
    "a tensor that is a number": (file_of({"a": 5}), "bad_type", "tensor a"),
    "a missing field": (file_of({"a": {"dtype": "F32", "shape": [2]}}), "bad_type", "tensor a"),
    "a field too many": (file_of({"a": entry(more=1)}), "bad_type", "tensor a"),
    "a name with a line break": (file_of({"a\nb": entry()}), "bad_value", "'tensor a\\nb'"),
    "an unknown type": (file_of({"a": entry(dtype="F7")}), "unsupported_tensor_type", "tensor a"),
    "a type that is a number": (file_of({"a": entry(dtype=5)}), "unsupported_tensor_type", "tensor a"),
    "a shape of floats": (file_of({"a": entry(shape=(2.0,))}), "bad_type", "tensor a shape"),
    "a shape of booleans": (file_of({"a": entry(shape=(True, 2))}), "bad_type", "tensor a shape"),
    "a negative dimension": (file_of({"a": entry(shape=(-2, -1))}), "bad_value", "tensor a shape"),
    "many dimensions": (file_of({"a": entry(shape=(1,) * 17)}), "limit_exceeded", "tensor a shape"),
    "elements that wrap": (file_of({"a": entry(shape=(2**32, 2**32))}), "limit_exceeded", "tensor a shape"),
    "no offsets": (file_of({"a": entry() | {"data_offsets": []}}), "bad_value", "tensor a data_offsets"),
    "offsets that go backwards": (file_of({"a": entry(8, 4)}), "bad_value", "tensor a data_offsets"),
    "an offset of true": (file_of({"a": entry(True, 8)}), "bad_type", "tensor a data_offsets"),
    "an offset of a float": (file_of({"a": entry(0.0, 8)}), "bad_type", "tensor a data_offsets"),  # type: ignore[arg-type]
    "more elements than bytes": (file_of({"a": entry(shape=(4, 4))}), "bad_value", "tensor a"),
    "two tensors in one place": (file_of({"a": entry(), "b": entry(dtype="F16", shape=(4,))}), "overlap", "tensor b"),
    "a hole": (file_of({"a": entry(), "b": entry(12, 20)}, bytes(20)), "gap", "tensor b"),
    "a hole at the beginning": (file_of({"a": entry(4, 12)}, bytes(12)), "gap", "tensor a"),
    "a byte too many": (file_of({"a": entry()}, bytes(9)), "trailing", NAME),
    "a byte too few": (file_of({"a": entry()}, bytes(7)), "past_end", "tensor a"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_hostile_header_is_refused_by_its_field(case: str, tmp_path: Path) -> None:  # BB-070, BB-071
    content, code, param = REFUSED[case]
    with refused(code, param):
        tensors_of(content, tmp_path)


def test_a_file_of_the_reference_writer_is_read_whole(tmp_path: Path) -> None:
    import numpy as np

    arrays: dict[str, Any] = {"matrix": np.arange(6, dtype=np.float16).reshape(2, 3), "vector": np.arange(5, dtype=np.float32)}
    safetensors_numpy.save_file(arrays, tmp_path / NAME, metadata={"format": "pt"})
    with Shard(tmp_path / NAME) as shard:
        assert {name: tensor.shape for name, tensor in shard.tensors.items()} == {"matrix": (2, 3), "vector": (5,)}
        for name, values in arrays.items():
            assert shard.view(shard.tensors[name]).tobytes() == values.tobytes()


def test_tensors_without_bytes_and_spaces_behind_the_header_are_read(tmp_path: Path) -> None:
    header = json.dumps({"empty": entry(8, 8, shape=(0, 4)), "scalar": entry(0, 8, shape=(), dtype="F64")}).encode() + b"   "
    assert tensors_of(file_of(header), tmp_path).keys() == {"empty", "scalar"}


def test_a_limit_on_elements_is_checked_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = file_of({"a": entry(0, 16, shape=(4,))}, bytes(16))
    monkeypatch.setattr("tripower.backends.safetensors.header.ELEMENTS_MAX", 3)
    with refused("limit_exceeded", "tensor a shape"):
        tensors_of(content, tmp_path)
    monkeypatch.setattr("tripower.backends.safetensors.header.ELEMENTS_MAX", 4)
    assert tensors_of(content, tmp_path)["a"].shape == (4,)


@settings(deadline=None, max_examples=200)
@given(position=st.integers(0, 200), value=st.integers(0, 255))
def test_any_changed_byte_is_read_or_refused(position: int, value: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = bytearray(file_of({"a": entry(), "b": entry(8, 12, shape=(2, 1), dtype="BF16")}, bytes(12)))
    content[position % len(content)] = value
    check_read_or_refused(bytes(content), tmp_path_factory)


@settings(deadline=None, max_examples=200)
@given(header=st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(header: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    check_read_or_refused(file_of(b'{"a":' + header + b"}"), tmp_path_factory)


def check_read_or_refused(content: bytes, factory: pytest.TempPathFactory) -> None:
    try:
        tensors_of(content, factory.getbasetemp())
    except ModelRefused as refusal:
        assert refusal.code != "model_refused" and refusal.param
