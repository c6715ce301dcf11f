"""What a model file says of its shape is believed only within bounds, and a refusal names the key."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.backends.gguf.reader import open_gguf
from tripower.backends.picolm.architectures import ARCHITECTURES, find_architecture
from tripower.backends.picolm.decoder import Decoder, RopeShape
from tripower.runtime.kernel.errors import ModelRefused


def read(path: Any) -> Decoder:
    with open_gguf(path) as file:
        return find_architecture(file).read_decoder(file)


HOSTILE: list[tuple[str, str, Any]] = [
    *[
        ("llama", key, value)
        for key in ("block_count", "embedding_length", "feed_forward_length", "attention.head_count", "context_length")
        for value in (0, -1, 2**31, 2**32 - 1, None, 1.0, "7", [1, 2])
    ],
    ("llama", "block_count", 100_000),
    ("llama", "attention.head_count_kv", 0),
    ("llama", "attention.head_count_kv", 3),
    ("llama", "attention.head_count_kv", [2, 2]),
    ("llama", "attention.key_length", 0),
    ("llama", "attention.key_length", 7),
    ("llama", "attention.key_length", 2**31 - 1),
    ("llama", "attention.value_length", 16),
    ("llama", "attention.layer_norm_rms_epsilon", 0.0),
    ("llama", "attention.layer_norm_rms_epsilon", -1e-5),
    ("llama", "attention.layer_norm_rms_epsilon", math.nan),
    ("llama", "attention.layer_norm_rms_epsilon", math.inf),
    ("llama", "attention.layer_norm_rms_epsilon", None),
    ("llama", "attention.causal", False),
    ("llama", "use_parallel_residual", True),
    ("llama", "attention.scale", -0.5),
    ("llama", "attention.scale", math.inf),
    ("llama", "attention.key_length_swa", 16),
    ("llama", "attention.sliding_window", -1),
    ("llama", "logit_scale", 2.0),
    ("llama", "residual_scale", 0.5),
    ("llama", "embedding_scale", 12.0),
    ("llama", "attention.clamp_kqv", 8.0),
    ("llama", "rope.dimension_count", 0),
    ("llama", "rope.dimension_count", 3),
    ("llama", "rope.dimension_count", 10),
    ("llama", "rope.freq_base", 0.0),
    ("llama", "rope.freq_base", -10_000.0),
    ("llama", "rope.freq_base", math.nan),
    ("llama", "rope.freq_base", math.inf),
    ("llama", "rope.freq_base", 1.0),
    ("llama", "rope.dimension_count_swa", 4),
    ("llama", "rope.scaling.type", "longrope"),
    ("llama", "rope.scaling.type", 3),
    ("llama", "rope.scaling.factor", 0.0),
    ("llama", "rope.scaling.factor", -2.0),
    ("llama", "rope.scaling.factor", math.nan),
    ("llama", "rope.scaling.attn_factor", 0.0),
    ("llama", "rope.scaling.attn_factor", math.nan),
    ("llama", "rope.scaling.alpha", 1000.0),
    ("llama", "vocab_size", 95),
    ("gemma3", "attention.sliding_window", -1),
    ("gemma2", "attn_logit_softcapping", -50.0),
    ("gemma2", "attn_logit_softcapping", math.nan),
    ("gemma2", "final_logit_softcapping", math.inf),
    ("qwen2", "attention.sliding_window_pattern", [True]),
    ("gemma3", "attention.sliding_window_pattern", 0),
    ("gemma3", "attention.sliding_window_pattern", [True, False, True]),
    ("gemma3", "attention.sliding_window_pattern", [2, 0]),
    ("gemma3", "rope.freq_base_swa", math.inf),
    ("gemma3", "final_logit_softcapping", -30.0),
]
HOSTILE_YARN: list[tuple[str, Any]] = [
    ("factor", 0.0),
    ("factor", math.inf),
    ("original_context_length", 0),
    ("original_context_length", 64.0),
    ("yarn_ext_factor", -1.0),
    ("yarn_ext_factor", 1.5),
    ("yarn_beta_fast", 0.0),
    ("yarn_beta_slow", -1.0),
    ("yarn_log_multiplier", 0.1),
    ("yarn_attn_factor", 2.0),
]
HOSTILE_EXPERTS: list[tuple[str, Any]] = [
    ("expert_count", 0),
    ("expert_count", None),
    ("expert_count", 5_000),
    ("expert_count", [4, 4]),
    ("expert_used_count", 0),
    ("expert_used_count", 5),
    ("expert_used_count", None),
    ("expert_weights_norm", 1),
    ("expert_weights_scale", 2.5),
    ("expert_gating_func", 2),
    ("expert_group_count", 2),
    ("expert_shared_count", 1),
    ("expert_shared_feed_forward_length", 64),
    ("leading_dense_block_count", 1),
    ("expert_feed_forward_length", 0),
]


@pytest.mark.parametrize(("architecture", "key", "value"), HOSTILE)
def test_a_hostile_value_is_refused_by_its_key(architecture: str, key: str, value: Any, tiny_model: Any) -> None:
    key = f"{architecture}.{key}"
    with pytest.raises(ModelRefused) as caught:
        read(tiny_model(architecture, metadata={key: value}))
    assert caught.value.param == key
    assert key in caught.value.message


@pytest.mark.parametrize(("key", "value"), HOSTILE_YARN)
def test_a_hostile_value_of_yarn_is_refused_by_its_key(key: str, value: Any, tiny_model: Any) -> None:
    yarn = {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0}
    key = f"qwen2.rope.scaling.{key}"
    with pytest.raises(ModelRefused) as caught:
        read(tiny_model("qwen2", metadata=yarn | {key: value}))
    assert caught.value.param == key


@pytest.mark.parametrize(("key", "value"), HOSTILE_EXPERTS)
def test_a_hostile_value_of_a_mixture_is_refused_by_its_key(key: str, value: Any, tiny_model: Any) -> None:
    key = f"qwen3moe.{key}"
    with pytest.raises(ModelRefused) as caught:
        read(tiny_model("qwen3moe", experts=4, metadata={key: value}))
    assert caught.value.param == key


def test_a_width_that_heads_do_not_divide_needs_a_key_length(tiny_model: Any) -> None:
    with pytest.raises(ModelRefused) as caught:
        read(tiny_model("llama", heads=6, kv_heads=2, metadata={"llama.attention.key_length": None}))
    assert caught.value.param == "llama.attention.key_length"


def test_a_vocabulary_of_another_size_than_the_embedding_is_refused(tiny_model: Any) -> None:
    with pytest.raises(ModelRefused) as caught:
        read(tiny_model("llama", metadata={"llama.vocab_size": None, "tokenizer.ggml.tokens": ["a", "b"]}))
    assert caught.value.param == "tokenizer.ggml.tokens"


@pytest.mark.parametrize("name", ["qwen35", "mamba", "LLAMA"])
def test_an_unknown_architecture_is_refused_by_name(name: str, tiny_model: Any) -> None:
    with pytest.raises(ModelRefused, match=name) as caught:
        read(tiny_model(name))
    assert caught.value.code == "unsupported_architecture"


def test_missing_keys_have_llamacpps_defaults(tiny_model: Any) -> None:
    names = ("attention.head_count_kv", "attention.key_length", "rope.dimension_count", "rope.freq_base")
    shape = read(tiny_model("llama", kv_heads=4, metadata={f"llama.{name}": None for name in names}))
    assert (shape.kv_heads, shape.head_size) == (4, 8)
    assert shape.ropes == (RopeShape(8, 10_000.0, 1.0),)
    assert shape.attention_scale == pytest.approx(8**-0.5)


@pytest.mark.parametrize(
    ("metadata", "scale"),
    [
        ({"rope.scaling.factor": 4.0}, 0.25),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, 0.5),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, 1.0),
        ({"rope.scale_linear": 8.0}, 0.125),
        ({}, 1.0),
    ],
)
def test_positions_are_scaled_as_stated(metadata: dict[str, Any], scale: float, tiny_model: Any) -> None:
    [rope] = read(tiny_model("llama", metadata={f"llama.{key}": value for key, value in metadata.items()})).ropes
    assert rope.scale == scale


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [
        (None, (8, 8, 8, 8, 8, 0, 8)),
        (3, (8, 8, 0, 8, 8, 0, 8)),
        ([True, False, True, True, False, False, True], (8, 0, 8, 8, 0, 0, 8)),
        ([1, 0, 1, 1, 0, 0, 1], (8, 0, 8, 8, 0, 0, 8)),
        (1, (0, 0, 0, 0, 0, 0, 0)),
    ],
)
def test_gemma3_layers_slide_as_stated_or_all_but_each_sixth(pattern: Any, windows: tuple[int, ...], tiny_model: Any) -> None:
    shape = read(tiny_model("gemma3", layers=7, metadata={"gemma3.attention.sliding_window_pattern": pattern}))
    assert shape.windows == windows
    assert shape.layer_rope == tuple(int(window > 0) for window in windows)
    assert shape.ropes[1] == RopeShape(8, 10_000.0, 1.0)


@pytest.mark.parametrize(("architecture", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_27b_size_of_gemma_scales_attention_by_the_width(architecture: str, layers: int, tiny_model: Any) -> None:
    shape = read(tiny_model(architecture, layers=layers, heads=2, kv_heads=1))
    assert shape.attention_scale == pytest.approx(16**-0.5)
    assert read(tiny_model(architecture, layers=4, heads=2, kv_heads=1)).attention_scale == pytest.approx(8**-0.5)


@pytest.mark.parametrize(
    ("architecture", "scale", "expected"), [("llama", 0.5, 0.5), ("gemma3", 0.5, 0.5), ("gemma2", 0.0, 8**-0.5)]
)
def test_a_stated_scale_of_attention_is_used_unless_it_is_zero(
    architecture: str, scale: float, expected: float, tiny_model: Any
) -> None:
    shape = read(tiny_model(architecture, metadata={f"{architecture}.attention.scale": scale}))
    assert shape.attention_scale == pytest.approx(expected)


@pytest.mark.parametrize(
    ("architecture", "pattern", "windows"),
    [
        ("llama", None, (8, 8, 8, 8)),
        ("llama", [True, False, False, True], (8, 0, 0, 8)),
        ("qwen2", None, (0, 0, 0, 0)),
        ("qwen2", [False, False, True, True], (0, 0, 8, 8)),
        ("qwen3", 2, (8, 0, 8, 0)),
        ("gemma2", None, (8, 0, 8, 0)),
    ],
)
def test_a_window_belongs_to_the_layers_of_its_family(
    architecture: str, pattern: Any, windows: tuple[int, ...], tiny_model: Any
) -> None:
    keys = {f"{architecture}.attention.sliding_window": 8, f"{architecture}.attention.sliding_window_pattern": pattern}
    assert read(tiny_model(architecture, layers=4, metadata=keys)).windows == windows


def test_gemma2_has_the_released_models_values_where_its_file_is_silent(tiny_model: Any) -> None:
    shape = read(tiny_model("gemma2", metadata={"gemma2.attention.sliding_window": None, "gemma2.rope.freq_base": 5e3}))
    assert (shape.attention_softcap, shape.logit_softcap, shape.windows) == (50.0, 30.0, (4096, 0))
    assert shape.ropes == (RopeShape(8, 5e3), RopeShape(8, 5e3))
    none = {"gemma2.attn_logit_softcapping": 0.0, "gemma2.final_logit_softcapping": 0.0}
    shape = read(tiny_model("gemma2", metadata=none))
    assert (shape.attention_softcap, shape.logit_softcap) == (0.0, 0.0)


def test_yarn_is_read_with_all_its_numbers(tiny_model: Any) -> None:
    stated = {"type": "yarn", "factor": 4.0, "attn_factor": 0.5, "original_context_length": 100, "yarn_ext_factor": 0.5,
              "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0}  # fmt: skip
    shape = read(tiny_model("qwen2", metadata={f"qwen2.rope.scaling.{key}": value for key, value in stated.items()}))
    [rope] = shape.ropes
    assert rope.amplitude == pytest.approx(0.5 * (1 + 0.1 * math.log(4.0)))
    assert (rope.scale, rope.extrapolation, rope.context_original) == (0.25, 0.5, 100)
    assert (rope.beta_fast, rope.beta_slow) == (16.0, 2.0)


def test_yarn_extends_the_trained_context_unless_another_is_stated(tiny_model: Any) -> None:
    yarn = {"qwen3.rope.scaling.type": "yarn", "qwen3.rope.scaling.factor": 4.0}
    [rope] = read(tiny_model("qwen3", context=300, metadata=yarn)).ropes
    assert (rope.extrapolation, rope.context_original, rope.beta_fast, rope.beta_slow) == (1.0, 300, 32.0, 1.0)


@pytest.mark.parametrize(
    ("architecture", "keys", "inside"),
    [
        ("llama", {}, 64),
        ("qwen3moe", {"expert_feed_forward_length": 48}, 48),
        ("qwen3moe", {"expert_feed_forward_length": None}, 32),
    ],
)
def test_experts_are_as_large_as_stated_or_share_what_a_dense_layer_has(
    architecture: str, keys: dict[str, Any], inside: int, tiny_model: Any
) -> None:
    named = {f"{architecture}.{key}": value for key, value in keys.items()}
    shape = read(tiny_model(architecture, experts=4, experts_used=2, metadata=named))
    assert (shape.experts, shape.experts_used, shape.expert_feed_forward, shape.feed_forward) == (4, 2, inside, 0)
    assert shape.expert_weights_normalised
    assert shape.expert_layers == (True, True) and shape.has_experts(1)


def test_a_model_without_experts_has_none_in_any_layer(tiny_model: Any) -> None:
    assert not read(tiny_model("llama")).has_experts(0)


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_every_tensor_of_a_tiny_model_is_wanted_with_its_shape(architecture: str, tiny_model: Any) -> None:
    mixture = {"experts": 4} if architecture == "qwen3moe" else {}
    with open_gguf(tiny_model(architecture, tied=False, **mixture)) as file:
        found = find_architecture(file)
        wanted = {item.name: item for item in found.wanted(found.read_decoder(file))}
        assert all(wanted[name].shape == tensor.shape for name, tensor in file.tensors.items())
        assert all(item.optional for name, item in wanted.items() if name not in file.tensors)


KEYS = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "use_parallel_residual",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.scale",
    "attention.layer_norm_rms_epsilon", "attention.sliding_window", "attention.sliding_window_pattern", "attention.causal",
    "attn_logit_softcapping", "final_logit_softcapping", "rope.dimension_count", "rope.freq_base", "rope.freq_base_swa",
    "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor",
    "rope.scaling.original_context_length", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow", "expert_count", "expert_used_count", "expert_feed_forward_length", "expert_weights_norm",
    "expert_gating_func", "expert_weights_scale", "expert_group_count",
)  # fmt: skip
NUMBERS = st.one_of(st.integers(-(2**63), 2**64 - 1), st.integers(0, 64), st.floats(width=32), st.floats(0.0, 1e6, width=32))
VALUES = st.one_of(
    NUMBERS,
    st.booleans(),
    st.sampled_from(["linear", "none", "yarn", "longrope", ""]),
    st.lists(st.integers(-1, 5), max_size=4).map(lambda items: np.array(items, np.int32)),
    st.lists(st.booleans(), max_size=4).map(lambda items: np.array(items, np.bool_)),
    st.lists(st.text(max_size=3), max_size=2).map(tuple),
)


@settings(deadline=None, max_examples=600)
@given(st.sampled_from(sorted(ARCHITECTURES)), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))
def test_any_metadata_is_read_or_refused_by_a_key(architecture: str, changes: dict[str, Any]) -> None:
    plain = {
        "block_count": 2, "context_length": 64, "embedding_length": 32, "feed_forward_length": 64, "expert_count": 4,
        "attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-5, "expert_used_count": 2,
    }  # fmt: skip
    metadata = {f"{architecture}.{key}": value for key, value in (plain | changes).items()}
    file = SimpleNamespace(metadata=metadata, tensor=lambda name: SimpleNamespace(shape=(96, 32)))
    try:
        decoder = ARCHITECTURES[architecture].read_decoder(file)
    except ModelRefused as refusal:
        assert refusal.param in metadata or refusal.param == f"{architecture}.attention.key_length"
        return
    assert len(decoder.windows) == len(decoder.layer_rope) == decoder.layers
    assert decoder.heads % decoder.kv_heads == 0 and decoder.head_size % 2 == 0
    for rope in decoder.ropes:
        assert np.isfinite(rope.frequencies()).all() and 0 < rope.dimensions <= decoder.head_size
    assert len({item.name for item in ARCHITECTURES[architecture].wanted(decoder)}) >= 3
