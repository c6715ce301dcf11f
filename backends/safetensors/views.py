"""Tensors of a checkpoint as a GGUF conversion would have them: which stored tensors each is made of, and what happens to them.

Nothing is read here. A conversion is a few numpy operations on one tensor's bytes, done when that tensor is asked for:

1. Rows of queries and keys, where RoPE turns adjacent pairs in GGUF: rows 0, n, 1, n + 1, … of a head become 0, 1, 2, 3, …
2. Everything with one dimension (norms, biases) becomes float32, as in converted files; Gemma's norms get the one they lack.
3. The experts' matrices are stacked, slowest dimension first.
4. Factors of RoPE frequencies are a tensor of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tripower.backends.gguf.layout import DIMENSIONS_MAX, TensorInfo
from tripower.backends.safetensors.documents import refuse
from tripower.backends.safetensors.families import EMBEDDING, HEAD, OUTSIDE_LAYERS, Family
from tripower.backends.safetensors.header import StoredTensor

Bytes = NDArray[np.uint8]

TYPES = {"F32": (0, 4), "F16": (1, 2), "BF16": (30, 2)}
"""Types that are understood, with GGUF's id and the bytes of an element."""
ROPE_FACTORS = "rope_freqs.weight"
_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,4})\.(.+)\.(weight|bias)")
_EXPERT = re.compile(r"(0|[1-9][0-9]{0,4})\.(.+)")
_IGNORED = re.compile(r"model\.layers\.[0-9]+\.self_attn\.rotary_emb\.inv_freq")
"""Frequencies that old checkpoints store although they follow from the configuration."""


class View(msgspec.Struct, frozen=True):
    """A tensor as it is shown: its bytes are those of `parts`, one behind the other and converted, or they are `made`."""

    info: TensorInfo
    parts: tuple[StoredTensor, ...] = ()
    turned_heads: int = 0
    """Heads whose rows get another order."""
    plus_one: bool = False
    made: Bytes | None = None

    @property
    def is_converted(self) -> bool:
        """Whether its bytes are others than the file's."""
        return len(self.parts) != 1 or self.parts[0].dtype != self.info.type_name or self.plus_one or self.turned_heads > 0

    def convert(self, stored: Bytes) -> Bytes:
        """From the bytes of its parts, uint8, to its own, uint8 [nbytes]."""
        if self.info.type_name != self.parts[0].dtype or self.plus_one:
            values = widened(self.parts[0].dtype, stored)
            stored = (values + np.float32(1.0) if self.plus_one else values).view(np.uint8)
        if self.turned_heads:
            half = self.info.shape[0] // self.turned_heads // 2
            stored = stored.reshape(self.turned_heads, 2, half, -1).swapaxes(1, 2).reshape(-1)
        return stored


class Attention(msgspec.Struct, frozen=True):
    """What the order of rows depends on."""

    heads: int
    kv_heads: int
    head_size: int


def plan_views(
    stored: Mapping[str, StoredTensor], family: Family, attention: Attention, *, experts: int, tied: bool
) -> dict[str, View]:
    """Every tensor by its GGUF name.

    Raises `ModelRefused`, naming the tensor as the checkpoint does: `unknown_tensor`, `unsupported_tensor_type`, `bad_shape`,
    `missing_tensor`. Whether the list is complete for its family is the engine's question.
    """
    views: dict[str, View] = {}
    stacks: dict[str, dict[int, StoredTensor]] = {}
    for tensor in stored.values():
        if _IGNORED.fullmatch(tensor.name) or (tied and tensor.name == HEAD):
            continue
        place = _expert_place(tensor.name, family)
        if place is None:
            name = _gguf_name(tensor.name, family)
            views[name] = _single(name, tensor, family, attention)
        else:
            name, number = place
            stacks.setdefault(name, {})[number] = tensor
    for needed in (EMBEDDING,) if tied else (EMBEDDING, HEAD):
        if needed not in stored:
            raise refuse("missing_tensor", needed, "the checkpoint does not have it")
    return views | {name: _stack(name, found, experts) for name, found in stacks.items()}


