"""Repacked weights are the file's weights: every type, every width, any bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tripower.backends.picolm.native.kernels.weights.formats import FORMATS, Format
from tripower.backends.picolm.native.kernels.weights.packing import pack, pack_in_steps, packed_bytes, unpack
from tripower.backends.picolm.native.memory import zeros
from tripower.backends.picolm.native.target import Target, host_target

Matrix = Callable[..., NDArray[np.uint8]]
types = pytest.mark.parametrize("type_name", list(FORMATS))
K = 512


def reference(type_name: str, raw: NDArray[np.uint8]) -> NDArray[Any]:
    """The `gguf` package's values."""
    match type_name:
        case "F32":
            return raw.view(np.float32)
        case "F16":
            return raw.view(np.float16).astype(np.float32)
        case _:
            with np.errstate(all="ignore"):
                values: NDArray[Any] = dequantize(raw, gguf.GGMLQuantizationType[type_name])
            return values


@types
def test_unpacked_weights_have_the_bits_of_the_reference(matrix: Matrix, target: Target, type_name: str) -> None:
    for n in (1, 16, 77):
        raw = matrix(type_name, n, K, n)
        values = unpack(pack(type_name, raw, K, target))
        assert values.dtype == np.float32
        assert np.array_equal(values.view(np.uint32), reference(type_name, raw).view(np.uint32))


@types
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_any_bytes_of_a_file_are_kept_too(matrix: Matrix, type_name: str, data: st.DataObject) -> None:
    shape = matrix(type_name, 2, 256).shape
    raw = np.frombuffer(data.draw(st.binary(min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])), np.uint8)
    raw = raw.reshape(shape)
    values = unpack(pack(type_name, raw, 256, host_target()))
    assert np.array_equal(values, reference(type_name, raw), equal_nan=True)


@types
def test_packed_weights_take_little_more_room_than_the_file(matrix: Matrix, type_name: str, target: Target) -> None:
    raw = matrix(type_name, 64, 2048)
    assert pack(type_name, raw, 2048, target).nbytes <= 1.04 * raw.nbytes


@types
def test_outputs_are_padded_to_whole_strips_with_zeros(matrix: Matrix, type_name: str) -> None:
    target = host_target()
    packed = pack(type_name, matrix(type_name, 3, K), K, target)
    assert packed.strips == 1
    packed.n = target.lanes
    assert not unpack(packed)[3:].any()


def test_packing_goes_in_steps_that_add_up_to_the_file(matrix: Matrix) -> None:
    raw = matrix("Q4_1", 1000, 2048)
    packed, steps = pack_in_steps("Q4_1", raw, 2048, host_target())
    sizes = list(steps)
    assert len(sizes) > 1
    assert sum(sizes) == raw.nbytes
    assert np.array_equal(packed.data, pack("Q4_1", raw, 2048, host_target()).data)


def test_a_matrix_can_be_packed_into_memory_that_is_there(matrix: Matrix, target: Target) -> None:
    raw = matrix("Q5_0", 40, 96)
    memory = zeros(packed_bytes("Q5_0", 40, 96, target), np.uint8)
    assert memory.ctypes.data % 64 == 0
    packed, steps = pack_in_steps("Q5_0", raw, 96, target, memory)
    assert sum(steps) == raw.nbytes
    assert packed.data is memory
    assert np.array_equal(memory, pack("Q5_0", raw, 96, target).data)


@types
def test_a_description_says_how_many_bits_a_weight_has(type_name: str) -> None:
    form = FORMATS[type_name]
    if isinstance(form, Format):
        assert form.bits == int(type_name[1])
        assert form.offset in (0, 1 << (form.bits - 1))
        assert sorted(form.order) == list(range(16))
