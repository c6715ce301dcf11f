"""4-bit blocks taken apart mean what the file means, and torch's int4 product multiplies by that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from tripower.backends.gguf.layout import TensorInfo
from tripower.backends.gguf.types import TENSOR_TYPES
from tripower.backends.picolm.accelerated import linear
from tripower.backends.picolm.accelerated.int4 import INT4_TYPES, Int4Values, unpack_int4
from tripower.backends.picolm.accelerated.linear import Dense, Int4, Stacked, takes_int4

CPU = torch.device("cpu")
IDENTIFIERS = {each.name: number for number, each in TENSOR_TYPES.items()}


def random_blocks(type_name: str, outputs: int, inputs: int, seed: int = 0) -> tuple[TensorInfo, NDArray[np.uint8]]:
    """Any bytes are a block; only its float16 numbers are kept finite and small."""
    kind = TENSOR_TYPES[IDENTIFIERS[type_name]]
    blocks = outputs * inputs // kind.block_elements
    random = np.random.default_rng(seed)
    data = random.integers(0, 256, (blocks, kind.block_bytes), np.uint8)
    halves = 1 if type_name == "Q4_0" else 2
    data[:, : 2 * halves] = random.uniform(-0.1, 0.1, (blocks, halves)).astype("<f2").view(np.uint8)
    return tensor_info(type_name, (outputs, inputs)), data.reshape(-1)


def tensor_info(type_name: str, shape: tuple[int, ...]) -> TensorInfo:
    kind = TENSOR_TYPES[IDENTIFIERS[type_name]]
    nbytes = int(np.prod(shape)) // kind.block_elements * kind.block_bytes
    return TensorInfo("w", shape, type_name, IDENTIFIERS[type_name], 0, nbytes, kind.block_elements, kind.block_bytes)


@pytest.mark.parametrize("type_name", sorted(INT4_TYPES))
def test_numbers_scales_and_zeros_mean_what_the_reference_reads(type_name: str) -> None:
    tensor, data = random_blocks(type_name, 6, 512)
    expected = gguf.quants.dequantize(data.reshape(6, -1), GGMLQuantizationType(tensor.type_id))
    found = unpack_int4(tensor, data)
    assert found.numbers.max() == 15 and found.scales.shape == found.zeros.shape == (6, 16)
    np.testing.assert_allclose(found.values(), expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("type_name", sorted(INT4_TYPES))
@pytest.mark.parametrize("inputs", [256, 768])
@pytest.mark.parametrize("rows", [1, 5])
def test_the_product_is_that_of_the_rounded_scales(type_name: str, inputs: int, rows: int) -> None:
    tensor, data = random_blocks(type_name, 32, inputs)
    values = unpack_int4(tensor, data)
    given = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    bias = torch.linspace(-1, 1, 32)
    found = Int4(values, CPU, bias).forward(given)
    scales, zeros = (torch.from_numpy(each).bfloat16().double() for each in (values.scales, values.zeros))
    grouped = torch.from_numpy(values.numbers).double().view(32, -1, 32) - 8
    exact = given.double() @ (grouped * scales[..., None] + zeros[..., None]).view(32, -1).T + bias
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=0.01 * float(exact.abs().max()))


@pytest.mark.parametrize(
    ("type_name", "outputs", "inputs", "stays"),
    [
        ("Q4_0", 32, 64, True),
        ("Q4_1", 16, 32, True),
        ("Q4_K", 48, 256, True),
        ("Q4_0", 24, 64, False),
        ("Q8_0", 32, 64, False),
        ("F16", 32, 64, False),
    ],
)
def test_a_matrix_stays_in_four_bits_where_the_product_has_its_shape(
    type_name: str, outputs: int, inputs: int, stays: bool
) -> None:
    assert takes_int4(type_name, outputs, inputs, CPU) is stays


@pytest.fixture
def unknown() -> Iterator[None]:
    """What is known of devices is forgotten before and after."""
    linear.int4_works.cache_clear()
    yield
    linear.int4_works.cache_clear()


def test_old_cuda_devices_are_not_even_tried(unknown: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(linear, "Int4", None)
    assert not takes_int4("Q4_0", 24, 64, torch.device("cuda:0"))


def wrong_order(values: Int4Values, device: torch.device) -> Int4:
    """As a device would see it that has the numbers of a byte the other way round."""
    swapped = values.numbers.reshape(len(values.numbers), -1, 2)[..., ::-1].reshape(values.numbers.shape)
    return Int4(Int4Values(np.ascontiguousarray(swapped), values.scales, values.zeros), device)


def no_kernel(values: Int4Values, device: torch.device) -> Int4:
    raise RuntimeError("not compiled for this device")


@pytest.mark.parametrize(("make", "works"), [(Int4, True), (wrong_order, False), (no_kernel, False)])
def test_the_product_is_used_only_where_it_is_seen_to_be_right(
    make: Any, works: bool, unknown: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "Int4", make)
    assert takes_int4("Q4_0", 32, 64, CPU) is works


def test_parts_of_different_forms_stand_side_by_side() -> None:
    tensor, data = random_blocks("Q4_0", 16, 64)
    small, dense = Int4(unpack_int4(tensor, data), CPU), Dense(torch.randn(3, 64))
    rows = torch.randn(2, 64)
    bias = torch.arange(19.0)
    both = Stacked([small, dense], bias)
    assert torch.equal(both.forward(rows), torch.cat((small.forward(rows), dense.forward(rows)), dim=-1) + bias)
    assert both.nbytes == small.nbytes + dense.nbytes == 16 * 64 // 2 + 16 * 2 * 4 + 3 * 64 * 4
