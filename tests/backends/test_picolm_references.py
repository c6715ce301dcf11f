"""picolm's logits against other implementations: llama.cpp in a child process, transformers in float32.

Random weights in float32 leave no room for an excuse, so the tiny models must agree closely in everything that an architecture can
vary. On quantised files llama.cpp rounds activations to 8 bits and picolm does not; there the cosine is close to one, and where the
most likely token differs, its lead is smaller than the difference of logits between the two.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

POSITIONS = 512
COSINE_MIN = 0.999
RELATIVE_MAX = 1e-3
TINY_RELATIVE_MAX = {"llama": 2e-5, "gemma3": 5e-4}  # llama.cpp looks GELU up in a table of half-precision numbers
TEXT = Path(__file__).parents[1] / "references" / "harbour.txt"

LLAMA_VARIANTS: dict[str, dict[str, Any]] = {
    "plain heads": {"kv_heads": 4},
    "grouped heads": {"kv_heads": 2},
    "one kv head": {"kv_heads": 1},
    "an own head": {"tied": False},
    "biases": {"biases": True},
    "rope factors": {"rope_factors": True},
    "linear rope scaling": {"metadata": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}},
    "heads wider than the width": {"head_size": 32, "metadata": {"llama.rope.dimension_count": 32}},
}
GEMMA3_VARIANTS: dict[str, dict[str, Any]] = {
    "a window shorter than the sequence": {"layers": 7},
    "one kv head and a window": {"layers": 6, "kv_heads": 1},
    "an own head and a window": {"layers": 6, "tied": False},
    "global rope base and scaling": {
        "layers": 6,
        "metadata": {"gemma3.rope.freq_base": 1e6, "gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0},
    },
}


def relative_difference(found: Any, expected: Any) -> float:
    """The largest absolute difference over the largest absolute value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(
    ("architecture", "variant"),
    [("llama", variant) for variant in LLAMA_VARIANTS] + [("gemma3", variant) for variant in GEMMA3_VARIANTS],
)
def test_tiny_logits_equal_those_of_llamacpp(
    architecture: str, variant: str, tiny_model: Any, load_tiny: Any, llamacpp: Any
) -> None:
    path = tiny_model(architecture, **(LLAMA_VARIANTS | GEMMA3_VARIANTS)[variant])
    ids = np.random.default_rng(1).integers(0, 96, 48).tolist()
    expected = llamacpp("logits", path, ids, "--kv", "f32", "--plain")
    engine = load_tiny(path)
    engine.open_sequence(0)
    assert relative_difference(engine.logits(0, ids), expected) < TINY_RELATIVE_MAX[architecture]


@pytest.mark.long
@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_real_logits_are_as_close_to_llamacpp_as_its_activations_allow(
    model: str, request: pytest.FixtureRequest, load_tiny: Any, llamacpp: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = request.getfixturevalue(model)
    [ids] = llamacpp("tokenize", path, [{"text": TEXT.read_text(), "add_special": True}])
    ids = ids[:POSITIONS]
    expected = llamacpp("logits", path, ids)
    found = _teacher_forced(load_tiny(path, context=POSITIONS, sequences_max=1), ids)
    cosine = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    flips = _flips(found, expected)
    with capsys.disabled():
        print(
            f"\n{path.name}: {len(ids)} positions, cosine mean {cosine.mean():.6f} min {cosine.min():.6f}, "
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
    load_tiny: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = request.getfixturevalue(model)
    engine = load_tiny(path, context=POSITIONS, sequences_max=1)
    ids = np.random.default_rng(2).integers(0, engine.info.vocabulary_size, 128).tolist()
    found = _teacher_forced(engine, ids)
    expected = _transformers_logits(path, ids, monkeypatch)
    difference = relative_difference(found, expected)
    with capsys.disabled():
        print(f"\n{path.name}: {len(ids)} positions, relative difference to transformers {difference:.2e}")
    assert difference < RELATIVE_MAX


def _transformers_logits(path: Path, ids: list[int], monkeypatch: pytest.MonkeyPatch) -> Any:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    load: Callable[..., Any] = transformers.AutoModelForCausalLM.from_pretrained
    model = load(os.fspath(path.parent), gguf_file=path.name, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].numpy()
