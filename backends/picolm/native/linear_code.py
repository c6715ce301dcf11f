"""Compiled kernels of one weight type: every tile worth having, and the embedding. Shared by all models and kept for the next ones."""

from __future__ import annotations

import functools

from llvmlite import ir

from tripower.backends.picolm.native.boundary import CLASS_MAX
from tripower.backends.picolm.native.compile import Code, compile_module
from tripower.backends.picolm.native.kernels.linear import candidates, emit_expert_linear, emit_linear
from tripower.backends.picolm.native.kernels.weights.embed import emit_embed
from tripower.backends.picolm.native.kernels.weights.formats import FORMATS
from tripower.backends.picolm.native.target import Target
from tripower.backends.picolm.native.tiles import Tile

ROWS_OF_LAST_CLASS = 64
"""Rows that stand for the class without an upper bound."""


def rows_of_class(index: int) -> int:
    """Rows that a class is measured with."""
    return min(CLASS_MAX[index], ROWS_OF_LAST_CLASS)


def tiles_worth_measuring(name: str, target: Target, index: int) -> list[Tile]:
    """Candidates for layers of a weight type in class `index`; the first is what is taken unmeasured."""
    return [Tile(*each) for each in candidates(FORMATS[name], target, rows_of_class(index))]


@functools.cache
def linear_code(name: str, target: Target) -> Code:
    """Code for a weight type. Blocks: about a second the first time on a machine."""
    wanted = {
        (tile.rows, tile.strips) for index in range(len(CLASS_MAX)) for tile in tiles_worth_measuring(name, target, index)
    }

    def build(module: ir.Module) -> None:
        for rows, strips in sorted(wanted):
            emit_linear(module, linear_name(rows, strips), FORMATS[name], target, rows, strips)
        emit_embed(module, "embed", FORMATS[name], target)

    return compile_module(build, target, ("linear", name, tuple(sorted(wanted))))


def linear_name(rows: int, strips: int) -> str:
    """Of the kernel for `rows` rows by `strips` strips at a time."""
    return f"linear_{rows}x{strips}"


EXPERT_TILE = Tile(4, 2, 256)
"""Of mixtures: pairs that use the same expert are found within a tile, so it has as many as a kernel takes."""


@functools.cache
def expert_code(name: str, target: Target) -> Code:
    """Code for experts of a weight type; its one kernel is called `expert`."""

    def build(module: ir.Module) -> None:
        emit_expert_linear(module, "expert", FORMATS[name], target, EXPERT_TILE.rows, EXPERT_TILE.strips)

    return compile_module(build, target, ("expert", name))
