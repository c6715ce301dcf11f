"""GGUF metadata made from `config.json` and `generation_config.json`, for the families in `families`.

What would change the result and has no key is a refusal that names the field: a missing statement would be a different model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tripower.backends.gguf.metadata import MetadataValue
from tripower.backends.safetensors.documents import refuse
from tripower.backends.safetensors.families import Family
from tripower.backends.safetensors.fields import Fields
from tripower.backends.safetensors.rope import Rope, read_rope

LAYERS_MAX = 1_024
WIDTH_MAX = 1 << 20
HEADS_MAX = 4_096
HEAD_SIZE_MAX = 4_096
EXPERTS_MAX = 4_096
TOKENS_MAX = 1 << 20
SCALE_MAX = 1e6
NEUTRAL: tuple[tuple[str, Any], ...] = (
    ("pretraining_tp", 1),
    ("use_bidirectional_attention", False),
    ("quantization_config", {}),
)
"""Fields that change the result unless they have this value."""


def read_config(config: Fields, family: Family) -> tuple[dict[str, MetadataValue], Rope]:
    """Metadata of the model's shape, and its RoPE. Raises `ModelRefused` naming the field."""
    for name, neutral in NEUTRAL:
        if config.values.get(name, neutral) != neutral:
            raise config.unsupported(name, "is not supported")
    layers = config.integer("num_hidden_layers", 1, LAYERS_MAX)
    head_size = read_head_size(config)
    _check_activation(config, family)
    rope = read_rope(config, family, head_size)
    keys: dict[str, MetadataValue] = {
        "vocab_size": config.integer("vocab_size", 1, TOKENS_MAX),
        "context_length": config.integer("max_position_embeddings", 1),
        "block_count": layers,
        "embedding_length": config.integer("hidden_size", 1, WIDTH_MAX),
        "feed_forward_length": config.integer("intermediate_size", 1, WIDTH_MAX),
        "attention.head_count": read_heads(config),
        "attention.head_count_kv": read_kv_heads(config),
        "attention.key_length": head_size,
        "attention.value_length": head_size,
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps", 1e-12, 1.0),
    }
    keys |= {f"rope.{key}": value for key, value in rope.keys.items()}
    keys |= _window_keys(config, family, layers) | _gemma_keys(config, family) | _expert_keys(config, family)
    named = {f"{family.architecture}.{key}": value for key, value in keys.items()}
    return {"general.architecture": family.architecture, **named}, rope


def read_heads(config: Fields) -> int:
    """Query heads."""
    return config.integer("num_attention_heads", 1, HEADS_MAX)


def read_kv_heads(config: Fields) -> int:
    """Key and value heads."""
    return config.integer("num_key_value_heads", 1, HEADS_MAX, default=read_heads(config))


