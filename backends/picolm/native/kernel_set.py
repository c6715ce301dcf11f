"""All functions that one model's step needs, emitted into one module and known by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from tripower.backends.picolm.decoder import Decoder
from tripower.backends.picolm.native.boundary import emit_boundary, emit_boundary_kernel
from tripower.backends.picolm.native.compile import compile_module
from tripower.backends.picolm.native.executor import emit_executor
from tripower.backends.picolm.native.kernels.activation import build_activation
from tripower.backends.picolm.native.kernels.attention.kernel import AttentionShape, build_attention
from tripower.backends.picolm.native.kernels.attention.kv import KvElement
from tripower.backends.picolm.native.kernels.attention.rope import RopeStoreShape, build_rope_store
from tripower.backends.picolm.native.kernels.linear import scratch_bytes
from tripower.backends.picolm.native.kernels.moe import build_combine, build_route, route_scratch_bytes
from tripower.backends.picolm.native.kernels.norm import build_norm_add, build_norm_quantise
from tripower.backends.picolm.native.kernels.quantise import build_quantise
from tripower.backends.picolm.native.kernels.sampler.draw import build_draw, draw_scratch_bytes
from tripower.backends.picolm.native.kernels.sampler.report import build_report, report_scratch_bytes
from tripower.backends.picolm.native.kernels.softcap import build_softcap
from tripower.backends.picolm.native.kernels.take_rows import build_take_rows
from tripower.backends.picolm.native.kernels.weights.packing import Packed
from tripower.backends.picolm.native.linear_code import EXPERT_TILE, expert_code, linear_code, linear_name
from tripower.backends.picolm.native.target import Target
from tripower.backends.picolm.native.tiles import Tile, TileTable

ITEM_ROWS_MAX = 8
"""Rows that one attention tile serves together: 16 guesses of one sequence make two items, which two threads share evenly even
where kv heads are three."""


def heads_per_tile(shape: AttentionShape) -> int:
    """Query heads of one attention tile: all that share a kv head, or half of them where a single kv head would leave threads idle."""
    return shape.sharing // 2 if shape.kv_heads == 1 and shape.sharing % 2 == 0 else shape.sharing


class KernelSet:
    """A model's kernels, compiled; and what they are called."""

    def __init__(self, decoder: Decoder, tiles: TileTable, target: Target, element: KvElement) -> None:
        self._decoder = decoder
        self._target, self._element = target, element
        self.attention_shape = AttentionShape(
            heads=decoder.heads,
            kv_heads=decoder.kv_heads,
            head_size=decoder.head_size,
            softcap=decoder.attention_softcap,
            element=element,
        )
        self._rope_shapes = [self._rope_shape(decoder, index) for index in range(len(decoder.ropes))]
        self._tiles_used = {tile for found in tiles.values() for tile in found}
        self._code = compile_module(self._build, target, self.key)

    @property
    def key(self) -> tuple[object, ...]:
        """All that the code of this model depends on."""
        decoder = self._decoder
        optional = (decoder.post_norms, bool(decoder.logit_softcap), bool(decoder.experts))
        return (self.attention_shape, tuple(self._rope_shapes), decoder.activation, *optional)

    def function(self, name: str, result: Any, *parameters: Any) -> Callable[..., Any]:
        """A function of the executor, to call by ctypes."""
        return self._code.function(name, result, *parameters)

    @property
    def scratch_bytes(self) -> int:
        """Memory that each thread needs."""
        decoder = self._decoder
        return max(
            *(scratch_bytes(self._target, tile.rows, tile.strips) for tile in {*self._tiles_used, EXPERT_TILE}),
            self.attention_shape.scratch_bytes(ITEM_ROWS_MAX),
            *(shape.scratch_bytes() for shape in self._rope_shapes),
            route_scratch_bytes(decoder.experts),
            draw_scratch_bytes(decoder.vocabulary_size),
            report_scratch_bytes(),
        )

    def address(self, name: str) -> int:
        """Where a kernel begins; those of a weight type are called `TYPE.name`."""
        kind, _, rest = name.rpartition(".")
        if not kind:
            return self._code.address(rest)
        code = expert_code(kind, self._target) if rest == "expert" else linear_code(kind, self._target)
        return code.address(rest)

    @staticmethod
    def linear(packed: Packed, tile: Tile) -> str:
        return f"{packed.format.name}.{linear_name(tile.rows, tile.strips)}"

    @staticmethod
    def expert(packed: Packed) -> str:
        return f"{packed.format.name}.expert"

    @staticmethod
    def embed(packed: Packed) -> str:
        return f"{packed.format.name}.embed"

    @staticmethod
    def rope_store(index: int) -> str:
        return f"rope_store_{index}"

    def _build(self, module: ir.Module) -> None:
        target, decoder = self._target, self._decoder
        build_norm_quantise(module, target)
        build_quantise(module, target)
        build_take_rows(module)
        build_activation(module, target, "activation", decoder.activation)
        build_attention(module, target, self.attention_shape, "attention")
        for index, shape in enumerate(self._rope_shapes):
            build_rope_store(module, target, shape, self.rope_store(index))
        if decoder.post_norms:
            build_norm_add(module, target)
        if decoder.logit_softcap:
            build_softcap(module, target)
        if decoder.experts:
            build_route(module, target)
            build_combine(module, target)
        build_draw(module, target)
        build_report(module, target)
        emit_boundary(module)
        emit_executor(module, target.architecture)
        emit_boundary_kernel(module)

    def _rope_shape(self, decoder: Decoder, index: int) -> RopeStoreShape:
        return RopeStoreShape(
            heads=decoder.heads,
            kv_heads=decoder.kv_heads,
            head_size=decoder.head_size,
            dimensions=decoder.ropes[index].dimensions,
            pairs=decoder.rope_pairs,
            attention_scale=decoder.attention_scale,
            element=self._element,
            normalise=decoder.query_key_norm,
            epsilon=decoder.norm_epsilon,
        )
