"""Weights of a file repacked into strips, once, when a model is loaded; and back, for tests.

`formats` says what a strip looks like. Outputs are padded to whole strips with zeros, which kernels compute and do not store.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from tripower.backends.picolm.native.kernels.weights.blocks import TAKE_APART, Bytes, Words
from tripower.backends.picolm.native.kernels.weights.formats import BLOCK, FORMATS, AnyFormat, Fine, FloatFormat, Format
from tripower.backends.picolm.native.memory import zeros
from tripower.backends.picolm.native.target import Target

CHUNK_WEIGHTS = 1 << 18
"""Weights repacked at a time: all that numpy makes on the way stays in the second-level cache."""


class Packed(msgspec.Struct):
    """A matrix [n, k] in strips of `lanes` outputs. `data` is uint8 [nbytes] and starts at a multiple of 64."""

    format: AnyFormat
    n: int
    k: int
    lanes: int
    data: Bytes

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    @property
    def strips(self) -> int:
        return -(-self.n // self.lanes)


def pack(type_name: str, raw: Bytes, k: int, target: Target) -> Packed:
    """Repack a matrix of a file, uint8 [n, row bytes]; no value changes. Blocks: a second for 200 to 500 MB.

    Raises `KeyError` for a type that has no kernels.
    """
    packed, steps = pack_in_steps(type_name, raw, k, target)
    for _ in steps:
        pass
    return packed


def pack_in_steps(
    type_name: str, raw: Bytes, k: int, target: Target, memory: Bytes | None = None
) -> tuple[Packed, Iterator[int]]:
    """The same a piece at a time: the iterator does the work and gives the bytes of `raw` that were done with each step.

    `memory`, uint8 [`packed_bytes`] of zeros, receives the strips if it is given. Matrices that follow each other in memory in the
    order in which they are used help: kernels ask for weights ahead of use, past the end of a matrix too.
    """
    form, lanes = FORMATS[type_name], target.lanes
    data = zeros(packed_bytes(type_name, len(raw), k, target), np.uint8) if memory is None else memory
    packed = Packed(form, len(raw), k, lanes, data)
    return packed, _steps(packed, raw)


def packed_bytes(type_name: str, n: int, k: int, target: Target) -> int:
    """Bytes of a packed matrix; always a multiple of a vector's."""
    return -(-n // target.lanes) * FORMATS[type_name].strip_bytes(k, target.lanes)


def _steps(packed: Packed, raw: Bytes) -> Iterator[int]:
    form, k, lanes = packed.format, packed.k, packed.lanes
    strips = packed.data.reshape(packed.strips, -1)
    many = max(1, CHUNK_WEIGHTS // (k * lanes))
    for first in range(0, packed.strips, many):
        part = raw[first * lanes : (first + many) * lanes]
        whole = -(-len(part) // lanes) * lanes
        rows = part if whole == len(part) else np.concatenate([part, np.zeros((whole - len(part), raw.shape[1]), np.uint8)])
        into = strips[first : first + many]
        if isinstance(form, FloatFormat):
            _pack_floats(form, rows, into, k, lanes)
        else:
            _pack_quants(form, rows, into, k, lanes)
        yield part.nbytes


def _pack_floats(form: FloatFormat, rows: Bytes, strips: Bytes, k: int, lanes: int) -> None:
    kind = np.dtype(f"u{form.element_bytes}")
    values = np.ascontiguousarray(rows).view(kind).reshape(-1, lanes, k)
    strips[:, : k * lanes * form.element_bytes].view(kind).reshape(-1, k, lanes)[...] = values.transpose(0, 2, 1)


def _pack_quants(form: Format, rows: Bytes, strips: Bytes, k: int, lanes: int) -> None:
    size, take_apart = TAKE_APART[form.name]
    parts = take_apart(np.ascontiguousarray(rows).reshape(-1, size))
    planes, fine, coarse = _sections(form, strips, k, lanes)
    made = [] if parts.words is None else [parts.words]
    for bits, fields in zip(form.planes[len(made) :], parts.planes, strict=True):
        made.append(_plane_words(fields.reshape(-1, BLOCK), bits, form.order))
    for bits, source, words in zip(form.planes, made, planes, strict=True):
        words[...] = source.reshape(len(strips), lanes, k // BLOCK, bits).transpose(0, 2, 3, 1)
    if parts.fine is not None:
        fine[...] = parts.fine.reshape(len(strips), lanes, k // form.group, -1).transpose(0, 2, 3, 1)
    entries = np.ascontiguousarray(parts.coarse).view(np.uint16)
    coarse[...] = entries.reshape(len(strips), lanes, k // form.coarse_inputs, -1).transpose(0, 2, 3, 1)


def _plane_words(fields: Bytes, bits: int, order: list[int]) -> Words:
    """Fields of `bits` bits in bytes, uint8 [n, 32], to words, uint32 [n, bits]."""
    if bits == 1:
        places = np.array([2 * pair + odd for odd in range(2) for pair in order])
        return np.packbits(np.take(fields, places, axis=1), axis=1, bitorder="little").view(np.uint32)
    assert order == sorted(order)
    # two bytes to the halves of a word, then pair by pair with shifts
    pairs = np.ascontiguousarray(fields).view(np.uint16).astype(np.uint32)
    pairs |= pairs << np.uint32(8)
    pairs &= np.uint32(0x00FF00FF)
    slots = 16 // bits
    pairs = pairs.reshape(-1, bits, slots)
    words = pairs[..., 0].copy()
    for slot in range(1, slots):
        words |= pairs[..., slot] << np.uint32(slot * bits)
    return words


def _sections(form: Format, strips: Bytes, k: int, lanes: int) -> tuple[list[Words], Bytes, NDArray[np.uint16]]:
    """Views of strips: planes [strip, block, word, lane], fine [strip, group, entry, lane], coarse [strip, super, entry, lane]."""
    count, supers = len(strips), k // form.coarse_inputs
    starts = np.cumsum([0, *form.sections(k, lanes)])
    shapes = [(count, k // BLOCK, bits, lanes) for bits in form.planes]
    planes = [
        strips[:, start:end].view(np.uint32).reshape(shape)
        for start, end, shape in zip(starts, starts[1:], shapes, strict=False)
    ]
    fine_bytes = k // form.group * form.group_entries * lanes
    coarse_bytes = supers * form.coarse_entries * lanes * 2
    fine = strips[:, starts[-3] : starts[-3] + fine_bytes].reshape(count, k // form.group, form.group_entries, lanes)
    coarse = strips[:, starts[-2] : starts[-2] + coarse_bytes].view(np.uint16)
    return planes, fine, coarse.reshape(count, supers, form.coarse_entries, lanes)


def unpack(packed: Packed) -> NDArray[np.float32]:
    """The matrix as float32 [n, k], with the bits that the `gguf` package gives for the file's blocks."""
    form, lanes, k = packed.format, packed.lanes, packed.k
    strips = packed.data.reshape(packed.strips, -1)
    values = _unpack_floats(form, strips, k, lanes) if isinstance(form, FloatFormat) else _unpack_quants(form, strips, k, lanes)
    return values.reshape(-1, k)[: packed.n]


def _unpack_floats(form: FloatFormat, strips: Bytes, k: int, lanes: int) -> NDArray[np.float32]:
    raw = np.ascontiguousarray(strips[:, : k * lanes * form.element_bytes])
    if form.name == "BF16":
        values = (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        values = raw.view(np.float16 if form.name == "F16" else np.float32).astype(np.float32)
    return np.ascontiguousarray(values.reshape(-1, k, lanes).transpose(0, 2, 1))


def _unpack_quants(form: Format, strips: Bytes, k: int, lanes: int) -> NDArray[np.float32]:
    planes, fine, coarse = _sections(form, strips, k, lanes)
    quants = np.zeros((len(strips), lanes, k // BLOCK, BLOCK), np.int32)
    shift = 0
    for bits, words in zip(form.planes, planes, strict=True):
        shifts = np.arange(0, 16, bits, dtype=np.uint32)[:, None] + np.array([0, 16], np.uint32)
        fields = (words.transpose(0, 3, 1, 2)[..., None, None] >> shifts) & np.uint32((1 << bits) - 1)
        quants |= fields.reshape(quants.shape).astype(np.int32) << shift
        shift += bits
    quants = quants.reshape(len(strips), lanes, -1, BLOCK // 2, 2)[:, :, :, np.argsort(form.order)]
    groups = k // form.group
    scales = coarse.view(np.float16).astype(np.float32).repeat(groups // coarse.shape[1], axis=1)
    scale, minimum = scales[:, :, 0], scales[:, :, -1]
    with np.errstate(all="ignore"):  # a file may hold infinite scales
        if form.fine is not Fine.NONE:
            fine_scale, fine_minimum = _fine_values(form, fine)
            scale, minimum = scale * fine_scale, -(minimum * fine_minimum)
        by_group = (quants - form.offset).reshape(len(strips), lanes, groups, form.group).astype(np.float32)
        values = scale.transpose(0, 2, 1)[..., None] * by_group
        return values + minimum.transpose(0, 2, 1)[..., None] if form.minimum else values


def _fine_values(form: Format, fine: Bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    scale, minimum = fine[:, :, 0], fine[:, :, -1]
    if form.fine is Fine.NIBBLES:
        scale, minimum = scale & np.uint8(15), minimum >> np.uint8(4)
    if form.fine is Fine.SIGNED:
        return scale.view(np.int8).astype(np.float32), minimum.astype(np.float32)
    return scale.astype(np.float32), minimum.astype(np.float32)
