"""What a model file says of its shape is believed only within bounds, and a refusal names the key."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tripower.backends.gguf.reader import open_gguf
from tripower.backends.picolm.architectures import find_architecture
from tripower.backends.picolm.hyperparameters import Hyperparameters, RopeShape
from tripower.runtime.kernel.errors import ModelRefused


def read(path: Any) -> Hyperparameters:
    with open_gguf(path) as file:
        return find_architecture(file).read_hyperparameters(file)


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
    ("llama", "attention.scale", 0.5),
    ("llama", "logit_scale", 2.0),
    ("llama", "expert_count", 8),
    ("llama", "rope.dimension_count", 0),
    ("llama", "rope.dimension_count", 3),
    ("llama", "rope.dimension_count", 10),
    ("llama", "rope.freq_base", 0.0),
    ("llama", "rope.freq_base", -10_000.0),
    ("llama", "rope.freq_base", math.nan),
    ("llama", "rope.freq_base", math.inf),
    ("llama", "rope.scaling.type", "yarn"),
    ("llama", "rope.scaling.type", "longrope"),
    ("llama", "rope.scaling.type", 3),
    ("llama", "rope.scaling.factor", 0.0),
    ("llama", "rope.scaling.factor", -2.0),
    ("llama", "rope.scaling.factor", math.nan),
    ("llama", "rope.scaling.attn_factor", 1.2),
    ("llama", "vocab_size", 95),
    ("gemma3", "attention.sliding_window", None),
    ("gemma3", "attention.sliding_window", 0),
    ("gemma3", "attention.sliding_window_pattern", 0),
    ("gemma3", "attention.sliding_window_pattern", [True, False, True]),
    ("gemma3", "attention.sliding_window_pattern", [2, 0]),
    ("gemma3", "rope.freq_base_swa", math.inf),
    ("gemma3", "final_logit_softcapping", 30.0),
]


@pytest.mark.parametrize(("architecture", "key", "value"), HOSTILE)
def test_a_hostile_value_is_refused_by_its_key(architecture: str, key: str, value: Any, tiny_model: Any) -> None:
    key = f"{architecture}.{key}"
    with pytest.raises(ModelRefused) as caught:
        read(tiny_model(architecture, metadata={key: value}))
    assert caught.value.param == key
    assert key in caught.value.message


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
    assert shape.rope == RopeShape(8, 10_000.0, 1.0)
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
    assert read(tiny_model("llama", metadata={f"llama.{key}": value for key, value in metadata.items()})).rope.scale == scale


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [
        (None, (8, 8, 8, 8, 8, 0, 8)),
        (3, (8, 8, 0, 8, 8, 0, 8)),
        ([True, False, True, True, False, False, True], (8, 0, 8, 8, 0, 0, 8)),
        ([1, 0, 1, 1, 0, 0, 1], (8, 0, 8, 8, 0, 0, 8)),
    ],
)
def test_gemma3_layers_slide_as_stated_or_all_but_each_sixth(pattern: Any, windows: tuple[int, ...], tiny_model: Any) -> None:
    shape = read(tiny_model("gemma3", layers=7, metadata={"gemma3.attention.sliding_window_pattern": pattern}))
    assert shape.windows == windows
    assert shape.local_rope == RopeShape(8, 10_000.0, 1.0)


def test_gemma3_with_62_layers_scales_attention_by_the_width(tiny_model: Any) -> None:
    assert read(tiny_model("gemma3", layers=62, heads=2, kv_heads=1)).attention_scale == pytest.approx(16**-0.5)
