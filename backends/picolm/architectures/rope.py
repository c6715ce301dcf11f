"""How a file states its RoPE: dimensions, base, and a scaling by type (`none`, `linear`, `yarn`).

Llama 3's scaling has no type of its own: its factors are the tensor `rope_freqs.weight`.

llama.cpp multiplies cosines and sines by `attn_factor` whatever the type, and with YaRN also by `1 + 0.1 ln(factor)`, in two places
that cancel and restore parts of it; the product is what counts here. `yarn_log_multiplier` and `yarn_attn_factor` belong to other
families and are refused.
"""

from __future__ import annotations

import math

from tripower.backends.gguf.metadata import Metadata, get_float, get_int, get_string
from tripower.backends.picolm.architectures.fields import SCALE_MAX, SCALE_MIN, bad_value, unsupported
from tripower.backends.picolm.decoder import RopeShape

ROPE_BASE_DEFAULT = 10_000.0
ROPE_BASE_MAX = 1e12
POSITIONS_MAX = 2**31 - 1
YARN_AMPLITUDE = 0.1
"""Of the logarithm of the factor (Peng et al., 2023, equation 22)."""


def read_rope(metadata: Metadata, name: str, head_size: int) -> RopeShape:
    """The RoPE of layers without a window, and of those with one unless the family says otherwise. Raises `ModelRefused`."""
    key = f"{name}.rope.scaling.type"
    scaling = get_string(metadata, key, "linear")  # without a type a factor means linear scaling
    if scaling not in ("none", "linear", "yarn"):
        raise unsupported(key, f"the RoPE scaling {scaling!r} is not supported")
    factor = 1.0 if scaling == "none" else _read_factor(metadata, name)
    shape = RopeShape(
        dimensions=_read_dimensions(metadata, name, head_size),
        base=read_rope_base(metadata, f"{name}.rope.freq_base", ROPE_BASE_DEFAULT),
        scale=1.0 / factor,
        amplitude=read_amplitude(metadata, name),
    )
    return _with_yarn(shape, metadata, name) if scaling == "yarn" else shape


def read_rope_base(metadata: Metadata, key: str, default: float) -> float:
    """A base of frequencies. One is refused: every pair would turn alike."""
    return get_float(metadata, key, default, math.nextafter(1.0, 2.0), ROPE_BASE_MAX)


def read_amplitude(metadata: Metadata, name: str) -> float:
    """What cosines and sines are multiplied with in every layer, before YaRN has its say."""
    return get_float(metadata, f"{name}.rope.scaling.attn_factor", 1.0, SCALE_MIN, SCALE_MAX)


def _read_dimensions(metadata: Metadata, name: str, head_size: int) -> int:
    key = f"{name}.rope.dimension_count"
    dimensions = get_int(metadata, key, head_size, 2, head_size)
    if dimensions % 2:
        raise bad_value(key, f"{key} is {dimensions}, which is odd")
    key = f"{name}.rope.dimension_count_swa"
    if get_int(metadata, key, dimensions) != dimensions:
        raise unsupported(key, "layers that turn different numbers of elements are not supported")
    return dimensions


def _read_factor(metadata: Metadata, name: str) -> float:
    """What positions are divided by."""
    old = get_float(metadata, f"{name}.rope.scale_linear", 1.0, SCALE_MIN, SCALE_MAX)
    return get_float(metadata, f"{name}.rope.scaling.factor", old, SCALE_MIN, SCALE_MAX)


def _with_yarn(shape: RopeShape, metadata: Metadata, name: str) -> RopeShape:
    for other, neutral in (("yarn_log_multiplier", 0.0), ("yarn_attn_factor", 1.0)):
        key = f"{name}.rope.scaling.{other}"
        if get_float(metadata, key, neutral) != neutral:
            raise unsupported(key, f"{key} is not supported")
    context = get_int(metadata, f"{name}.context_length", 1, 1)
    extrapolation = get_float(metadata, f"{name}.rope.scaling.yarn_ext_factor", 1.0, 0.0, 1.0)
    growth = 1.0 + YARN_AMPLITUDE * math.log(max(1.0, 1.0 / shape.scale)) if extrapolation else 1.0
    return RopeShape(
        dimensions=shape.dimensions,
        base=shape.base,
        scale=shape.scale,
        amplitude=shape.amplitude * growth,
        extrapolation=extrapolation,
        context_original=get_int(metadata, f"{name}.rope.scaling.original_context_length", context, 1, POSITIONS_MAX),
        beta_fast=get_float(metadata, f"{name}.rope.scaling.yarn_beta_fast", shape.beta_fast, SCALE_MIN, SCALE_MAX),
        beta_slow=get_float(metadata, f"{name}.rope.scaling.yarn_beta_slow", shape.beta_slow, SCALE_MIN, SCALE_MAX),
    )
