"""picolm's logits against other implementations: llama.cpp in a child process, real models in transformers.

Random weights in float32 leave no room for an excuse, so the tiny models must agree closely in everything that an architecture can
vary. On quantised files llama.cpp rounds activations to 8 bits and picolm does not; there the cosine is close to one, and where the
most likely token differs, its lead is smaller than the difference of logits between the two. Tiny models of transformers have a file
of their own (`test_picolm_transformers`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.native.engine.rigs import divergence, relative_difference
from tripower.backends.gguf.reader import open_gguf
from tripower.backends.model_file import make_text_layer

POSITIONS = 512
COSINE_MIN = 0.999
RELATIVE_MAX = 1e-3
DIVERGENCE_MAX = 1e-5
"""Of generated code from float32, in nats, on average: activations of 16 bits cost no more."""
SILU_MAX = 2e-5
GELU_MAX = 5e-4
"""llama.cpp looks GELU up in a table of half-precision numbers."""
CAPPED_MAX = 2e-3
"""Logits that a soft-cap has pressed together: the same differences, over smaller logits."""
TINY_IDS = np.random.default_rng(1).integers(0, 96, 48).tolist()
TEXT = Path(__file__).parents[1] / "references" / "harbour.txt"

LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
WIDE: dict[str, Any] = {"width": 128, "head_size": 32}
"""Heads with enough pairs for YaRN to leave some, scale some and do both to some."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain heads": ("llama", {"kv_heads": 4}),
    "grouped heads": ("llama", {"kv_heads": 2}),
    "one kv head": ("llama", {"kv_heads": 1}),
    "an own head": ("llama", {"tied": False}),
    "biases": ("llama", {"biases": True}),
    "rope factors": ("llama", {"rope_factors": True}),
    "linear rope scaling": ("llama", {"keys": LINEAR}),
    "no rope scaling in spite of a factor": ("llama", {"keys": {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}}),
    "rope amplitude": ("llama", {"keys": {"rope.scaling.attn_factor": 1.3}}),
    "yarn and rope factors": ("llama", {**WIDE, "rope_factors": True, "keys": YARN}),
    "heads wider than the width": ("llama", {"head_size": 32}),
    "experts": ("llama", {"experts": 4}),
    "one expert of several": ("llama", {"experts": 4, "experts_used": 1}),
    "all experts": ("llama", {"experts": 3, "experts_used": 3}),
    "qwen2": ("qwen2", {"biases": ("attn_q", "attn_k", "attn_v")}),
    "qwen2 without biases": ("qwen2", {"tied": False}),
    "qwen2 with yarn": ("qwen2", {**WIDE, "keys": YARN}),
    "qwen2 with yarn over the trained context": (
        "qwen2",
        {**WIDE, "keys": {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}},
    ),
    "qwen2 with yarn and an amplitude": ("qwen2", {**WIDE, "keys": YARN | {"rope.scaling.attn_factor": 1.3}}),
    "qwen2 with yarn that shrinks": ("qwen2", {**WIDE, "keys": YARN | {"rope.scaling.factor": 0.5}}),
    "qwen3": ("qwen3", {"head_size": 16}),
    "qwen3 with biases": ("qwen3", {"biases": ("attn_q", "attn_k", "attn_v")}),
    "qwen3 with yarn": ("qwen3", {**WIDE, "keys": YARN, "tied": False}),
    "qwen3moe": ("qwen3moe", {"experts": 8, "experts_used": 3}),
    "qwen3moe with the experts' size left out": (
        "qwen3moe",
        {"experts": 8, "experts_used": 3, "keys": {"expert_feed_forward_length": None, "feed_forward_length": 192}},
    ),
    "gemma2": ("gemma2", {"layers": 4}),
    "gemma2 with low soft-caps": (
        "gemma2",
        {"layers": 4, "keys": {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}},
    ),
    "gemma2 with a window by default": ("gemma2", {"layers": 2, "keys": {"attention.sliding_window": None}}),
    "gemma2 with another pattern": ("gemma2", {"layers": 6, "keys": {"attention.sliding_window_pattern": 3}}),
    "gemma2 with linear rope scaling": ("gemma2", {"layers": 4, "keys": LINEAR}),
    "gemma2 with yarn": ("gemma2", {**WIDE, "keys": YARN | {"rope.scaling.attn_factor": 1.3}}),
    "gemma2 with a local rope base": ("gemma2", {"layers": 4, "keys": {"rope.freq_base_swa": 500.0}}),
    "gemma2 of 46 layers": ("gemma2", {"layers": 46, "heads": 2, "kv_heads": 1}),
    "a window shorter than the sequence": ("gemma3", {"layers": 7}),
    "one kv head and a window": ("gemma3", {"layers": 6, "kv_heads": 1}),
    "an own head and a window": ("gemma3", {"layers": 6, "tied": False}),
    "global rope base and scaling": ("gemma3", {"layers": 6, "keys": LINEAR | {"rope.freq_base": 1e6}}),
    "gemma3 with yarn and an amplitude": (
        "gemma3",
        {**WIDE, "layers": 6, "keys": YARN | {"rope.scaling.attn_factor": 1.3}},
    ),
    "gemma3 that turns half of each head": ("gemma3", {"layers": 6, "keys": {"rope.dimension_count": 4}}),
    "gemma3 with soft-capped logits": ("gemma3", {"layers": 6, "keys": {"final_logit_softcapping": 2.0}}),
    "gemma3 without windows": ("gemma3", {"layers": 6, "keys": {"attention.sliding_window": None}}),
}


