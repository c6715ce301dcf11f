"""The bounded reader: valid files are read whole, hostile ones are refused by field and before anything large is allocated."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.backends.gguf.reader import open_gguf
from tripower.bench.gguf_samples import ARRAY, STRING, Tensor, Typed, string, write_gguf
from tripower.runtime.kernel.errors import ModelRefused

ONE = [Tensor("t", (8,))]
PAIRS = {"general.architecture": "llama"}
COUNTS = struct.pack("<QQ", 1, 1)
HEAD = b"GGUF" + struct.pack("<I", 3) + COUNTS


def string_claim(length: int) -> bytes:
    """A file whose first key claims that length."""
    return HEAD + struct.pack("<Q", length) + b"key" + bytes(64)


def array_claim(kind: int, length: int) -> bytes:
    return HEAD + string("k") + struct.pack("<IIQ", ARRAY, kind, length)


def tensors(*items: Tensor) -> bytes:
    return write_gguf(PAIRS, items)


REFUSED: dict[str, tuple[bytes, str, str]] = {
    "empty file": (b"", "truncated", "header"),
    "wrong magic": (b"GGML" + write_gguf(PAIRS)[4:], "not_gguf", "magic"),
    "version 1": (write_gguf(PAIRS, version=1), "unsupported_version", "version"),
    "version 4": (write_gguf(PAIRS, version=4), "unsupported_version", "version"),
    "byte-swapped version": (write_gguf(PAIRS, version=0x03000000), "unsupported_version", "version"),
    "cut in the header": (write_gguf(PAIRS)[:60], "truncated", "general.architecture"),
    "no tensors": (write_gguf(PAIRS, []), "bad_value", "tensor count"),
    "2**63 tensors": (write_gguf(PAIRS, tensor_count=2**63), "limit_exceeded", "tensor count"),
    "200,000 tensors in 100 bytes": (write_gguf(PAIRS, tensor_count=200_000), "truncated", "tensor count"),
    "a million keys": (b"GGUF" + struct.pack("<IQQ", 3, 1, 10**6) + bytes(64), "limit_exceeded", "key count"),
    "key of 2**40 bytes": (string_claim(2**40), "limit_exceeded", "key 0"),  # BB-065
    "key of 2**63 bytes": (string_claim(2**63), "limit_exceeded", "key 0"),  # BB-065
    "key longer than the file": (string_claim(60_000), "truncated", "key 0"),
    "key of no bytes": (write_gguf([("", 1)]), "bad_value", "key 0"),
    "key that is not UTF-8": (HEAD + struct.pack("<Q", 2) + b"\xc3(" + bytes(20), "invalid_utf8", "key 0"),
    "key twice": (write_gguf([("k", 1), ("k", 2)]), "duplicate", "k"),
    "string value of 2**64-1 bytes": (HEAD + string("k") + struct.pack("<IQ", STRING, 2**64 - 1) + bytes(64), "limit_exceeded", "k"),
    "array of 2**64-1 numbers": (array_claim(4, 2**64 - 1), "limit_exceeded", "k"),
    "array of 2**22 numbers in no bytes": (array_claim(4, 2**22), "truncated", "k"),
    "array of 2**64-1 strings": (array_claim(STRING, 2**64 - 1), "limit_exceeded", "k"),
    "array of arrays": (array_claim(ARRAY, 1) + bytes(64), "bad_type", "k"),
    "array of an unknown type": (array_claim(13, 1) + bytes(64), "bad_type", "k"),
    "value of an unknown type": (HEAD + string("k") + struct.pack("<I", 13) + bytes(64), "bad_type", "k"),
    "boolean 2": (HEAD + string("k") + struct.pack("<IB", 7, 2) + bytes(64), "bad_value", "k"),
    "boolean 3 in an array": (array_claim(7, 2) + b"\1\3" + bytes(64), "bad_value", "k"),
    "alignment as a string": (write_gguf({"general.alignment": "32"}), "bad_type", "general.alignment"),  # BB-064
    "alignment 0": (write_gguf({"general.alignment": 0}), "bad_value", "general.alignment"),
    "alignment 48": (write_gguf({"general.alignment": 48}), "bad_value", "general.alignment"),
    "split file": (write_gguf({"split.count": Typed(2, 3)}), "split_file", "split.count"),
    "dimensions 7 and 0": (tensors(Tensor("t", (7, 0))), "bad_value", "tensor t"),  # BB-064
    "no dimensions": (tensors(Tensor("t", ())), "bad_value", "tensor t"),
    "5 dimensions": (tensors(Tensor("t", (1,) * 5)), "bad_value", "tensor t"),
    "product of 2**64": (tensors(Tensor("t", (2**32, 2**32))), "limit_exceeded", "tensor t"),  # BB-067
    "product that wraps to 0": (tensors(Tensor("t", (2**63, 2))), "limit_exceeded", "tensor t"),  # BB-067
    "row that is no whole block": (tensors(Tensor("t", (33, 2), 2)), "bad_value", "tensor t"),
    "type id 31": (tensors(Tensor("t", (32,), 31)), "unsupported_tensor_type", "tensor t"),
    "type id 9": (tensors(Tensor("t", (32,), 9)), "unsupported_tensor_type", "tensor t"),
    "type id 2**32-1": (tensors(Tensor("t", (32,), 2**32 - 1)), "unsupported_tensor_type", "tensor t"),
    "offset near 2**64": (tensors(Tensor("t", (8,), offset=2**64 - 32)), "gap", "tensor t"),
    "misaligned offset": (tensors(Tensor("t", (8,), offset=8)), "misaligned", "tensor t"),
    "overlapping tensors": (tensors(Tensor("a", (16,)), Tensor("b", (8,), offset=32)), "overlap", "tensor b"),
    "tensors at one place": (tensors(Tensor("a", (8,)), Tensor("b", (8,), offset=0)), "overlap", "tensor b"),
    "hole between tensors": (tensors(Tensor("a", (8,)), Tensor("b", (8,), offset=96)), "gap", "tensor b"),
    "range past the end": (write_gguf(PAIRS, ONE)[:-8], "past_end", "tensor t"),
    "data that is not there": (tensors(Tensor("t", (2**30, 2))), "past_end", "tensor t"),
    "bytes behind the last tensor": (write_gguf(PAIRS, ONE) + bytes(32), "gap", "data"),
    "tensor name twice": (tensors(Tensor("t", (8,)), Tensor("t", (8,))), "duplicate", "tensor t"),
    "tensor without a name": (tensors(Tensor("", (8,))), "bad_value", "name of tensor 0"),
    "tensor name with a control character": (tensors(Tensor("a\n", (8,))), "bad_value", "name of tensor 0"),
    "tensor name too long": (tensors(Tensor("x" * 1025, (8,))), "limit_exceeded", "name of tensor 0"),
}  # fmt: skip


def place(folder: Path, data: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("case", REFUSED)
def test_a_hostile_file_is_refused_by_its_field(case: str, tmp_path: Path) -> None:
    data, code, field = REFUSED[case]
    path = place(tmp_path, data)
    tracemalloc.start()
    try:
        with pytest.raises(ModelRefused) as refusal:
            open_gguf(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (refusal.value.code, refusal.value.param) == (code, field)
    assert field in refusal.value.message
    assert peak < 2**20


def test_the_big_endian_refusal_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="big-endian"):
        open_gguf(place(tmp_path, write_gguf(PAIRS, version=0x02000000)))


@pytest.mark.parametrize("code", ["not_found", "unreadable"])
def test_what_is_no_file_is_refused(code: str, tmp_path: Path) -> None:
    with pytest.raises(ModelRefused) as refusal:
        open_gguf(tmp_path / "absent.gguf" if code == "not_found" else tmp_path)
    assert refusal.value.code == code


def test_a_pipe_does_not_block_the_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelRefused, match="not a regular file"):
        open_gguf(tmp_path / "pipe")


def test_a_file_of_the_reference_writer_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float64("f64", 2.5)
    writer.add_bool("flag", True)
    writer.add_string("text", "é▁")
    writer.add_array("texts", ["a", "", "bc"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("flags", [True, False])
    first = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("first", first)
    writer.add_tensor("second", np.ones(5, np.float16))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    with open_gguf(path) as file:
        numbers = file.metadata.pop("numbers")
        flags = file.metadata.pop("flags")
        assert isinstance(numbers, np.ndarray) and numbers.tolist() == [1, -2, 3]
        assert isinstance(flags, np.ndarray) and flags.tolist() == [True, False]
        assert file.metadata == {
            "general.architecture": "llama",
            "u32": 2**32 - 1,
            "i64": -(2**63),
            "f64": 2.5,
            "flag": True,
            "text": "é▁",
            "texts": ("a", "", "bc"),
        }
        assert file.tensors["first"].shape == (3, 4)  # slowest dimension first
        assert file.tensors["first"].type_name == "F32"
        assert file.data("first").view(np.float32).tolist() == first.reshape(-1).tolist()
        assert file.read("second").view(np.float16).tolist() == [1.0] * 5


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_versions_and_alignments_are_read(version: int, alignment: int, tmp_path: Path) -> None:
    items = [Tensor("a", (3,)), Tensor("b", (5, 2))]
    data = write_gguf({"general.alignment": alignment}, items, version=version, alignment=alignment)
    with open_gguf(place(tmp_path, data)) as file:
        assert [tensor.offset % alignment for tensor in file.tensors.values()] == [0, 0]
        assert [tensor.nbytes for tensor in file.tensors.values()] == [12, 40]


def test_an_absent_tensor_is_refused_by_name(tmp_path: Path) -> None:
    with open_gguf(place(tmp_path, write_gguf(PAIRS, ONE))) as file, pytest.raises(ModelRefused) as refusal:
        file.data("absent")
    assert (refusal.value.code, refusal.value.param) == ("missing_tensor", "absent")


def test_views_are_read_only_and_outlive_the_file(tmp_path: Path) -> None:
    with open_gguf(place(tmp_path, write_gguf(PAIRS, ONE))) as file:
        view = file.data("t")
    file.close()
    assert not view.flags.writeable
    assert view.tolist() == [0x3C] * 32


def test_a_replaced_file_is_noticed_and_harmless(tmp_path: Path) -> None:
    path = place(tmp_path, write_gguf(PAIRS, ONE))
    with open_gguf(path) as file:
        assert not file.changed()
        other = tmp_path / "other"
        other.write_bytes(bytes(500))
        other.rename(path)
        assert file.changed()
        assert file.data("t").tolist() == [0x3C] * 32
        path.unlink()
        assert file.changed()


@pytest.mark.parametrize("read", ["data", "read"])
def test_a_file_cut_short_while_open_is_refused_and_the_process_lives(read: str, tmp_path: Path) -> None:
    path = place(tmp_path, write_gguf(PAIRS, ONE))
    with open_gguf(path) as file:
        os.truncate(path, 100)
        with pytest.raises(ModelRefused) as refusal:
            getattr(file, read)("t")
    assert refusal.value.code == "source_changed"


def test_strings_of_all_arrays_share_one_limit(tmp_path: Path) -> None:
    array = struct.pack("<IIQ", ARRAY, STRING, 2**21) + bytes(8 * 2**21)
    pairs = b"".join(string(key) + array for key in "abc")
    path = place(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 1, 3) + pairs + bytes(64))
    with pytest.raises(ModelRefused) as refusal:
        open_gguf(path)
    assert (refusal.value.code, refusal.value.param) == ("limit_exceeded", "c")


@settings(deadline=None, max_examples=300)
@given(data=st.binary(max_size=300))
def test_any_bytes_behind_the_magic_are_read_or_refused(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + data)
    try:
        open_gguf(path).close()
    except ModelRefused as error:
        assert error.param


@settings(deadline=None, max_examples=300)
@given(place_of_change=st.integers(0, 400), value=st.integers(0, 255))
def test_any_changed_byte_is_read_or_refused(
    place_of_change: int, value: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(write_gguf({**PAIRS, "a": ["x", "y"], "n": [1, 2]}, [Tensor("a", (32, 2), 2), Tensor("b", (4,))]))
    data[place_of_change % len(data)] = value
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(data)
    try:
        with open_gguf(path) as file:
            assert all(len(file.data(name)) == tensor.nbytes for name, tensor in file.tensors.items())
    except ModelRefused as error:
        assert error.param


def test_a_real_model_has_the_tensors_that_the_reference_reads(smollm2_path: Path) -> None:
    reference = gguf.GGUFReader(smollm2_path)
    with open_gguf(smollm2_path) as file:
        assert len(file.tensors) == len(reference.tensors)
        for expected in reference.tensors:
            tensor = file.tensors[expected.name]
            assert tensor.shape == tuple(reversed(expected.shape.tolist()))
            assert (tensor.offset, tensor.nbytes) == (expected.data_offset, expected.n_bytes)
        name = "blk.0.attn_q.weight"
        [data] = [expected.data for expected in reference.tensors if expected.name == name]
        assert np.array_equal(file.data(name), data.reshape(-1))
