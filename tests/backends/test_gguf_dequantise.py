"""Tensors as float32."""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from tripower.backends.gguf.dequantise import dequantise
from tripower.backends.gguf.reader import open_gguf
from tripower.backends.gguf.types import DEQUANTISABLE, TENSOR_TYPES
from tripower.bench.gguf_samples import Tensor, write_gguf
from tripower.runtime.kernel.errors import ModelRefused

IDS = {kind.name: type_id for type_id, kind in TENSOR_TYPES.items()}


def place(folder: Path, type_name: str, data: bytes, dimensions: tuple[int, ...]) -> Path:
    """A file with one tensor `t` of this type and these bytes."""
    path = folder / "model.gguf"
    whole = write_gguf({"general.architecture": "llama"}, [Tensor("t", dimensions, IDS[type_name])])
    kind = TENSOR_TYPES[IDS[type_name]]
    size = math.prod(dimensions) // kind.block_elements * kind.block_bytes
    padded = -(-size // 32) * 32
    assert padded >= len(data)
    path.write_bytes(whole[: len(whole) - padded] + data + bytes(padded - len(data)))
    return path


@pytest.mark.parametrize("type_name", sorted(DEQUANTISABLE))
def test_values_are_those_of_the_reference(type_name: str, tmp_path: Path) -> None:
    kind = TENSOR_TYPES[IDS[type_name]]
    elements = 3 * 256
    data = np.random.default_rng(1).integers(0, 100, elements // kind.block_elements * kind.block_bytes, dtype=np.uint8)
    with open_gguf(place(tmp_path, type_name, data.tobytes(), (256, 3))) as file:
        values = dequantise(file, "t")
    reference = gguf.quants.dequantize(data.reshape(3, -1), GGMLQuantizationType[type_name])
    assert values.dtype == np.float32 and values.shape == (3, 256)
    assert np.array_equal(values, reference)
    assert np.any(values)


def test_a_block_worked_out_by_hand(tmp_path: Path) -> None:
    """Q4_1: scale and minimum as halves, then 16 bytes whose low halves are the first 16 values."""
    block = np.array([0.5, -1.0], np.float16).tobytes() + bytes(range(16))
    with open_gguf(place(tmp_path, "Q4_1", block, (32,))) as file:
        values = dequantise(file, "t")
    assert values.tolist() == [0.5 * low - 1.0 for low in range(16)] + [-1.0] * 16


def test_the_result_is_writable_and_outlives_the_file(tmp_path: Path) -> None:
    with open_gguf(place(tmp_path, "F32", np.ones(8, np.float32).tobytes(), (4, 2))) as file:
        values = dequantise(file, "t")
    values *= 2
    assert values.tolist() == [[2.0] * 4] * 2


@pytest.mark.parametrize("type_name", ["IQ4_NL", "I8", "TQ1_0", "MXFP4"])
def test_other_types_are_refused_by_tensor_and_type(type_name: str, tmp_path: Path) -> None:
    with open_gguf(place(tmp_path, type_name, b"", (256,))) as file, pytest.raises(ModelRefused) as refusal:
        dequantise(file, "t")
    assert (refusal.value.code, refusal.value.param) == ("unsupported_tensor_type", "t")
    assert type_name in refusal.value.message


def test_a_hostile_scale_gives_no_warning(tmp_path: Path) -> None:
    with open_gguf(place(tmp_path, "Q4_0", b"\xff\x7f" + bytes(16), (32,))) as file:
        assert np.isnan(dequantise(file, "t")).all()
