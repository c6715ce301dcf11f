"""Fields that some families state, and how a file is refused.

Every number is read from a named key, has a range, and is refused by that key: nothing is inferred from a model's name, and what
would change the result but is not understood (an unknown RoPE scaling, another router, scaled residuals, …) is a refusal, not a
guess. Keys and defaults are those of llama.cpp's GGUF files.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tripower.backends.gguf.metadata import Metadata, get_flag, get_float, get_int, require_int, require_ints
from tripower.backends.picolm.decoder import Decoder
from tripower.runtime.kernel.errors import ModelRefused

WIDTH_MAX = 1 << 20
EXPERTS_MAX = 4_096
SCALE_MIN, SCALE_MAX = 1e-6, 1e6

UNKNOWN_SCALES = ("logit_scale", "residual_scale", "embedding_scale", "attention.clamp_kqv", "rope.scaling.alpha")
"""Numbers that other families compute with; zero is none."""
UNKNOWN_COUNTS = ("expert_shared_count", "expert_shared_feed_forward_length", "leading_dense_block_count")
"""The same for parts that other families have."""
SOFTMAX_GATING = 1
"""What `expert_gating_func` is where the router is a softmax; 0 leaves it to the family."""


def read_softcap(metadata: Metadata, key: str, default: float) -> float:
    """A soft-cap; zero is none."""
    return get_float(metadata, key, default, 0.0, SCALE_MAX)


def read_windows(metadata: Metadata, name: str, layers: int, *, window: int = 0, period: int = 1) -> tuple[int, ...]:
    """For each layer the positions it sees, 0 for all of them.

    The window is the stated one, else `window`. Which layers have it is stated as a flag for each or as a period, of which the last
    layer sees everything; else the period is `period`. One means no window at all, and zero (never stated) one in every layer.
    """
    window = get_int(metadata, f"{name}.attention.sliding_window", window)
    key = f"{name}.attention.sliding_window_pattern"
    stated = metadata.get(key, period)
    if isinstance(stated, np.ndarray):
        flags = {key: stated.astype(np.uint8)} if stated.dtype == np.bool_ else metadata
        return tuple(window * int(flag) for flag in require_ints(flags, key, 0, 1, layers))
    period = get_int(metadata, key, period, 1)
    return tuple(window if not period or layer % period < period - 1 else 0 for layer in range(layers))


def with_experts(decoder: Decoder, metadata: Metadata, *, expert_feed_forward: int) -> Decoder:
    """The same decoder with a mixture of experts in every layer. Raises `ModelRefused` naming the key.

    `expert_weights_norm` is honoured where it is stated; llama.cpp always normalises for the families that are known here.
    """
    name = decoder.architecture
    experts = require_int(metadata, f"{name}.expert_count", 1, EXPERTS_MAX)
    return msgspec.structs.replace(
        decoder,
        feed_forward=0,
        experts=experts,
        experts_used=require_int(metadata, f"{name}.expert_used_count", 1, experts),
        expert_feed_forward=expert_feed_forward,
        expert_weights_normalised=get_flag(metadata, f"{name}.expert_weights_norm", True),
        expert_layers=(True,) * decoder.layers,
    )


def refuse_what_changes_the_result(metadata: Metadata, name: str) -> None:
    """Raise `ModelRefused` for a statement that other families compute with and none of those known here."""
    key = f"{name}.attention.causal"
    if not get_flag(metadata, key, True):
        raise unsupported(key, "only causal attention is supported")
    key = f"{name}.use_parallel_residual"
    if get_flag(metadata, key, False):
        raise unsupported(key, "parallel residuals are not supported")
    for key in (f"{name}.{scale}" for scale in UNKNOWN_SCALES):
        if get_float(metadata, key, 0.0):
            raise unsupported(key, f"{key} is not supported")
    for key in (f"{name}.{count}" for count in UNKNOWN_COUNTS):
        if get_int(metadata, key, 0):
            raise unsupported(key, f"{key} is not supported")
    key = f"{name}.expert_group_count"
    if get_int(metadata, key, 1) > 1:
        raise unsupported(key, "groups of experts are not supported")
    key = f"{name}.expert_gating_func"
    if get_int(metadata, key, 0) not in (0, SOFTMAX_GATING):
        raise unsupported(key, "only routers with a softmax are supported")
    key = f"{name}.expert_weights_scale"
    if get_float(metadata, key, 1.0) not in (0.0, 1.0):
        raise unsupported(key, "scaled weights of experts are not supported")


def bad_value(key: str, message: str) -> ModelRefused:
    """For a value that contradicts another."""
    return ModelRefused(message, code="bad_value", param=key)


def unsupported(key: str, message: str) -> ModelRefused:
    """For a value that means something which is not computed here."""
    return ModelRefused(f"{message} ({key})" if key not in message else message, code="unsupported_model", param=key)
