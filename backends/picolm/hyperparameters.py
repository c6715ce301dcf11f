"""What a model file says about its shape, checked before anything is allocated.

Every number is read from a named key, has a range, and is refused by that key: nothing is inferred from a model's name, and what
would change the result but is not understood (experts, an unknown RoPE scaling, soft-capped logits, …) is a refusal, not a guess.
Sizes are checked again against the tensors themselves (`weights`). Keys and defaults are those of llama.cpp's GGUF files.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tripower.backends.gguf.metadata import (
    Metadata,
    get_flag,
    get_float,
    get_int,
    get_string,
    require_float,
    require_int,
    require_ints,
)
from tripower.backends.gguf.reader import GgufFile
from tripower.runtime.kernel.errors import ModelRefused

EMBEDDING = "token_embd.weight"
LAYERS_MAX = 1_024
WIDTH_MAX = 1 << 20
HEADS_MAX = 4_096
HEAD_SIZE_MAX = 4_096
ROPE_BASE_DEFAULT = 10_000.0
ROPE_BASE_MAX = 1e12
SCALE_MIN, SCALE_MAX = 1e-6, 1e6
GEMMA3_SLIDING_PERIOD = 6
GEMMA3_27B_LAYERS = 62


class RopeShape(msgspec.Struct, frozen=True):
    """How positions turn queries and keys: element pair `i` by `position * scale / base ** (2 * i / dimensions)`."""

    dimensions: int
    base: float
    scale: float = 1.0


class Hyperparameters(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a decoder."""

    architecture: str
    vocabulary_size: int
    context_trained: int
    layers: int
    width: int
    """Elements of a row between the layers."""
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int
    norm_epsilon: float
    attention_scale: float
    rope: RopeShape
    windows: tuple[int, ...]
    """For each layer the positions a row sees, its own included; 0 is all of them."""
    local_rope: RopeShape | None = None
    """RoPE of the layers with a window, where it differs."""


def read_llama(file: GgufFile) -> Hyperparameters:
    """The shape of a `llama` model. Raises `ModelRefused` naming the key."""
    return _read(file, "llama")


def read_gemma3(file: GgufFile) -> Hyperparameters:
    """The shape of a `gemma3` model: five layers with a window, one without, and so on. Raises `ModelRefused` naming the key."""
    metadata = file.metadata
    common = _read(file, "gemma3")
    window = require_int(metadata, "gemma3.attention.sliding_window", 1)
    if get_float(metadata, "gemma3.final_logit_softcapping", 0.0):
        raise _unsupported("gemma3.final_logit_softcapping", "soft-capped logits are not supported")
    scale = common.attention_scale
    if common.layers == GEMMA3_27B_LAYERS:  # the one size that was trained with another scale; its files do not say so
        scale = (common.width / common.heads) ** -0.5
    return msgspec.structs.replace(
        common,
        attention_scale=scale,
        windows=tuple(window if slides else 0 for slides in _gemma3_pattern(metadata, common.layers)),
        local_rope=RopeShape(common.rope.dimensions, _rope_base(metadata, "gemma3.rope.freq_base_swa")),
    )


def _read(file: GgufFile, name: str) -> Hyperparameters:
    metadata = file.metadata
    _refuse_what_changes_the_result(metadata, name)
    layers = require_int(metadata, f"{name}.block_count", 1, LAYERS_MAX)
    width = require_int(metadata, f"{name}.embedding_length", 1, WIDTH_MAX)
    heads, kv_heads, head_size = _read_heads(metadata, name, width)
    return Hyperparameters(
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
        attention_scale=head_size**-0.5,
        rope=_read_rope(metadata, name, head_size),
        windows=(0,) * layers,
    )


