"""Whole tiny models in generated code against the same weights in torch, float32: every architecture and every type of weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backends.native.engine.rigs import divergence, relative_difference, tokens_of
from tripower.backends.picolm.architectures import ARCHITECTURES
from tripower.backends.picolm.native.kernels.weights.formats import FORMATS

POSITIONS = 80
"""More than a page, and than a window."""
FLOAT_MAX = 2e-5
"""The largest difference of two logits over the largest logit, where both sides compute in float32: another order of sums."""
QUANTISED_MAX = 1e-3
"""The same where generated code rounds activations to 16 bits."""
HALF_STATES_MAX = 1e-2
"""The same where it keeps states in float16."""
DIVERGENCE_MAX = 1e-5
"""Of a position's distribution over tokens, in nats, on average."""

YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
WIDE: dict[str, Any] = {"width": 256, "head_size": 64, "feed_forward": 256}
"""For types with blocks of 256."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases and an own head": ("llama", {"biases": True, "tied": False}),
    "llama with one kv head": ("llama", {"kv_heads": 1}),
    "llama with rope factors": ("llama", {"rope_factors": True, "kv_heads": 4}),
    "llama with experts": ("llama", {"experts": 4}),
    "llama that turns half of each head": ("llama", {"head_size": 16, "keys": {"rope.dimension_count": 8}}),
    "llama with many heads for one": ("llama", {"heads": 16, "kv_heads": 1}),
    "llama with linear rope scaling": ("llama", {"keys": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}}),
    "llama with a window": ("llama", {"keys": {"attention.sliding_window": 8}}),
    "qwen2": ("qwen2", {"biases": ("attn_q", "attn_k", "attn_v")}),
    "qwen3": ("qwen3", {"head_size": 16}),
    "qwen3 with yarn": ("qwen3", {"head_size": 32, "keys": YARN}),
    "qwen3moe": ("qwen3moe", {"experts": 8, "experts_used": 3}),
    "gemma2": ("gemma2", {"layers": 4}),
    "gemma2 with low soft-caps": (
        "gemma2",
        {"layers": 4, "keys": {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}},
    ),
    "gemma3": ("gemma3", {"layers": 7}),
    "gemma3 that turns half of each head": ("gemma3", {"layers": 6, "keys": {"rope.dimension_count": 4}}),
}
MIXED = {"attn_q": "F16", "attn_output": "Q4_0", "ffn_down": "BF16", "ffn": "Q5_1", "token_embd": "Q8_0"}


def compared(path: Any, load_native: Any, load_torch: Any, **options: Any) -> tuple[float, float]:
    """Relative difference and mean divergence of the logits of a prompt in pieces."""
    ids, found = tokens_of(1, POSITIONS), []
    for engine in (load_native(path, **options), load_torch(path)):
        engine.open_sequence(0)
        found.append(np.concatenate([engine.logits(0, piece) for piece in (ids[:3], ids[3:4], ids[4:60], ids[60:])]))
    return relative_difference(*found), divergence(*found)


def test_every_architecture_has_a_variant() -> None:
    assert {architecture for architecture, _ in VARIANTS.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_architecture_gives_the_logits_of_the_reference(
    variant: str, kind: str, tiny_model: Any, load_native: Any, load_torch: Any
) -> None:
    architecture, options = VARIANTS[variant]
    keys = {f"{architecture}.{key}": value for key, value in options.get("keys", {}).items()}
    shape = {name: value for name, value in options.items() if name != "keys"}
    path = tiny_model(architecture, metadata=keys, kind=kind, **shape)
    difference, divergent = compared(path, load_native, load_torch)
    assert difference < (FLOAT_MAX if kind == "F32" else QUANTISED_MAX)
    assert divergent < DIVERGENCE_MAX


def test_sizes_need_not_be_multiples_of_a_vector(tiny_model: Any, load_native: Any, load_torch: Any) -> None:
    sizes = {"width": 44, "heads": 3, "kv_heads": 1, "head_size": 24, "feed_forward": 75, "vocabulary": 97}
    difference, divergent = compared(tiny_model("llama", tied=False, **sizes), load_native, load_torch)
    assert difference < FLOAT_MAX and divergent < DIVERGENCE_MAX


@pytest.mark.parametrize("kind", FORMATS)
def test_a_type_of_weights_gives_the_logits_of_the_reference(
    kind: str, tiny_model: Any, load_native: Any, load_torch: Any
) -> None:
    difference, divergent = compared(tiny_model("llama", kind=kind, **WIDE), load_native, load_torch)
    assert difference < (FLOAT_MAX if kind in ("F32", "F16", "BF16") else QUANTISED_MAX)
    assert divergent < DIVERGENCE_MAX


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_types_may_differ_from_matrix_to_matrix(architecture: str, tiny_model: Any, load_native: Any, load_torch: Any) -> None:
    difference, divergent = compared(tiny_model(architecture, kind=MIXED), load_native, load_torch)
    assert difference < QUANTISED_MAX and divergent < DIVERGENCE_MAX


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_states_in_float16_cost_little(architecture: str, tiny_model: Any, load_native: Any, load_torch: Any) -> None:
    path = tiny_model(architecture, kind="Q8_0", layers=4)
    difference, _ = compared(path, load_native, load_torch, kv_type="f16")
    assert FLOAT_MAX < difference < HALF_STATES_MAX
