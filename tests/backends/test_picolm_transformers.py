"""picolm's logits against transformers in float32: the same tiny random weights in both, for every family that transformers has.

Here both sides compute in float32 throughout, so agreement is much closer than llama.cpp's GELU table allows, and what llama.cpp does
not honour (windows of `llama` and `qwen2`, YaRN's betas, weights of experts as they are) has its reference too.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tripower.backends.gguf.dequantise import dequantise
from tripower.backends.gguf.reader import open_gguf

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # transformers' own, of its dependencies

DIFFERENCE_MAX = 2e-5
HEADS, KV_HEADS, HEAD_SIZE, WIDTH, INSIDE, WINDOW = 4, 2, 32, 128, 64, 8
ATTENTION_BIASES = ("attn_q", "attn_k", "attn_v")
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0, "beta_slow": 2.0}


def llama3_factors() -> Any:
    """As the converter computes `rope_freqs.weight` (Llama 3.1's `apply_scaling`), one frequency at a time."""
    factors = []
    for pair in range(HEAD_SIZE // 2):
        turns = 256 * 10_000.0 ** (-2 * pair / HEAD_SIZE) / math.tau
        smooth = (turns - 1.0) / (4.0 - 1.0)
        factors.append(1.0 if turns > 4.0 else 8.0 if turns < 1.0 else 1.0 / ((1.0 - smooth) / 8.0 + smooth))
    return np.array(factors)


def yarn_keys(name: str) -> dict[str, Any]:
    """What `YARN` is called in GGUF."""
    return {
        f"{name}.rope.scaling.type": "yarn",
        f"{name}.rope.scaling.factor": 4.0,
        f"{name}.rope.scaling.original_context_length": 64,
        f"{name}.rope.scaling.yarn_beta_fast": 16.0,
        f"{name}.rope.scaling.yarn_beta_slow": 2.0,
    }


class Case(msgspec.Struct, frozen=True):
    """One model, as the tiny writer and as transformers describe it."""

    architecture: str
    name: str
    """`NameConfig` and `NameForCausalLM` in transformers."""
    options: dict[str, Any] = {}
    config: dict[str, Any] = {}


CASES = {
    "llama": Case("llama", "Llama", {"tied": False}),
    "llama with biases": Case("llama", "Llama", {"biases": True}, {"attention_bias": True, "mlp_bias": True}),
    "llama with rope factors": Case(
        "llama",
        "Llama",
        {"tensors": {"rope_freqs.weight": llama3_factors()}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10_000.0, **LLAMA3}},
    ),
    "llama with yarn": Case(
        "llama", "Llama", {"metadata": yarn_keys("llama")}, {"rope_parameters": {"rope_theta": 10_000.0, **YARN}}
    ),
    "mistral with a window": Case(
        "llama", "Mistral", {"metadata": {"llama.attention.sliding_window": WINDOW}}, {"sliding_window": WINDOW}
    ),
    "mixtral": Case("llama", "Mixtral", {"experts": 4}, {"num_local_experts": 4, "rope_parameters": {"rope_theta": 10_000.0}}),
    "qwen2": Case("qwen2", "Qwen2", {"biases": ATTENTION_BIASES}),
    "qwen2 with yarn": Case(
        "qwen2",
        "Qwen2",
        {"biases": ATTENTION_BIASES, "metadata": yarn_keys("qwen2")},
        {"rope_parameters": {"rope_theta": 10_000.0, **YARN}},
    ),
    "qwen2 with a window in the upper layer": Case(
        "qwen2",
        "Qwen2",
        {
            "biases": ATTENTION_BIASES,
            "metadata": {
                "qwen2.attention.sliding_window": WINDOW,
                "qwen2.attention.sliding_window_pattern": [False, True],
            },
        },
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": Case("qwen3", "Qwen3"),
    "qwen3moe": Case("qwen3moe", "Qwen3Moe", {"experts": 6, "experts_used": 3}, {"num_experts": 6, "norm_topk_prob": True}),
    "qwen3moe with weights as they are": Case(
        "qwen3moe",
        "Qwen3Moe",
        {"experts": 6, "experts_used": 3, "metadata": {"qwen3moe.expert_weights_norm": False}},
        {"num_experts": 6, "norm_topk_prob": False},
    ),
    "gemma2": Case(
        "gemma2",
        "Gemma2",
        {
            "layers": 4,
            "metadata": {
                "gemma2.attn_logit_softcapping": 5.0,
                "gemma2.final_logit_softcapping": 3.0,
                "gemma2.attention.scale": 0.25,
            },
        },
        {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 16},
    ),
    "gemma3": Case(
        "gemma3",
        "Gemma3",
        {"layers": 6, "metadata": {"gemma3.rope.freq_base": 1e6, "gemma3.rope.scaling.factor": 8.0}},
        {
            "query_pre_attn_scalar": HEAD_SIZE,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
    ),
}

LAYER_NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate",
}  # fmt: skip
PLAIN_NORMS = {"ffn_norm": "post_attention_layernorm"}
GEMMA_NORMS = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


@pytest.mark.parametrize("case", CASES)
def test_tiny_logits_equal_those_of_transformers(
    case: str, tiny_model: Any, load_torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    chosen = CASES[case]
    sizes = {"width": WIDTH, "heads": HEADS, "kv_heads": KV_HEADS, "head_size": HEAD_SIZE, "feed_forward": INSIDE}
    path = tiny_model(chosen.architecture, window=WINDOW, **(sizes | chosen.options))
    ids = np.random.default_rng(3).integers(0, 96, 80).tolist()
    engine = load_torch(path)
    engine.open_sequence(0)
    found = engine.logits(0, ids)
    model = reference_model(transformers, chosen, path)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0].numpy()
    assert np.abs(found - expected).max() / np.abs(expected).max() < DIFFERENCE_MAX


def reference_model(transformers: Any, case: Case, path: Path) -> Any:
    """transformers' model of a tiny file, in float32."""
    config: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": WIDTH,
        "num_hidden_layers": case.options.get("layers", 2),
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "intermediate_size": INSIDE,
        "moe_intermediate_size": INSIDE,
        "num_experts_per_tok": case.options.get("experts_used", 2),
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "sliding_window": WINDOW if case.architecture.startswith("gemma") else None,
        "tie_word_embeddings": case.options.get("tied", True),
        "attn_implementation": "eager",
        "pad_token_id": None,
    }
    class_name = "Gemma3TextConfig" if case.name == "Gemma3" else f"{case.name}Config"
    model = getattr(transformers, f"{case.name}ForCausalLM")(getattr(transformers, class_name)(**(config | case.config)))
    missing, unexpected = model.load_state_dict(state_of(path, case), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    return model.eval()


def state_of(path: Path, case: Case) -> dict[str, torch.Tensor]:
    """The file's weights by transformers' names, in its order of rows."""
    with open_gguf(path) as file:
        arrays = {name: dequantise(file, name) for name in file.tensors if name != "rope_freqs.weight"}
    gemma = case.architecture.startswith("gemma")
    names = LAYER_NAMES | (GEMMA_NORMS if gemma else PLAIN_NORMS)
    state: dict[str, Any] = {}
    for name, values in arrays.items():
        plain = values - 1.0 if gemma and "norm" in name else values
        if name in OUTSIDE:
            state[OUTSIDE[name]] = plain
            continue
        _, layer, part, kind = name.split(".")
        if part.endswith("_exps"):
            continue
        if case.architecture == "llama" and part in ("attn_q", "attn_k"):
            plain = in_halves(plain)
        state[f"model.layers.{layer}.{names[part]}.{kind}"] = plain
    if case.options.get("experts"):
        state |= experts_of(arrays, case.options.get("layers", 2))
    return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in state.items()}


def in_halves(values: Any) -> Any:
    """Rows of adjacent pairs put in the order of halves."""
    pairs = values.reshape(-1, HEAD_SIZE // 2, 2, *values.shape[1:])
    return np.swapaxes(pairs, 1, 2).reshape(values.shape)


def experts_of(arrays: dict[str, Any], layers: int) -> dict[str, Any]:
    state = {}
    for layer in range(layers):
        gate, up, down = (arrays[f"blk.{layer}.{part}_exps.weight"] for part in ("ffn_gate", "ffn_up", "ffn_down"))
        state[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = np.concatenate((gate, up), axis=1)
        state[f"model.layers.{layer}.mlp.experts.down_proj"] = down
    return state
