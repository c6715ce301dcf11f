"""From a decoder to the stages of its step: which kernel reads and writes what, in which order. Read top to bottom.

Rows between the layers are `state`, float32. A norm hands rows to the projections in the form that their weights want. Residuals
are added by the projection itself, except where a norm comes between (`post_norms`).

Behind the last layer's attention only rows of logits are of interest: of a prompt's rows usually one. They are taken out there, and what
follows is evaluated for them alone, which saves most of a layer. A row's bits do not depend on the rows beside it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import numpy as np

from tripower.backends.picolm.decoder import EMBEDDING, EXPERT_WEIGHT_SUM_MIN
from tripower.backends.picolm.native.boundary import CLASS_MAX, CLASSES_FIRST, DRAWN, ITEMS, ONE, PAIRS, REPORTED, ROWS
from tripower.backends.picolm.native.buffers import Rows, StepBuffers
from tripower.backends.picolm.native.kernel_set import KernelSet, heads_per_tile
from tripower.backends.picolm.native.kernels.linear import tile_word
from tripower.backends.picolm.native.kernels.weights.packing import Packed
from tripower.backends.picolm.native.kv_pool import KvPool
from tripower.backends.picolm.native.linear_code import EXPERT_TILE
from tripower.backends.picolm.native.memory import address, zeros
from tripower.backends.picolm.native.model import NativeModel, is_float
from tripower.backends.picolm.native.stages import Part, Stages
from tripower.backends.picolm.native.tiles import TileTable, shape_of

CHUNK = 512
"""Elements of a row that one tile of an element-wise kernel does."""

ROPE_ROWS = 4
"""Rows of one tile that rotates and stores: a quarter of a microsecond each is not worth a tile of its own."""


class RopeTable:
    """Cosines and sines of one rope, float32 [positions][dimensions / 2]; `addresses` are words of every layer that uses it."""

    def __init__(self, positions: int, pairs: int) -> None:
        self.cosines, self.sines = zeros((positions, pairs), np.float32), zeros((positions, pairs), np.float32)


class Places(msgspec.Struct, frozen=True):
    """Everything outside the layers that stages point to."""

    step: StepBuffers
    pool: KvPool
    ropes: Sequence[RopeTable]
    logits: np.ndarray
    draw_words: Sequence[int]
    report_words: Sequence[int]
    rows_max: int
    drawn_max: int
    threads: int


class Span(msgspec.Struct, frozen=True):
    """The rows that stages are about: all of a step's, or its rows of logits, which lie next to each other then."""

    state: np.ndarray
    attended: Rows
    count: int
    """Which of the boundary's counts."""
    classes_first: int
    """The first of the counts of its classes."""