FIRST = {architecture: variant for variant, (architecture, _) in reversed(VARIANTS.items())}
"""The first variant of each architecture; the others are long."""


@pytest.mark.parametrize(
    "variant",
    [*FIRST.values(), *(pytest.param(each, marks=pytest.mark.long) for each in VARIANTS if each not in FIRST.values())],
)
def test_tiny_logits_of_the_torch_reference_equal_those_of_llamacpp(
    variant: str, tiny_model: Any, load_torch: Any, llamacpp: Any
) -> None:
    path = _write_variant(variant, tiny_model)
    found = _teacher_forced(load_torch(path), TINY_IDS)
    expected = llamacpp("logits", path, TINY_IDS, "--kv", "f32", "--plain")
    assert relative_difference(found, expected) < _tolerance(variant)


@pytest.mark.long  # for the machine code of each variant
@pytest.mark.parametrize("variant", VARIANTS)
def test_tiny_logits_of_what_a_load_chooses_equal_those_of_the_torch_reference(
    variant: str, tiny_model: Any, load_torch: Any, load_tiny: Any
) -> None:
    path = _write_variant(variant, tiny_model)
    reference = _teacher_forced(load_torch(path), TINY_IDS)
    assert relative_difference(_teacher_forced(load_tiny(path), TINY_IDS), reference) < SILU_MAX


def _write_variant(variant: str, tiny_model: Any) -> Path:
    architecture, options = VARIANTS[variant]
    keys = {f"{architecture}.{key}": value for key, value in options.get("keys", {}).items()}
    path: Path = tiny_model(architecture, metadata=keys, **{name: value for name, value in options.items() if name != "keys"})
    return path


def _tolerance(variant: str) -> float:
    architecture, options = VARIANTS[variant]
    if not architecture.startswith("gemma"):
        return SILU_MAX
    capped = architecture == "gemma2" or "final_logit_softcapping" in options.get("keys", {})
    return CAPPED_MAX if capped else GELU_MAX


@pytest.mark.long
@pytest.mark.parametrize("loader", ["load_native", "load_torch"])
@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_real_logits_are_as_close_to_llamacpp_as_its_activations_allow(
    model: str, loader: str, request: pytest.FixtureRequest, llamacpp: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = request.getfixturevalue(model)
    [ids] = llamacpp("tokenize", path, [{"text": TEXT.read_text(), "add_special": True}])
    ids = ids[:POSITIONS]
    expected = llamacpp("logits", path, ids)
    found = _teacher_forced(request.getfixturevalue(loader)(path, context=POSITIONS, sequences_max=1), ids)
    cosine = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    flips = _flips(found, expected)
    with capsys.disabled():
        print(
            f"\n{path.name}, {loader}: {len(ids)} positions, cosine mean {cosine.mean():.6f} min {cosine.min():.6f}, "
            f"relative difference {relative_difference(found, expected):.4f}, top-1 differs at {len(flips)}"
        )
    assert len(ids) == POSITIONS
    assert cosine.mean() >= COSINE_MIN
    assert all(margin < difference for margin, difference in flips)


def _flips(found: Any, expected: Any) -> list[tuple[float, float]]:
    """For each position with another top-1: the lead of ours over theirs in our logits, the largest difference of logits."""
    flips = []
    for ours, theirs in zip(found, expected, strict=True):
        if ours.argmax() != theirs.argmax():
            flips.append((float(ours.max() - ours[theirs.argmax()]), float(np.abs(ours - theirs).max())))
    return flips


def _teacher_forced(engine: Any, ids: list[int], chunk: int = 64) -> Any:
    engine.open_sequence(0)
    return np.concatenate([engine.logits(0, ids[start : start + chunk]) for start in range(0, len(ids), chunk)])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # transformers' own, of its dependencies
@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_real_logits_equal_those_of_transformers_in_float32(
    model: str,
    request: pytest.FixtureRequest,
    load_torch: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = request.getfixturevalue(model)
    engine = load_torch(path, context=POSITIONS, sequences_max=1)
    ids = np.random.default_rng(2).integers(0, engine.info.vocabulary_size, 128).tolist()
    found = _teacher_forced(engine, ids)
    expected = _transformers_logits(path, ids, monkeypatch)
    difference = relative_difference(found, expected)
    with capsys.disabled():
        print(f"\n{path.name}: {len(ids)} positions, relative difference to transformers {difference:.2e}")
    assert difference < RELATIVE_MAX


@pytest.mark.long
@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_real_logits_of_generated_code_are_those_of_the_reference(
    model: str, request: pytest.FixtureRequest, load_native: Any, load_torch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = request.getfixturevalue(model)
    with open_gguf(path) as file:
        ids = make_text_layer(file).tokenize(TEXT.read_text())[:POSITIONS]
    found, expected = (
        _teacher_forced(load(path, context=POSITIONS, sequences_max=1), ids) for load in (load_native, load_torch)
    )
    difference, divergent = relative_difference(found, expected), divergence(found, expected)
    with capsys.disabled():
        print(
            f"\n{path.name}: {len(ids)} positions, relative difference to float32 {difference:.2e}, divergence {divergent:.2e}"
        )
    assert difference < RELATIVE_MAX and divergent < DIVERGENCE_MAX


def _transformers_logits(path: Path, ids: list[int], monkeypatch: pytest.MonkeyPatch) -> Any:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    load: Callable[..., Any] = transformers.AutoModelForCausalLM.from_pretrained
    model = load(os.fspath(path.parent), gguf_file=path.name, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].numpy()
