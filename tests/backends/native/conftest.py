"""Kernels called one by one: built for a target, given words, run tile by tile."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest
from llvmlite import ir
from numpy.typing import NDArray

from tripower.backends.picolm.native.compile import compile_module
from tripower.backends.picolm.native.target import Target, narrower_targets

Word: TypeAlias = "int | float | NDArray[Any] | None"
RunTiles: TypeAlias = Callable[[Sequence[Word], Iterable[int]], None]
BuildKernel: TypeAlias = Callable[[Callable[[ir.Module, Target, str], None], Target], RunTiles]

SCRATCH_ALIGNMENT = 64


@functools.cache
def _compiled(build: Callable[[ir.Module, Target, str], None], target: Target) -> Callable[..., Any]:
    code = compile_module(lambda module: build(module, target, "kernel"), target)
    return code.function("kernel", None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


def _word(value: Word) -> int:
    """An array's address, a float's bits, or the number itself."""
    if isinstance(value, np.ndarray):
        return int(value.ctypes.data)
    if isinstance(value, float):
        return int.from_bytes(struct.pack("<d", value), "little", signed=True)
    return value or 0


@pytest.fixture(params=narrower_targets(), ids=lambda target: target.name)
def target(request: pytest.FixtureRequest) -> Target:
    """Each width that this machine can run."""
    found: Target = request.param
    return found


@pytest.fixture
def build_kernel() -> BuildKernel:
    """`run = build_kernel(build_quantise, target)`, then `run(words, range(tiles))`. Scratch is filled with rubbish before each call."""

    def build(builder: Callable[[ir.Module, Target, str], None], target: Target, scratch_bytes: int = 1 << 20) -> RunTiles:
        function = _compiled(builder, target)
        memory = np.full(scratch_bytes + SCRATCH_ALIGNMENT, 0xA5, np.uint8)
        scratch = -(-memory.ctypes.data // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT

        def run(words: Sequence[Word], tiles: Iterable[int]) -> None:
            memory.fill(0xA5)
            values = np.array([_word(word) for word in words], np.int64)
            for tile in tiles:
                function(values.ctypes.data, tile, scratch)

        return run

    return build