class StepLayout:
    """Builds `stages`; owns the rows that they exchange."""

    def __init__(self, model: NativeModel, places: Places, tiles: TileTable, kernels: KernelSet) -> None:
        self._model, self._places, self._tiles, self._kernels = model, places, tiles, kernels
        self._decoder = decoder = model.decoder
        self._epsilon = _bits(decoder.norm_epsilon)
        self.stages = Stages()
        self.kept: list[object] = [places]
        """Whatever the stages' words point to."""
        rows, heads, keys = places.rows_max, decoder.heads * decoder.head_size, decoder.kv_heads * decoder.head_size
        self._branch = self._floats(rows, decoder.width)
        self._queries, self._keys, self._values = (self._floats(rows, size) for size in (heads, keys, keys))
        self._normed = self._rows(rows, decoder.width, self._readers_of_norms())
        outputs = [self._layer(layer, "attn_output") for layer in range(decoder.layers)]
        self._all = Span(self._floats(rows, decoder.width), self._rows(rows, heads, outputs), ROWS, CLASSES_FIRST)
        taken = self._floats(places.drawn_max, decoder.width), self._rows(places.drawn_max, heads, outputs[-1:])
        self._taken = Span(*taken, DRAWN, CLASSES_FIRST + len(CLASS_MAX))
        self._final = self._rows(places.drawn_max, decoder.width, [model.head])
        self._make_feed_forward_rows()
        self._embed()
        span = self._all
        for layer in range(decoder.layers):
            span = self._add_attention(layer)
            self._add_feed_forward(layer, span)
        self._add_head(span)

    # Memory.

    def _floats(self, rows: int, columns: int) -> np.ndarray:
        array = zeros((rows, columns), np.float32)
        self.kept.append(array)
        return array

    def _rows(self, rows: int, columns: int, readers: Sequence[Packed]) -> Rows:
        quantised = any(not is_float(each) for each in readers)
        made = Rows(rows, columns, quantised=quantised, floats=any(is_float(each) for each in readers))
        self.kept.append(made)
        return made

    def _layer(self, layer: int, name: str) -> Packed:
        return self._model.matrices[f"blk.{layer}.{name}.weight"]

    def _vector(self, layer: int, name: str) -> int:
        """Address of a vector of a layer; 0 if it has none."""
        found = self._model.vectors.get(f"blk.{layer}.{name}")
        return 0 if found is None else address(found)

    def _readers_of_norms(self) -> list[Packed]:
        names = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps")
        found = [
            self._model.matrices.get(f"blk.{layer}.{name}.weight") for layer in range(self._decoder.layers) for name in names
        ]
        return [each for each in found if each is not None]

    def _make_feed_forward_rows(self) -> None:
        decoder, rows, model = self._decoder, self._places.rows_max, self._model
        layers = range(decoder.layers)
        pairs = rows * max(decoder.experts_used, 1)
        dense = [
            model.matrices[name] for name in (f"blk.{layer}.ffn_down.weight" for layer in layers) if name in model.matrices
        ]
        mixed = [
            model.matrices[name] for name in (f"blk.{layer}.ffn_down_exps.weight" for layer in layers) if name in model.matrices
        ]
        size = rows * decoder.feed_forward if dense else 0
        size = max(size, pairs * decoder.expert_feed_forward if mixed else 0)
        self._gate, self._up = self._floats(1, size), self._floats(1, size)
        if dense:
            self._inside = self._rows(rows, decoder.feed_forward, dense)
        if mixed:
            self._expert_inside = self._rows(pairs, decoder.expert_feed_forward, mixed)
            self._scores = self._floats(rows, decoder.experts)
            self._chosen = zeros((rows, decoder.experts_used), np.int32)
            self._shares = self._floats(rows, decoder.experts_used)
            self._pair_outputs = self._floats(pairs, decoder.width)
            self.kept.append(self._chosen)

    # Stages.

    def _embed(self) -> None:
        packed, step = self._model.matrices[EMBEDDING], self._places.step
        scale = struct.unpack("<i", struct.pack("<f", self._decoder.embedding_scale))[0]
        words = (
            address(packed.data), address(step.row_token), address(self._all.state), packed.k, packed.n,
            self._count(ROWS), scale,
        )  # fmt: skip
        self.stages.add(Part(self._kernels.embed(packed), words, 1, ROWS))

    def _add_attention(self, layer: int) -> Span:
        """Up to the norm before the feed-forward; the rows that it is for."""
        decoder, places = self._decoder, self._places
        if layer == 0 or not decoder.post_norms:
            self._add_norm(self._vector(layer, "attn_norm.weight"), self._all)
        self.stages.add(
            *self._linear(layer, "attn_q", self._normed, self._queries, self._all),
            *self._linear(layer, "attn_k", self._normed, self._keys, self._all),
            *self._linear(layer, "attn_v", self._normed, self._values, self._all),
        )
        step = places.step
        pool_words = self._pool_words(layer)
        rope = places.ropes[decoder.layer_rope[layer]]
        self.stages.add(
            Part(
                self._kernels.rope_store(decoder.layer_rope[layer]),
                (
                    self._count(ROWS), ROPE_ROWS,
                    address(self._queries), self._queries.shape[1], address(self._keys), self._keys.shape[1],
                    address(self._values), self._values.shape[1], address(rope.cosines), address(rope.sines),
                    address(step.row_position), address(step.row_slot), *pool_words,
                    self._vector(layer, "attn_q_norm.weight"), self._vector(layer, "attn_k_norm.weight"),
                ),
                1,
                ROWS,
                ROPE_ROWS,
            )
        )  # fmt: skip
        self._add_attend(layer, pool_words)
        span = self._all
        if layer + 1 == decoder.layers and not decoder.has_experts(layer):
            span = self._taken
            self._take_rows()
        if decoder.post_norms:
            self.stages.add(*self._linear(layer, "attn_output", span.attended, self._branch, span))
            self._add_post_norm(layer, "post_attention_norm.weight", self._vector(layer, "ffn_norm.weight"), span)
        else:
            self.stages.add(*self._linear(layer, "attn_output", span.attended, span.state, span, accumulate=True))
            self._add_norm(self._vector(layer, "ffn_norm.weight"), span)
        return span

    def _take_rows(self) -> None:
        """Put rows of logits next to each other: what they have attended to, and their state."""
        words = [address(self._places.step.drawn_row)]
        sources = self._all.state, *self._all.attended.arrays
        for source, taken in zip(sources, (self._taken.state, *self._taken.attended.arrays), strict=True):
            if source is None or taken is None:
                words += [0, 0, 0]
            else:
                words += [address(source), address(taken), taken[:1].nbytes]
        self.stages.add(Part("take_rows", tuple(words), 1, DRAWN))

    def _add_attend(self, layer: int, pool_words: Sequence[int]) -> None:
        decoder, step = self._decoder, self._places.step
        shape = self._kernels.attention_shape
        per_tile = heads_per_tile(shape)
        attended = self._all.attended
        in_blocks = shape.quantises or attended.q is None
        words = attended.words if in_blocks else (0, 0, 0, 0, address(self._queries))
        self.stages.add(
            Part(
                "attention",
                (
                    address(self._queries), self._queries.shape[1], *words,
                    address(step.item_row), address(step.item_rows), address(step.row_position), address(step.row_slot),
                    *pool_words, per_tile, decoder.windows[layer],
                ),
                shape.tiles_per_item(per_tile),
                ITEMS,
            )
        )  # fmt: skip
        if not in_blocks:
            columns = self._queries.shape[1]
            words = (address(self._queries), columns, columns, *attended.words)
            self.stages.add(Part("quantise", words, 1, ROWS))

    def _add_feed_forward(self, layer: int, span: Span) -> None:
        decoder = self._decoder
        out = self._branch if decoder.post_norms else span.state
        if decoder.has_experts(layer):
            self._add_mixture(layer, out)
        else:
            gate, up = (each.reshape(-1)[: self._places.rows_max * decoder.feed_forward] for each in (self._gate, self._up))
            gate, up = (each.reshape(-1, decoder.feed_forward) for each in (gate, up))
            self.stages.add(
                *self._linear(layer, "ffn_gate", self._normed, gate, span),
                *self._linear(layer, "ffn_up", self._normed, up, span),
            )
            self._add_activation(decoder.feed_forward, 1, self._inside, span)
            self.stages.add(*self._linear(layer, "ffn_down", self._inside, out, span, accumulate=not decoder.post_norms))
        if decoder.post_norms:
            last = layer + 1 == decoder.layers
            self._add_post_norm(layer, "post_ffw_norm.weight", 0 if last else self._vector(layer + 1, "attn_norm.weight"), span)

    def _add_activation(self, columns: int, rows_each: int, into: Rows, span: Span) -> None:
        words = (address(self._gate), address(self._up), columns, columns, CHUNK, *into.words)
        self.stages.add(Part("activation", words, rows_each * -(-columns // CHUNK), span.count))

    def _add_mixture(self, layer: int, out: np.ndarray) -> None:
        """Router, the chosen experts' feed-forwards, and their weighted sum. A pair is a row and one of its experts."""
        decoder, used, inside = self._decoder, self._decoder.experts_used, self._decoder.expert_feed_forward
        self.stages.add(*self._linear(layer, "ffn_gate_inp", self._normed, self._scores, self._all))
        words = (
            address(self._scores), decoder.experts, used, address(self._chosen), address(self._shares),
            int(decoder.expert_weights_normalised), _bits(EXPERT_WEIGHT_SUM_MIN),
        )  # fmt: skip
        self.stages.add(Part("route", words, 1, ROWS))
        self.stages.add(
            self._experts(layer, "ffn_gate_exps", self._normed, self._gate, inside, per_pair=False),
            self._experts(layer, "ffn_up_exps", self._normed, self._up, inside, per_pair=False),
        )
        self._add_activation(inside, used, self._expert_inside, self._all)
        self.stages.add(
            self._experts(layer, "ffn_down_exps", self._expert_inside, self._pair_outputs, decoder.width, per_pair=True)
        )
        words = (
            address(self._pair_outputs), address(self._shares), used, decoder.width, CHUNK, address(out),
            int(not decoder.post_norms),
        )  # fmt: skip
        self.stages.add(Part("combine", words, -(-decoder.width // CHUNK), ROWS))

    def _experts(self, layer: int, name: str, rows: Rows, out: np.ndarray, stride: int, *, per_pair: bool) -> Part:
        packed, experts = self._layer(layer, name), self._decoder.experts
        q, scale, sums, totals, floats = rows.words
        words = (
            address(packed.data), q, scale, sums, totals, address(out), stride, packed.k, packed.n // experts,
            self._count(ROWS), EXPERT_TILE.rows_per_tile, 0, 0, floats, address(self._chosen), packed.nbytes // experts,
            self._decoder.experts_used, int(per_pair), EXPERT_TILE.strips,
        )  # fmt: skip
        columns = -(-(packed.strips // experts) // EXPERT_TILE.strips)
        return Part(self._kernels.expert(packed), words, columns, PAIRS, EXPERT_TILE.rows_per_tile)

    def _add_head(self, span: Span) -> None:
        decoder, places, model = self._decoder, self._places, self._model
        norm = model.vectors["output_norm.weight"]
        rows = address(places.step.drawn_row) if span is self._all else 0
        words = (
            address(span.state), decoder.width, decoder.width, address(norm), self._epsilon, rows, *self._final.words,
        )  # fmt: skip
        self.stages.add(Part("norm_quantise", words, 1, DRAWN))
        self.stages.add(*self._linear_parts(model.head, self._final, places.logits, 0, self._taken, accumulate=False))
        if decoder.logit_softcap:
            words = (
                address(places.logits),
                decoder.vocabulary_size,
                decoder.vocabulary_size,
                CHUNK * 8,
                _bits(decoder.logit_softcap),
            )
            self.stages.add(Part("softcap", words, -(-decoder.vocabulary_size // (CHUNK * 8)), DRAWN))
        self.stages.add(
            Part("draw", tuple(places.draw_words), 1, DRAWN), Part("report", tuple(places.report_words), 1, REPORTED)
        )
        self.stages.add(Part("boundary", (), 1, ONE))

    def _add_norm(self, weight: int, span: Span) -> None:
        width = self._decoder.width
        words = (address(span.state), width, width, weight, self._epsilon, 0, *self._normed.words)
        self.stages.add(Part("norm_quantise", words, 1, span.count))

    def _add_post_norm(self, layer: int, name: str, following: int, span: Span) -> None:
        width = self._decoder.width
        words = (
            address(self._branch), width, width, self._vector(layer, name), self._epsilon, address(span.state), following,
            *self._normed.words,
        )  # fmt: skip
        self.stages.add(Part("norm_add", words, 1, span.count))

    def _linear(
        self, layer: int, name: str, rows: Rows, out: np.ndarray, span: Span, *, accumulate: bool = False
    ) -> list[Part]:
        bias = self._vector(layer, f"{name}.bias")
        return self._linear_parts(self._layer(layer, name), rows, out, bias, span, accumulate=accumulate)

    def _linear_parts(
        self, packed: Packed, rows: Rows, out: np.ndarray, bias: int, span: Span, *, accumulate: bool
    ) -> list[Part]:
        """A linear layer: a part for each class of row counts, of which one has tiles in any step."""
        parts = []
        places = self._places
        q, scale, sums, totals, floats = rows.words
        for index in range(len(CLASS_MAX)):
            tile = self._tiles[shape_of(packed)][index]
            count = span.classes_first + index
            words = (
                address(packed.data), q, scale, sums, totals, address(out), out.shape[1], packed.k, packed.n,
                self._count(count), tile.rows_per_tile, bias, int(accumulate), floats, 0, 0, 0, 0,
                tile_word(tile.strips, tile.strips * places.threads),
            )  # fmt: skip
            parts.append(
                Part(self._kernels.linear(packed, tile), words, -(-packed.strips // tile.strips), count, tile.rows_per_tile)
            )
        return parts

    # Words.

    def _count(self, which: int) -> int:
        counts = self._places.step.counts
        return address(counts) + which * counts.itemsize

    def _pool_words(self, layer: int) -> tuple[int, ...]:
        pool, pages = self._places.pool, self._places.step.pages
        return (
            address(pages), pages.shape[1], pool.address, pool.shape.page_bytes, layer * pool.shape.layer_bytes, pool.shape.block_bytes,
        )  # fmt: skip


def _bits(value: float) -> int:
    """The bits of a float64 as an int64."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])
