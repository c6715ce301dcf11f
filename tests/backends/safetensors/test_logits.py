"""Logits of picolm's float32 reference over a checkpoint, against transformers in float32 over the same folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.backends.safetensors.rigs import (
    logits,
    reference_engine,
    reference_logits,
    relative_difference,
    result_of,
    specification_for,
)
from tripower.backends.model_file import open_model
from tripower.backends.picolm.backend import load_engine, plan_load

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # transformers' own, of its dependencies

DIFFERENCE_MAX = 1e-5
GENERATED_DIFFERENCE_MAX = 1e-4
POSITIONS = 64
WINDOW = 8
BASE = {"rope_theta": 10_000.0}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LAYERS = 7
NESTED = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 5_000.0},
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama with one kv head": ("Llama", {"num_key_value_heads": 1}),
    "llama with heads wider than the width": ("Llama", {"head_dim": 32}),
    "llama with a tied head": ("Llama", {"tie_word_embeddings": True}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with factors of frequencies": ("Llama", {"rope_parameters": {"rope_type": "llama3", **BASE, **LLAMA3}}),
    "llama with linear scaling": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, **BASE}}),
    "llama with yarn": ("Llama", {"rope_parameters": {**YARN, **BASE}}),
    "yarn with an amplitude and betas": (
        "Llama",
        {"rope_parameters": {**YARN, **BASE, "attention_factor": 0.9, "beta_fast": 16.0, "beta_slow": 2.0}},
    ),
    "yarn with two amplitudes": ("Llama", {"rope_parameters": {**YARN, **BASE, "mscale": 0.7, "mscale_all_dim": 1.0}}),
    "mistral with a window": ("Mistral", {"sliding_window": WINDOW}),
    "mistral without one": ("Mistral", {"sliding_window": None}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2", {}),
    "qwen2 with yarn": ("Qwen2", {"rope_parameters": {**YARN, **BASE}}),
    "qwen2 with windows in upper layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "qwen3 with biases": ("Qwen3", {"attention_bias": True}),
    "qwen3moe": ("Qwen3Moe", {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True}),
    "qwen3moe with weights as they are": (
        "Qwen3Moe",
        {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": False},
    ),
    "gemma2": ("Gemma2", {"num_hidden_layers": LAYERS, "sliding_window": WINDOW, "query_pre_attn_scalar": 64}),
    "gemma2 without soft-caps": (
        "Gemma2",
        {"sliding_window": WINDOW, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3": ("Gemma3", {"num_hidden_layers": LAYERS, "sliding_window": WINDOW}),
    "gemma3 with scaled positions": (
        "Gemma3",
        {"num_hidden_layers": LAYERS, "sliding_window": WINDOW, "query_pre_attn_scalar": 24, "rope_parameters": NESTED},
    ),
}


def some_ids() -> list[int]:
    found: list[int] = np.random.default_rng(3).integers(0, 96, POSITIONS).tolist()
    return found


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case: str, checkpoint: Any, transformers: Any) -> None:
    family, fields = CASES[case]
    path = checkpoint(family, **fields)
    expected = reference_logits(transformers, path, some_ids())
    assert relative_difference(logits(reference_engine(path), some_ids()), expected) < DIFFERENCE_MAX


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["Llama", "Gemma3"])
def test_half_precision_weights_keep_their_values(family: str, dtype: torch.dtype, checkpoint: Any, transformers: Any) -> None:
    path = checkpoint(family, dtype=dtype)
    expected = reference_logits(transformers, path, some_ids())
    assert relative_difference(logits(reference_engine(path), some_ids()), expected) < DIFFERENCE_MAX


def test_a_checkpoint_in_several_files_is_one_model(checkpoint: Any, transformers: Any) -> None:
    whole, parts = checkpoint("Mixtral"), checkpoint("Mixtral", shard_bytes=100_000)
    assert len(list(parts.glob("*.safetensors"))) > 2
    assert np.array_equal(logits(reference_engine(parts), some_ids()), logits(reference_engine(whole), some_ids()))


def test_generated_kernels_compute_the_same_over_a_checkpoint(checkpoint: Any, transformers: Any) -> None:
    pytest.importorskip("llvmlite")
    path = checkpoint(
        "Qwen3Moe", dtype=torch.bfloat16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shard_bytes=60_000
    )
    with open_model(path) as file:
        plan = plan_load(file, specification_for(path), "native")
        engine = result_of(load_engine(file, plan, specification_for(path), lambda stage, done: None))
    expected = reference_logits(transformers, path, some_ids())
    assert relative_difference(logits(engine, some_ids()), expected) < GENERATED_DIFFERENCE_MAX
