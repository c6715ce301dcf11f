"""`config.json`: every field that is absurd, missing or beyond what is computed here is refused by its name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.safetensors.rigs import edit_json, open_and_check, refused
from tripower.backends.safetensors.checkpoint import open_checkpoint
from tripower.runtime.kernel.errors import ModelRefused


@pytest.fixture(scope="module")
def llama(checkpoint: Any) -> Path:
    path: Path = checkpoint("Llama")
    return path


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "copy"))


CONFIGS: dict[str, tuple[str, Any, str]] = {
    "no layers": ("num_hidden_layers", 0, "bad_value"),
    "absurdly many layers": ("num_hidden_layers", 10**30, "bad_value"),
    "layers as a float": ("num_hidden_layers", 2.0, "bad_type"),
    "layers as true": ("num_hidden_layers", True, "bad_type"),
    "layers as text": ("num_hidden_layers", "2", "bad_type"),
    "layers as a list": ("num_hidden_layers", [2] * 1_000, "bad_type"),
    "no heads": ("num_attention_heads", 0, "bad_value"),
    "negative heads": ("num_key_value_heads", -2, "bad_value"),
    "an odd head": ("head_dim", 15, "bad_value"),
    "a huge head": ("head_dim", 2**40, "bad_value"),
    "no width": ("hidden_size", 0, "bad_value"),
    "a huge inside": ("intermediate_size", 2**31, "bad_value"),
    "no vocabulary": ("vocab_size", 0, "bad_value"),
    "a huge vocabulary": ("vocab_size", 2**63, "bad_value"),
    "no context": ("max_position_embeddings", 0, "bad_value"),
    "an epsilon of zero": ("rms_norm_eps", 0, "bad_value"),
    "an epsilon of many digits": ("rms_norm_eps", 10**400, "bad_value"),
    "an epsilon as text": ("rms_norm_eps", "1e-6", "bad_type"),
    "another activation": ("hidden_act", "relu", "unsupported_model"),
    "quantised weights": ("quantization_config", {"quant_method": "gptq"}, "unsupported_model"),
    "several slices": ("pretraining_tp", 2, "unsupported_model"),
    "layers of two kinds": ("layer_types", ["sliding_attention", "full_attention"], "unsupported_model"),
    "kinds of other layers": ("layer_types", ["linear_attention"] * 2, "unsupported_model"),
    "a kind too few": ("layer_types", ["full_attention"], "bad_value"),
    "kinds that are none": ("layer_types", 5, "bad_type"),
    "another family": ("model_type", "gpt2", "unsupported_architecture"),
    "another head": ("architectures", ["LlamaForSequenceClassification"], "unsupported_architecture"),
    "an end outside": ("eos_token_id", 96, "bad_value"),
    "an end that is text": ("eos_token_id", ["</s>"], "bad_value"),
    "rope as a list": ("rope_parameters", [], "bad_type"),
    "tied as a number": ("tie_word_embeddings", 1, "bad_type"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_an_absurd_configuration_is_refused_by_its_field(case: str, copy: Path) -> None:
    name, value, code = CONFIGS[case]
    edit_json(copy / "config.json", {name: value})
    with refused(code, f"config.json {name}"):
        open_checkpoint(copy)


@pytest.mark.parametrize(
    "name",
    [
        "model_type",
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "rms_norm_eps",
    ],
)
def test_a_missing_field_is_refused_by_name(name: str, copy: Path) -> None:
    edit_json(copy / "config.json", {name: None})
    with refused("missing_key", f"config.json {name}"):
        open_checkpoint(copy)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([10**30, -1, 0, 2**31]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["rope_type", "factor", "a"]), inner, max_size=3)
    ),
    max_leaves=5,
)
FIELDS = (
    "model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act", "rope_parameters", "rope_scaling",
    "rope_theta", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "tie_word_embeddings",
    "eos_token_id", "quantization_config", "sliding_window_pattern", "query_pre_attn_scalar", "final_logit_softcapping",
    "num_experts", "num_experts_per_tok", "norm_topk_prob", "mlp_only_layers", "decoder_sparse_step",
)  # fmt: skip


@pytest.fixture(scope="module")
def every_family(checkpoint: Any) -> list[tuple[Path, dict[str, Any]]]:
    """A folder of each kind of configuration, and what its own says."""
    paths = [checkpoint(family) for family in ("Llama", "Qwen2", "Gemma3", "Mixtral")] + [checkpoint("Qwen3Moe", num_experts=4)]
    return [(path, json.loads((path / "config.json").read_text())) for path in paths]


@settings(deadline=None, max_examples=300)
@given(which=st.integers(0, 4), changes=st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1, max_size=3))
def test_any_configuration_is_read_or_refused_by_a_name(which: int, changes: dict[str, Any], every_family: Any) -> None:
    path, values = every_family[which]
    (path / "config.json").write_text(json.dumps(values | changes))
    try:
        open_and_check(path)
    except ModelRefused as refusal:
        assert refusal.code != "model_refused" and refusal.param
    finally:
        (path / "config.json").write_text(json.dumps(values))


ROPES: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown type": ({"rope_type": "dynamic", "factor": 2.0}, "unsupported_model", "rope_type"),
    "no factor": ({"rope_type": "linear"}, "missing_key", "factor"),
    "a factor of zero": ({"rope_type": "linear", "factor": 0.0}, "bad_value", "factor"),
    "a base of one": ({"rope_theta": 1.0}, "bad_value", "rope_theta"),
    "a part of the head": ({"partial_rotary_factor": 0.5}, "unsupported_model", "partial_rotary_factor"),
    "a range that is not rounded": ({"rope_type": "yarn", "factor": 2.0, "truncate": False}, "unsupported_model", "truncate"),
    "factors without a range": (
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
        "unsupported_model",
        "high_freq_factor",
    ),
}


@pytest.mark.parametrize("case", ROPES)
@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
def test_a_rope_that_is_not_computed_here_is_refused_by_its_field(case: str, place: str, copy: Path) -> None:
    values, code, field = ROPES[case]
    edit_json(copy / "config.json", {"rope_parameters": None, place: {"rope_type": "default"} | values})
    with refused(code, f"config.json {place} {field}"):
        open_checkpoint(copy)


@pytest.mark.parametrize(
    ("family", "fields", "old"),
    [
        (
            "Llama",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}},
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
        ),
        ("Qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, {"rope_theta": 1_000_000}),
        (
            "Gemma3",
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
                }
            },
            {
                "rope_theta": 1e6,
                "rope_local_base_freq": 5e3,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "layer_types": None,
                "sliding_window_pattern": 6,
            },
        ),
    ],
)
def test_older_spellings_of_a_configuration_mean_the_same(
    family: str, fields: dict[str, Any], old: dict[str, Any], checkpoint: Any
) -> None:
    path = checkpoint(family, num_hidden_layers=7, **fields)
    with open_checkpoint(path) as file:
        expected = {key: np.asarray(value).tolist() for key, value in file.metadata.items()}
    edit_json(path / "config.json", {"rope_parameters": None, "_sliding_window_pattern": None, **old})
    with open_checkpoint(path) as file:
        assert {key: np.asarray(value).tolist() for key, value in file.metadata.items()} == expected
