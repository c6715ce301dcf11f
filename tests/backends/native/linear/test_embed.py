"""Rows of the embedding come out of the packed table with the bits of the file's reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numpy.typing import NDArray

from tripower.backends.picolm.native.kernels.weights.embed import emit_embed
from tripower.backends.picolm.native.kernels.weights.formats import FORMATS
from tripower.backends.picolm.native.kernels.weights.packing import pack, unpack
from tripower.backends.picolm.native.target import Target

Matrix = Callable[..., NDArray[np.uint8]]


def _builder(type_name: str) -> Callable[[ir.Module, Target, str], None]:
    def build(module: ir.Module, target: Target, name: str) -> None:
        emit_embed(module, name, FORMATS[type_name], target)

    return build


def embedded(build_kernel: Any, target: Target, packed: Any, tokens: list[int], scale: float) -> NDArray[np.float32]:
    ids, rows = np.array(tokens, np.int32), np.array([len(tokens)], np.int64)
    out = np.full((len(tokens), packed.k), np.nan, np.float32)
    bits = int(np.float32(scale).view(np.int32))
    run = build_kernel(_builder(packed.format.name), target)
    run([packed.data, ids, out, packed.k, packed.n, rows, bits], range(len(tokens)))
    return out


@pytest.mark.parametrize("type_name", list(FORMATS))
def test_a_tokens_row_is_the_reference_times_the_scale(
    build_kernel: Any, matrix: Matrix, target: Target, type_name: str
) -> None:
    packed = pack(type_name, matrix(type_name, 77, 256), 256, target)
    tokens = [0, 76, 15, 16, 33, 0]
    for scale in (1.0, 25.298222):
        out = embedded(build_kernel, target, packed, tokens, scale)
        assert np.array_equal(out, unpack(packed)[tokens] * np.float32(scale))


def test_a_token_outside_the_table_reads_its_last_row(build_kernel: Any, matrix: Matrix, target: Target) -> None:
    packed = pack("Q8_0", matrix("Q8_0", 20, 64), 64, target)
    out = embedded(build_kernel, target, packed, [20, -1, 2**31 - 1], 1.0)
    assert np.array_equal(out, unpack(packed)[[19, 19, 19]])
