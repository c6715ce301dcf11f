"""The table of tensor types against the `gguf` package."""

from __future__ import annotations

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from tripower.backends.gguf.types import DEQUANTISABLE, TENSOR_TYPES

IN_MEMORY_ONLY = {"Q8_1", "Q8_K"}


@pytest.mark.parametrize("type_id", sorted(TENSOR_TYPES))
def test_a_type_has_the_name_and_sizes_of_the_reference(type_id: int) -> None:
    kind = TENSOR_TYPES[type_id]
    assert GGMLQuantizationType(type_id).name == kind.name
    assert GGML_QUANT_SIZES[GGMLQuantizationType(type_id)] == (kind.block_elements, kind.block_bytes)


def test_ids_15_to_30_are_not_off_by_one() -> None:
    names = [TENSOR_TYPES[type_id].name for type_id in (16, 20, 24, 25, 26, 27, 28, 29, 30)]
    assert names == ["IQ2_XXS", "IQ4_NL", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16"]


def test_types_that_exist_in_memory_only_are_left_out() -> None:
    assert not IN_MEMORY_ONLY & {kind.name for kind in TENSOR_TYPES.values()}


def test_every_type_to_compute_with_is_in_the_table() -> None:
    assert {kind.name for kind in TENSOR_TYPES.values()} >= DEQUANTISABLE
