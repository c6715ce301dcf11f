"""The tensors of a BERT, as float32 in torch: every one that is needed with its shape, whatever its type in the file."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence

import numpy as np
import torch

from tripower.backends.embedded.shape import EncoderShape
from tripower.backends.safetensors.documents import refuse
from tripower.backends.safetensors.header import StoredTensor
from tripower.backends.safetensors.shards import Shard
from tripower.backends.safetensors.views import TYPES, widened

Weights = Mapping[str, torch.Tensor]
PREFIXES = ("", "bert.")
"""What names begin with, by the class that a checkpoint was saved from."""
FLOAT_BYTES = 4


def wanted(shape: EncoderShape) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that is computed with. The pooler and the stored positions are not."""
    width, inner = shape.width, shape.inner
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (shape.vocabulary, width),
        "embeddings.position_embeddings.weight": (shape.positions, width),
        "embeddings.token_type_embeddings.weight": (shape.types, width),
    } | _pair("embeddings.LayerNorm", (width,), width)
    for layer in range(shape.layers):
        prefix = f"encoder.layer.{layer}."
        for part in ("query", "key", "value"):
            found |= _pair(f"{prefix}attention.self.{part}", (width, width), width)
        found |= _pair(f"{prefix}attention.output.dense", (width, width), width)
        found |= _pair(f"{prefix}attention.output.LayerNorm", (width,), width)
        found |= _pair(f"{prefix}intermediate.dense", (inner, width), inner)
        found |= _pair(f"{prefix}output.dense", (width, inner), width)
        found |= _pair(f"{prefix}output.LayerNorm", (width,), width)
    return found


def elements(shape: EncoderShape) -> int:
    """Of all of them together."""
    return sum(int(np.prod(each, dtype=np.int64)) for each in wanted(shape).values())


def find_weights(shards: Sequence[Shard], shape: EncoderShape) -> dict[str, tuple[Shard, StoredTensor]]:
    """Where each lies, by the name of `wanted`. Raises `ModelRefused`: `missing_tensor`, `bad_shape`, `unsupported_tensor_type`."""
    places = {tensor.name: (shard, tensor) for shard in shards for tensor in shard.tensors.values()}
    found = {}
    for name, expected in wanted(shape).items():
        stored = next((prefix + name for prefix in PREFIXES if prefix + name in places), None)
        if stored is None:
            raise refuse("missing_tensor", name, "the checkpoint does not have it")
        _, tensor = found[name] = places[stored]
        if tensor.shape != expected:
            raise refuse("bad_shape", f"tensor {stored}", f"has the shape {list(tensor.shape)}, expected {list(expected)}")
        if tensor.dtype not in TYPES:
            raise refuse("unsupported_tensor_type", f"tensor {stored}", f"has the type {tensor.dtype}")
    return found


def read_weights(
    places: Mapping[str, tuple[Shard, StoredTensor]], progress: Callable[[float], None]
) -> Generator[None, None, Weights]:
    """Read and widen them, a boundary after each. Nothing of the file is kept. Raises `ModelRefused` (`source_changed`)."""
    weights: dict[str, torch.Tensor] = {}
    for done, (name, (shard, tensor)) in enumerate(places.items(), start=1):
        stored = np.empty(tensor.nbytes, np.uint8)
        shard.read_into(tensor, stored)
        weights[name] = torch.from_numpy(widened(tensor.dtype, stored).reshape(tensor.shape))
        progress(done / len(places))
        yield
    return weights


def _pair(name: str, shape: tuple[int, ...], bias: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": (bias,)}