def factors_view(factors: NDArray[np.float32]) -> View:
    """The tensor of RoPE factors."""
    return View(_info(ROPE_FACTORS, "F32", factors.shape, 0), made=factors.astype("<f4").view(np.uint8))


def _gguf_name(name: str, family: Family) -> str:
    if name in OUTSIDE_LAYERS:
        return OUTSIDE_LAYERS[name]
    if (found := _LAYER.fullmatch(name)) and found[2] in family.layer:
        return f"blk.{found[1]}.{family.layer[found[2]]}.{found[3]}"
    raise refuse("unknown_tensor", f"tensor {name}", f"is not part of a {family.class_name} as it is known here")


def _expert_place(name: str, family: Family) -> tuple[str, int] | None:
    """The stack that an expert's tensor belongs to, and its place there."""
    found = _LAYER.fullmatch(name)
    if not found or not family.experts or not found[2].startswith(f"{family.experts_in}."):
        return None
    inside = _EXPERT.fullmatch(found[2], len(family.experts_in) + 1)
    if not inside or inside[2] not in family.experts:
        return None
    return f"blk.{found[1]}.{family.experts[inside[2]]}.{found[3]}", int(inside[1])


def _single(name: str, tensor: StoredTensor, family: Family, attention: Attention) -> View:
    _check(tensor)
    flat = len(tensor.shape) == 1
    heads = _turned_heads(name, attention) if family.adjacent_pairs else 0
    if heads and tensor.shape[0] != heads * attention.head_size:
        raise refuse(
            "bad_shape", f"tensor {tensor.name}", f"has {tensor.shape[0]} rows, expected {heads} heads of {attention.head_size}"
        )
    return View(
        _info(name, "F32" if flat else tensor.dtype, tensor.shape, tensor.offset),
        (tensor,),
        turned_heads=heads,
        plus_one=flat and family.norms_plus_one and name.endswith("norm.weight"),
    )


def _turned_heads(name: str, attention: Attention) -> int:
    """How many heads a projection's rows are turned in; 0 for what is not turned."""
    if not name.startswith("blk."):
        return 0
    part = name.split(".")[2]
    return {"attn_q": attention.heads, "attn_k": attention.kv_heads}.get(part, 0)


def _stack(name: str, found: Mapping[int, StoredTensor], experts: int) -> View:
    some = next(iter(found.values()))
    missing = next((number for number in range(experts) if number not in found), None)
    if missing is not None:
        raise refuse("missing_tensor", f"tensor {some.name}", f"expert {missing} of {experts} is missing beside it")
    if len(found) != experts:
        raise refuse("unknown_tensor", f"tensor {found[max(found)].name}", f"there are {experts} experts")
    parts = tuple(found[number] for number in range(experts))
    for part in parts:
        _check(part)
        if (part.shape, part.dtype) != (parts[0].shape, parts[0].dtype):
            raise refuse("bad_shape", f"tensor {part.name}", "has another shape or type than the first expert's")
    return View(_info(name, parts[0].dtype, (experts, *parts[0].shape), parts[0].offset), parts)


def _check(tensor: StoredTensor) -> None:
    field = f"tensor {tensor.name}"
    if tensor.dtype not in TYPES:
        raise refuse("unsupported_tensor_type", field, f"has the type {tensor.dtype}; supported are {', '.join(TYPES)}")
    if not 1 <= len(tensor.shape) <= DIMENSIONS_MAX or 0 in tensor.shape:
        raise refuse("bad_shape", field, f"has the shape {list(tensor.shape)}")


def _info(name: str, type_name: str, shape: Sequence[int], offset: int) -> TensorInfo:
    identifier, element_bytes = TYPES[type_name]
    nbytes = math.prod(shape) * element_bytes
    return TensorInfo(name, tuple(shape), type_name, identifier, offset, nbytes, 1, element_bytes)


def widened(dtype: str, data: Bytes) -> NDArray[np.float32]:
    """The values of F32, F16 or BF16 bytes as float32."""
    match dtype:
        case "F32":
            return data.view("<f4")
        case "F16":
            return data.view("<f2").astype(np.float32)
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