def _read_heads(metadata: Metadata, name: str, width: int) -> tuple[int, int, int]:
    """Query heads, kv heads, elements of a head."""
    heads = require_int(metadata, f"{name}.attention.head_count", 1, HEADS_MAX)
    kv_heads = get_int(metadata, f"{name}.attention.head_count_kv", heads, 1, HEADS_MAX)
    if heads % kv_heads:
        key = f"{name}.attention.head_count_kv"
        raise _bad_value(key, f"{key} is {kv_heads}, which does not divide the {heads} heads")
    key = f"{name}.attention.key_length"
    if key not in metadata and width % heads:
        raise _bad_value(key, f"{key} is missing and {width} elements do not divide into {heads} heads")
    head_size = get_int(metadata, key, width // heads or 1, 2, HEAD_SIZE_MAX)
    if head_size % 2:
        raise _bad_value(key, f"{key} gives heads of {head_size} elements, which is odd")
    key = f"{name}.attention.value_length"
    if get_int(metadata, key, head_size, 1, HEAD_SIZE_MAX) != head_size:
        raise _unsupported(key, "values of another length than keys are not supported")
    return heads, kv_heads, head_size


def _read_rope(metadata: Metadata, name: str, head_size: int) -> RopeShape:
    key = f"{name}.rope.dimension_count"
    dimensions = get_int(metadata, key, head_size, 2, head_size)
    if dimensions % 2:
        raise _bad_value(key, f"{key} is {dimensions}, which is odd")
    return RopeShape(dimensions, _rope_base(metadata, f"{name}.rope.freq_base"), _rope_scale(metadata, name))


def _rope_base(metadata: Metadata, key: str) -> float:
    return get_float(metadata, key, ROPE_BASE_DEFAULT, 1.0, ROPE_BASE_MAX)


def _rope_scale(metadata: Metadata, name: str) -> float:
    """What positions are multiplied with. Without a type a factor means linear scaling."""
    key = f"{name}.rope.scaling.type"
    scaling = get_string(metadata, key, "linear")
    if scaling not in ("none", "linear"):
        raise _unsupported(key, f"the RoPE scaling {scaling!r} is not supported")
    key = f"{name}.rope.scaling.attn_factor"
    if get_float(metadata, key, 1.0) != 1.0:
        raise _unsupported(key, "scaled RoPE amplitudes are not supported")
    old = get_float(metadata, f"{name}.rope.scale_linear", 1.0, SCALE_MIN, SCALE_MAX)
    factor = get_float(metadata, f"{name}.rope.scaling.factor", old, SCALE_MIN, SCALE_MAX)
    return 1.0 if scaling == "none" else 1.0 / factor


def _gemma3_pattern(metadata: Metadata, layers: int) -> tuple[bool, ...]:
    """Which layers have a window: as stated (a period or a flag for each layer), else all but every sixth."""
    key = "gemma3.attention.sliding_window_pattern"
    stated = metadata.get(key, GEMMA3_SLIDING_PERIOD)
    if isinstance(stated, np.ndarray):
        flags = {key: stated.astype(np.uint8)} if stated.dtype == np.bool_ else metadata
        return tuple(bool(flag) for flag in require_ints(flags, key, 0, 1, layers))
    period = get_int(metadata, key, GEMMA3_SLIDING_PERIOD, 1)
    return tuple(layer % period < period - 1 for layer in range(layers))


def _vocabulary_size(file: GgufFile, name: str) -> int:
    """Rows of the embedding; what the file says elsewhere must agree."""
    size = file.tensor(EMBEDDING).shape[0]
    key = f"{name}.vocab_size"
    stated = {key: get_int(file.metadata, key, size)}
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, tuple):
        stated["tokenizer.ggml.tokens"] = len(tokens)
    for key, count in stated.items():
        if count != size:
            raise _bad_value(key, f"{key} says {count} tokens where {EMBEDDING} has {size} rows")
    return size


def _refuse_what_changes_the_result(metadata: Metadata, name: str) -> None:
    if get_int(metadata, f"{name}.expert_count", 0):
        raise _unsupported(f"{name}.expert_count", "mixtures of experts are not supported")
    if not get_flag(metadata, f"{name}.attention.causal", True):
        raise _unsupported(f"{name}.attention.causal", "only causal attention is supported")
    for name_of_scale in ("attention.scale", "logit_scale", "residual_scale", "embedding_scale"):
        key = f"{name}.{name_of_scale}"
        if get_float(metadata, key, 0.0):
            raise _unsupported(key, f"{key} is not supported")


def _bad_value(key: str, message: str) -> ModelRefused:
    return ModelRefused(message, code="bad_value", param=key)


def _unsupported(key: str, message: str) -> ModelRefused:
    return ModelRefused(f"{message} ({key})" if key not in message else message, code="unsupported_model", param=key)