def read_head_size(config: Fields) -> int:
    """Elements of a head, an even number."""
    width, heads = config.integer("hidden_size", 1, WIDTH_MAX), read_heads(config)
    size = config.integer("head_dim", 2, HEAD_SIZE_MAX, default=max(1, width // heads))
    if size % 2:
        raise refuse("bad_value", config.field("head_dim"), f"is {size}, which is odd")
    return size


def read_experts(config: Fields) -> int:
    """Experts of a layer; configurations have two names for it."""
    name = "num_experts" if "num_experts" in config else "num_local_experts"
    return config.integer(name, 1, EXPERTS_MAX)


def read_sampling(generation: Fields) -> dict[str, MetadataValue]:
    """`general.sampling.*` from `generation_config.json`: what it states, greedy decoding if it says so, else nothing."""
    keys: dict[str, MetadataValue] = {}
    for name, key, minimum, maximum in (
        ("temperature", "temp", 0.0, 100.0),
        ("top_p", "top_p", 0.0, 1.0),
        ("min_p", "min_p", 0.0, 1.0),
        ("repetition_penalty", "penalty_repeat", 0.01, 100.0),
    ):
        if name in generation:
            keys[key] = generation.number(name, minimum, maximum)
    if "top_k" in generation:
        keys["top_k"] = generation.integer("top_k")
    if not generation.flag("do_sample", default=True):
        keys["temp"] = 0.0
    return {f"general.sampling.{key}": value for key, value in keys.items()}


def _check_activation(config: Fields, family: Family) -> None:
    name = "hidden_activation" if "hidden_activation" in config else "hidden_act"
    if config.text(name, default=family.activation) != family.activation:
        raise config.unsupported(name, f"is not {family.activation!r}, which this family is computed with")


def _window_keys(config: Fields, family: Family, layers: int) -> dict[str, MetadataValue]:
    """The window and the layers that have it; nothing where no layer has one."""
    listed = _listed(config, layers)
    takes_lists = family.windows in ("listed", "upper")
    if not takes_lists and listed is not None and listed.any():
        raise config.unsupported("layer_types", "layers with and without a window are not supported for this family")
    if not _has_windows(config, family):
        return {}
    slides = listed if takes_lists and listed is not None else _usual(config, family, layers)
    if not slides.any():
        return {}
    window = config.integer("sliding_window", 1, default=family.window)
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": slides}


def _has_windows(config: Fields, family: Family) -> bool:
    if family.windows == "none":
        return False
    if family.architecture.startswith("qwen"):
        return config.flag("use_sliding_window", default=False)
    return bool(family.window or "sliding_window" in config) and "sliding_window" not in config.nulls


def _listed(config: Fields, layers: int) -> NDArray[np.bool_] | None:
    """Which layers have a window according to a list of kinds; None where there is no list."""
    stated, field = config.values.get("layer_types"), config.field("layer_types")
    if stated is None:
        return None
    if not isinstance(stated, list) or not all(isinstance(kind, str) for kind in stated):
        raise refuse("bad_type", field, "is not a list of strings")
    if len(stated) != layers:
        raise refuse("bad_value", field, f"has {len(stated)} items, expected {layers}")
    if unknown := set(stated) - {"sliding_attention", "full_attention"}:
        raise config.unsupported("layer_types", f"has the kind {min(unknown)[:40]!r}, which is not supported")
    return np.array([kind == "sliding_attention" for kind in stated])


def _usual(config: Fields, family: Family, layers: int) -> NDArray[np.bool_]:
    """Which layers have a window where they are not listed."""
    match family.windows:
        case "upper":
            first = config.integer("max_window_layers", default=28)
        case "listed":
            name = "sliding_window_pattern" if "sliding_window_pattern" in config else "_sliding_window_pattern"
            period = config.integer(name, 1, default=family.window_period)
            return np.array([layer % period < period - 1 for layer in range(layers)])
        case _:
            first = 0
    return np.array([layer >= first for layer in range(layers)])


def _gemma_keys(config: Fields, family: Family) -> dict[str, MetadataValue]:
    """Soft-caps, where `null` means none, and the scale of attention."""
    if not family.architecture.startswith("gemma"):
        return {}
    scalar = config.number("query_pre_attn_scalar", 1e-6, SCALE_MAX, default=256.0)
    scores, logits = (_softcap(config, name, family) for name in ("attn_logit_softcapping", "final_logit_softcapping"))
    keys: dict[str, MetadataValue] = {"attention.scale": scalar**-0.5, "final_logit_softcapping": logits}
    if family.architecture == "gemma2":
        keys["attn_logit_softcapping"] = scores
    elif scores:
        raise config.unsupported("attn_logit_softcapping", "is not supported for this family")
    return keys


def _softcap(config: Fields, name: str, family: Family) -> float:
    default = 0.0 if name in config.nulls else family.softcaps.get(name, 0.0)
    return config.number(name, 0.0, SCALE_MAX, default=default)


def _expert_keys(config: Fields, family: Family) -> dict[str, MetadataValue]:
    if not family.experts:
        return {}
    experts = read_experts(config)
    keys: dict[str, MetadataValue] = {
        "expert_count": experts,
        "expert_used_count": config.integer("num_experts_per_tok", 1, experts),
    }
    if family.architecture == "qwen3moe":
        keys["expert_feed_forward_length"] = config.integer("moe_intermediate_size", 1, WIDTH_MAX)
        keys["expert_weights_norm"] = config.flag("norm_topk_prob", default=False)
        if config.integer("decoder_sparse_step", default=1) != 1 or config.values.get("mlp_only_layers"):
            raise config.unsupported("mlp_only_layers", "layers without experts between layers with them are not supported")
    return keys
