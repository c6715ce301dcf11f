"""The decoder that a family is a variation of: pre-norms, SiLU, one RoPE, and a window in the layers that the file names.

Shape, vocabulary and attention are read here, for every family alike. Sizes are checked again against the tensors (`weights`).
"""

from __future__ import annotations

from typing import Literal

from tripower.backends.gguf.metadata import Metadata, get_float, get_int, require_float, require_int
from tripower.backends.model_file import ModelFile
from tripower.backends.picolm.architectures.fields import (
    SCALE_MAX,
    WIDTH_MAX,
    bad_value,
    read_windows,
    refuse_what_changes_the_result,
    unsupported,
)
from tripower.backends.picolm.architectures.rope import read_rope
from tripower.backends.picolm.decoder import EMBEDDING, Decoder

LAYERS_MAX = 1_024
HEADS_MAX = 4_096
HEAD_SIZE_MAX = 4_096


def read_plain(file: ModelFile, name: str, *, rope_pairs: Literal["adjacent", "halves"]) -> Decoder:
    """Raises `ModelRefused` naming the key. A family replaces what it has otherwise."""
    metadata = file.metadata
    refuse_what_changes_the_result(metadata, name)
    layers = require_int(metadata, f"{name}.block_count", 1, LAYERS_MAX)
    width = require_int(metadata, f"{name}.embedding_length", 1, WIDTH_MAX)
    heads, kv_heads, head_size = _read_heads(metadata, name, width)
    return Decoder(
        architecture=name,
        vocabulary_size=_vocabulary_size(file, name),
        context_trained=require_int(metadata, f"{name}.context_length", 1),
        layers=layers,
        width=width,
        feed_forward=require_int(metadata, f"{name}.feed_forward_length", 1, WIDTH_MAX),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        norm_epsilon=require_float(metadata, f"{name}.attention.layer_norm_rms_epsilon", 1e-12, 1.0),
        attention_scale=read_attention_scale(metadata, name, head_size),
        activation="silu",
        rope_pairs=rope_pairs,
        ropes=(read_rope(metadata, name, head_size),),
        layer_rope=(0,) * layers,
        windows=read_windows(metadata, name, layers),
    )


def read_attention_scale(metadata: Metadata, name: str, elements: float) -> float:
    """The scale of attention as stated, else, or where zero is stated, one over the root of `elements`."""
    return get_float(metadata, f"{name}.attention.scale", 0.0, 0.0, SCALE_MAX) or elements**-0.5


def _read_heads(metadata: Metadata, name: str, width: int) -> tuple[int, int, int]:
    """Query heads, kv heads, elements of a head."""
    heads = require_int(metadata, f"{name}.attention.head_count", 1, HEADS_MAX)
    kv_heads = get_int(metadata, f"{name}.attention.head_count_kv", heads, 1, HEADS_MAX)
    if heads % kv_heads:
        key = f"{name}.attention.head_count_kv"
        raise bad_value(key, f"{key} is {kv_heads}, which does not divide the {heads} heads")
    key = f"{name}.attention.key_length"
    if key not in metadata and width % heads:
        raise bad_value(key, f"{key} is missing and {width} elements do not divide into {heads} heads")
    head_size = get_int(metadata, key, width // heads or 1, 2, HEAD_SIZE_MAX)
    if head_size % 2:
        raise bad_value(key, f"{key} gives heads of {head_size} elements, which is odd")
    for other in ("attention.value_length", "attention.key_length_swa", "attention.value_length_swa"):
        key = f"{name}.{other}"
        if get_int(metadata, key, head_size, 1, HEAD_SIZE_MAX) != head_size:
            raise unsupported(key, f"{key} is not the {head_size} elements of a key: heads of several sizes are not supported")
    return heads, kv_heads, head_size


def _vocabulary_size(file: ModelFile, name: str) -> int:
    """Rows of the embedding; what the file says elsewhere must agree."""
    size = file.tensor(EMBEDDING).shape[0]
    key = f"{name}.vocab_size"
    stated = {key: get_int(file.metadata, key, size)}
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, tuple):
        stated["tokenizer.ggml.tokens"] = len(tokens)
    for key, count in stated.items():
        if count != size:
            raise bad_value(key, f"{key} says {count} tokens where {EMBEDDING} has {size} rows")
    return size
