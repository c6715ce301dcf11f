"""Rows of several arrays at once, and which rows a step still evaluates behind its last attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from llvmlite import ir

from tests.backends.native.engine.rigs import build_engine
from tripower.backends.picolm.native.boundary import CLASS_MAX, CLASSES_FIRST, DRAWN, ITEMS, ONE, REPORTED, ROWS
from tripower.backends.picolm.native.kernels.take_rows import ARRAYS, build_take_rows
from tripower.backends.picolm.native.target import Target, host_target


def build(module: ir.Module, _target: Target, name: str) -> None:
    build_take_rows(module, name)


def test_rows_of_every_array_lie_next_to_each_other(build_kernel: Any) -> None:
    chance = np.random.default_rng(4)
    rows = np.array([3, 0, 6, 6], np.int32)
    sources = [
        chance.integers(0, 99, (7, width)).astype(kind) for width, kind in ((48, np.int16), (5, np.float32), (1, np.int32))
    ]
    taken = [np.full((len(rows), each.shape[1]), -1, each.dtype) for each in sources]
    words: list[Any] = [rows]
    for source, destination in zip(sources, taken, strict=True):
        words += [source, destination, source[:1].nbytes]
    build_kernel(build, host_target())([*words, *[None] * (3 * (ARRAYS - len(sources)))], range(len(rows)))
    for source, destination in zip(sources, taken, strict=True):
        np.testing.assert_array_equal(destination, source[rows])


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_behind_the_last_attention_only_rows_of_logits_are_evaluated(tiny_model: Any, architecture: str) -> None:
    """A prompt of many rows has one of them; a step that draws nowhere has none."""
    engine = build_engine(tiny_model(architecture, layers=2))
    stages = list(engine._usable.stages)
    try:
        [place] = [index for index, stage in enumerate(stages) if stage[0].kernel == "take_rows"]
        before, behind = ({part.count for stage in some for part in stage} for some in (stages[:place], stages[place:]))
        classes = len(CLASS_MAX)
        assert before <= {ROWS, ITEMS, *range(CLASSES_FIRST, CLASSES_FIRST + classes)}
        assert behind <= {DRAWN, REPORTED, ONE, *range(CLASSES_FIRST + classes, CLASSES_FIRST + 2 * classes)}
        assert {stage[0].kernel for stage in stages[place:]} >= {"take_rows", "activation", "draw"}
    finally:
        engine.close()
