"""Rotary positions in a configuration, and what GGUF says instead.

Two spellings exist: `rope_theta` beside `rope_scaling`, and since transformers 5 one `rope_parameters`, which Gemma 3 has once
for each kind of layer. Llama 3's scaling is no type in GGUF but a tensor of factors, computed here as llama.cpp's converter
does.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from tripower.backends.gguf.metadata import MetadataValue
from tripower.backends.safetensors.families import Family
from tripower.backends.safetensors.fields import Fields

BASE_MAX = 1e12
FACTOR_MIN, FACTOR_MAX = 1e-6, 1e6
YARN_AMPLITUDE = 0.1
"""Of the logarithm of the factor (Peng et al., "YaRN", 2023, equation 22): what both sides use where nothing is stated."""
LOCAL_BASE = 10_000.0
"""Of Gemma 3's layers with a window."""


class Rope(msgspec.Struct, frozen=True):
    """Keys below `ARCHITECTURE.rope.`, and the factors of frequencies, float32 [dimensions / 2], where there are some."""

    keys: dict[str, MetadataValue]
    factors: NDArray[np.float32] | None = None


def read_rope(config: Fields, family: Family, head_size: int) -> Rope:
    """Raises `ModelRefused` naming the field; for a type of scaling that is not known here too."""
    whole = config.inner("rope_parameters")
    nested = any(isinstance(value, dict) for value in whole.values.values())
    scaling = whole.inner("full_attention") if nested else whole if whole.values else config.inner("rope_scaling")
    base = _base(scaling if "rope_theta" in scaling else config, "rope_theta", family.rope_base)
    keys: dict[str, MetadataValue] = {"dimension_count": head_size, "freq_base": base}
    if family.architecture == "gemma3":
        keys["freq_base_swa"] = _local_base(config, whole, nested, base)
    for fields in (config, scaling):
        if fields.number("partial_rotary_factor", 0.0, 1.0, default=1.0) != 1.0:
            raise fields.unsupported("partial_rotary_factor", "heads that turn in part are not supported for this family")
    kind = _kind(scaling)
    match kind:
        case "default" | "none":
            return Rope(keys)
        case "linear":
            return Rope(keys | {"scaling.type": "linear", "scaling.factor": _factor(scaling)})
        case "yarn":
            return Rope(keys | _yarn(config, scaling))
        case "llama3" if family.architecture == "llama":
            return Rope(keys, _llama3_factors(config, scaling, base, head_size))
    raise scaling.unsupported("rope_type", f"the RoPE scaling {kind!r} is not supported for this family")


def _kind(scaling: Fields) -> str:
    """The type of scaling; older files call the field `type`."""
    return scaling.text("rope_type", default=scaling.text("type", default="default"))


def _base(fields: Fields, name: str, default: float) -> float:
    return fields.number(name, math.nextafter(1.0, 2.0), BASE_MAX, default=default)


def _local_base(config: Fields, whole: Fields, nested: bool, base: float) -> float:
    if not nested:
        return _base(config, "rope_local_base_freq", LOCAL_BASE)
    local = whole.inner("sliding_attention")
    if _kind(local) != "default":
        raise local.unsupported("rope_type", "scaled positions in layers with a window are not supported")
    return _base(local, "rope_theta", base)


def _factor(scaling: Fields) -> float:
    return scaling.number("factor", FACTOR_MIN, FACTOR_MAX)


def _original_context(config: Fields, scaling: Fields) -> int:
    context = config.integer("max_position_embeddings", 1)
    stated = scaling.integer("original_max_position_embeddings", 1, default=context)
    return config.integer("original_max_position_embeddings", 1, default=stated)


def _yarn(config: Fields, scaling: Fields) -> dict[str, MetadataValue]:
    """YaRN. GGUF states the amplitude relative to the usual one."""
    if not scaling.flag("truncate", default=True):
        raise scaling.unsupported("truncate", "YaRN without rounding of its range is not supported")
    context = _original_context(config, scaling)
    ratio = config.integer("max_position_embeddings", 1) / context
    factor = scaling.number("factor", FACTOR_MIN, FACTOR_MAX, default=ratio)
    usual = _amplitude(factor)
    numerator, denominator = (scaling.number(name, 0.0, FACTOR_MAX, default=0.0) for name in ("mscale", "mscale_all_dim"))
    stated = _amplitude(factor, numerator) / _amplitude(factor, denominator) if numerator and denominator else usual
    amplitude = scaling.number("attention_factor", FACTOR_MIN, FACTOR_MAX, default=stated)
    return {
        "scaling.type": "yarn",
        "scaling.factor": factor,
        "scaling.original_context_length": context,
        "scaling.attn_factor": amplitude / usual,
        "scaling.yarn_beta_fast": scaling.number("beta_fast", FACTOR_MIN, FACTOR_MAX, default=32.0),
        "scaling.yarn_beta_slow": scaling.number("beta_slow", FACTOR_MIN, FACTOR_MAX, default=1.0),
    }


def _amplitude(factor: float, share: float = 1.0) -> float:
    return 1.0 + YARN_AMPLITUDE * share * math.log(factor) if factor > 1.0 else 1.0


def _llama3_factors(config: Fields, scaling: Fields, base: float, head_size: int) -> NDArray[np.float32]:
    """What divides each frequency: one for fast pairs, `factor` for slow ones, a smooth change of frequency between."""
    factor = _factor(scaling)
    low = scaling.number("low_freq_factor", FACTOR_MIN, FACTOR_MAX)
    high = scaling.number("high_freq_factor", FACTOR_MIN, FACTOR_MAX)
    if high <= low:
        raise scaling.unsupported("high_freq_factor", f"is {high}, not above low_freq_factor, {low}")
    turns = _original_context(config, scaling) / math.tau * base ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - share) / factor + share)).astype(np.float32)
