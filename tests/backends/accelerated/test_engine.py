"""The engine for accelerators, on the processor: against the reference, in every precision, with captures and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tripower.backends.picolm.accelerated.engine import AcceleratedEngine, Outputs
from tripower.backends.picolm.accelerated.graph_cache import CapturePolicy
from tripower.backends.picolm.accelerated.model import DeviceModel
from tripower.runtime.engine import SamplingParameters, StepRow
from tripower.runtime.kernel.errors import DeviceFailed

Load = Callable[..., AcceleratedEngine]
TinyModel = Callable[..., Path]

GREEDY = SamplingParameters(temperature=0.0)
TOKENS = np.random.default_rng(2).integers(0, 96, 150).tolist()
ROPE = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, biases and factors": ("llama", {"biases": True, "rope_factors": True, "tied": False, "metadata": ROPE}),
    "llama, experts": ("llama", {"experts": 4}),
    "qwen2": ("qwen2", {"biases": ("attn_q", "attn_k", "attn_v")}),
    "qwen3": ("qwen3", {}),
    "qwen3moe": ("qwen3moe", {"experts": 6}),
    "gemma2": ("gemma2", {"layers": 3}),
    "gemma3": ("gemma3", {"layers": 6, "window": 70}),
}


def divergence(expected: np.ndarray, found: np.ndarray) -> float:
    left, right = (torch.log_softmax(torch.from_numpy(each).double(), dim=-1) for each in (expected, found))
    return float((left.exp() * (left - right)).sum(-1).mean())


def row(engine: AcceleratedEngine, sequence: int, *tokens: int, sampling: SamplingParameters = GREEDY, **more: Any) -> StepRow:
    return StepRow(sequence, engine.length(sequence), tokens, True, sampling=sampling, **more)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_reference(family: str, tiny_model: TinyModel, load_torch: Any, load_accelerated: Load) -> None:
    architecture, options = FAMILIES[family]
    path = tiny_model(architecture, **options)
    reference, engine = load_torch(path), load_accelerated(path)
    for each in (reference, engine):
        each.open_sequence(0)
    for start, end in ((0, 70), (70, 71), (71, 72), (72, 149), (149, 150)):
        expected, found = reference.logits(0, TOKENS[start:end]), engine.logits(0, TOKENS[start:end])
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("family", ["llama", "llama, experts", "qwen2", "gemma3"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "F32"])
def test_compact_weights_stay_near_the_reference(
    family: str, kind: str, tiny_model: TinyModel, load_torch: Any, load_accelerated: Load
) -> None:
    architecture, options = FAMILIES[family]
    if "experts" in options:  # all of them: which are chosen is a matter of near-ties, and not of how weights are kept
        options = options | {"experts_used": options["experts"]}
    path = tiny_model(architecture, kind=kind, width=64, heads=8, **options)
    reference, engine = load_torch(path), load_accelerated(path, precision="compact", kv_type="f16")
    for each in (reference, engine):
        each.open_sequence(0)
    expected, found = reference.logits(0, TOKENS), engine.logits(0, TOKENS)
    assert divergence(expected, found) < 0.02
    assert ("int4" in engine.info.kernels) == kind.startswith("Q4")
    assert engine.info.weight_bytes < (0.45 if kind.startswith("Q4") else 0.55) * 4 * engine.info.parameters


def test_projections_of_mixed_types_are_stacked_in_their_order(
    tiny_model: TinyModel, load_torch: Any, load_accelerated: Load
) -> None:
    """As files of the `_M` kinds have it: values in a better type than queries and keys; here by a shape that int4 has not."""
    path = tiny_model("llama", kind="Q4_0", heads=4, kv_heads=1, head_size=8, width=64)
    engine = load_accelerated(path, precision="compact")
    reference = load_torch(path)
    for each in (reference, engine):
        each.open_sequence(0)
    assert divergence(reference.logits(0, TOKENS), engine.logits(0, TOKENS)) < 0.02


def test_the_engine_says_what_it_computes_with_and_claims_no_exactness(tiny_model: TinyModel, load_accelerated: Load) -> None:
    engine = load_accelerated(tiny_model("llama"), kv_type="f16")
    assert engine.info.determinism == "numeric" and engine.info.certificate is None
    assert engine.info.kernels == "torch on cpu: float32; attention math over states in f16"
    assert engine.info.state_bytes_per_token == 2 * 2 * 2 * 8 * 2
    assert 0 < engine.weight_bytes_read <= engine.info.weight_bytes


def test_of_a_mixture_a_step_reads_the_experts_that_are_used(tiny_model: TinyModel, load_accelerated: Load) -> None:
    used = load_accelerated(tiny_model("llama", experts=4, experts_used=1)).weight_bytes_read
    everything = load_accelerated(tiny_model("llama", experts=4, experts_used=4)).weight_bytes_read
    assert everything - used == 2 * 3 * 3 * 32 * 64 * 4


def test_decode_steps_are_captured_and_prompts_are_not(tiny_model: TinyModel, load_accelerated: Load) -> None:
    engine = load_accelerated(tiny_model("llama"), context=400)
    engine.open_sequence(0)
    engine.step([row(engine, 0, *TOKENS[:20])])
    for token in TOKENS[:100]:
        engine.step([row(engine, 0, token)])
    found = engine.captures()
    prompt = found.shapes["steps with prompts"]
    assert (prompt.state, prompt.eager, prompt.replays) == ("uncapturable", 1, 0)
    assert found.captures == 2 and found.replays == 100 - 2 * 3  # one page in sight, then two
    assert found.reuse_bps == 10_000 * 94 // 101


@pytest.mark.parametrize(
    ("options", "model", "reason"),
    [
        ({"capture": None}, {}, "the processor, which has no graphs"),
        ({"graphs": False}, {}, "graphs are off"),
        ({}, {"experts": 4}, "a mixture of experts asks the host"),
    ],
)
def test_what_cannot_be_captured_says_why(
    options: dict[str, Any], model: dict[str, Any], reason: str, tiny_model: TinyModel, load_accelerated: Load
) -> None:
    engine = load_accelerated(tiny_model("llama", **model), **options)
    engine.open_sequence(0)
    for token in TOKENS[:5]:
        engine.step([row(engine, 0, token)])
    [shape] = engine.captures().shapes.values()
    assert (shape.state, shape.eager) == ("uncapturable", 5) and reason in shape.reason


def test_graphs_can_be_switched_off_and_on_again(tiny_model: TinyModel, load_accelerated: Load) -> None:
    engine = load_accelerated(tiny_model("llama"))
    engine.open_sequence(0)
    replays = []
    for wanted in (True, False, True):
        engine.use_graphs(wanted)
        for token in TOKENS[:6]:
            engine.step([row(engine, 0, token)])
        replays.append(engine.captures().replays)
    assert replays == [3, 3, 6]


def streams(engine: AcceleratedEngine, parameters: list[SamplingParameters], steps: int) -> list[list[int]]:
    """As many sequences at once as parameters; one leaves after half of the steps."""
    found = [[token] for token in TOKENS[: len(parameters)]]
    for sequence in range(len(parameters)):
        engine.open_sequence(sequence)
    for index in range(steps):
        running = range(len(parameters) - (index >= steps // 2))
        rows = [
            row(engine, s, found[s][-1], sampling=parameters[s], output_index=index, history=tuple(found[s]), prompt_length=1)
            for s in running
        ]
        for sequence, token in zip(running, engine.step(rows), strict=True):
            found[sequence].append(token)
    return found


def test_captured_launched_and_reference_streams_are_equal(
    tiny_model: TinyModel, load_torch: Any, load_accelerated: Load
) -> None:
    path = tiny_model("gemma3", layers=6)
    parameters = [
        GREEDY,
        SamplingParameters(temperature=0.9, top_p=0.9, top_k=30, seed=5),
        SamplingParameters(temperature=1.2, min_p=0.05, repeat_penalty=1.3, seed=6),
        SamplingParameters(temperature=0.0, logit_bias=((3, 4.0),), presence_penalty=0.5),
    ]
    reference = streams(load_torch(path), parameters, 80)
    captured = load_accelerated(path, policy=CapturePolicy(audit_every=3))
    assert streams(captured, parameters, 80) == reference
    assert captured.captures().replays > 60 and captured.captures().uncapturable == 0
    assert streams(load_accelerated(path, graphs=False), parameters, 80) == reference


class InOnePool:
    """A capture whose outputs lie where those of all others lie, as CUDA graphs of one pool may have it."""

    nbytes = 1
    logits, tokens = torch.empty(8, 96), torch.empty(8, dtype=torch.int64)

    def __init__(self, work: Callable[[], Outputs]) -> None:
        self._work = work

    def replay(self) -> Outputs:
        made = self._work()
        kept = Outputs(self.logits[: len(made.logits)], self.tokens[: len(made.tokens)])
        kept.logits.copy_(made.logits)
        kept.tokens.copy_(made.tokens)
        return kept

    def close(self) -> None:
        self.logits.fill_(torch.nan)


def test_captures_that_share_their_memory_do_not_spoil_each_others_outputs(
    tiny_model: TinyModel, load_torch: Any, load_accelerated: Load
) -> None:
    path = tiny_model("llama")
    engines = load_torch(path), load_accelerated(path, capture=InOnePool)
    found = []
    for engine in engines:
        for sequence in range(3):
            engine.open_sequence(sequence)
        drawn, tokens = [], [1, 2, 3]
        for index in range(40):
            running = 1 + index % 3  # classes take turns
            rows = [row(engine, s, tokens[s], sampling=SamplingParameters(seed=s), output_index=index) for s in range(running)]
            tokens[:running] = engine.step(rows)
            drawn.append(tuple(tokens))
        found.append(drawn)
    assert found[0] == found[1]
    assert engines[1].captures().variants == 3 and engines[1].captures().uncapturable == 0


def test_what_a_padded_row_writes_is_seen_by_nobody(tiny_model: TinyModel, load_accelerated: Load) -> None:
    """Three rows in a class of four: the pool but for the waste page has what the same rows alone leave there."""
    engine = load_accelerated(tiny_model("llama"), context=64)
    for sequence in range(3):
        engine.open_sequence(sequence)
    engine.step([row(engine, sequence, 5) for sequence in range(3)])
    pool = engine._pool
    assert pool._pool[pool.waste_page].abs().sum() > 0
    assert pool._pool[pool.zero_page].abs().sum() == 0
    assert pool._pool[3].abs().sum() == 0  # the page that a fourth sequence would have


def test_memory_that_runs_out_fails_the_step_and_leaves_the_model(
    tiny_model: TinyModel, load_accelerated: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load_accelerated(tiny_model("llama"))
    engine.open_sequence(0)
    for token in TOKENS[:6]:
        engine.step([row(engine, 0, token)])
    assert engine.captures().variants == 1

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(DeviceModel, "forward", fail)
        with pytest.raises(DeviceFailed) as caught:
            engine.step([row(engine, 0, *TOKENS[:70])])
    assert caught.value.code == "device_out_of_memory"
    assert engine.length(0) == 6 and engine.captures().variants == 0
    assert engine.step([row(engine, 0, 1)])[0] >= 0


def test_logits_that_are_not_finite_fail_the_step_and_change_nothing(
    tiny_model: TinyModel, load_accelerated: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load_accelerated(tiny_model("llama"))
    engine.open_sequence(0)
    broken = torch.full((1, 96), torch.nan)
    with monkeypatch.context() as patch:
        patch.setattr(DeviceModel, "forward", lambda *_: broken)
        for sampling in (GREEDY, SamplingParameters(seed=1), SamplingParameters(repeat_penalty=1.5)):
            with pytest.raises(DeviceFailed) as caught:
                engine.step([row(engine, 0, 1, sampling=sampling)])
            assert caught.value.code == "invalid_logits"
    assert engine.length(0) == 0 and engine.step([row(engine, 0, 1)])[0] >= 0


@pytest.mark.long
def test_a_real_model_in_four_bits_stays_near_the_reference(
    smollm2_path: Path, load_torch: Any, load_accelerated: Load
) -> None:
    tokens = np.random.default_rng(1).integers(0, 20_000, 40).tolist()
    reference = load_torch(smollm2_path, context=256)
    reference.open_sequence(0)
    expected = reference.logits(0, tokens)
    for precision, bound in (("float32", 1e-8), ("compact", 0.01)):
        engine = load_accelerated(smollm2_path, context=256, precision=precision)
        engine.open_sequence(0)
        assert divergence(expected, engine.logits(0, tokens)) < bound
        engine.close()
