"""A model with a draft beside it: what fits is loaded, what does not is refused before weights are read, and all of it ends together."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tripower.backends.model_file import open_model
from tripower.backends.picolm import backend, draft_cost, drafted
from tripower.backends.picolm.backend import PicolmBackend
from tripower.backends.picolm.drafted import Choices, plan_both
from tripower.bench.gguf_samples import byte_level_metadata, llama_tensors, write_gguf
from tripower.runtime.engine import DraftSpecification, LoadedModel, LoadSpecification, SamplingParameters, StepTable
from tripower.runtime.kernel.errors import ModelRefused
from tripower.runtime.speculation import DraftedEngine, FixedDrafter, ModelSource

GREEDY = SamplingParameters(temperature=0.0)
MERGES = ("h e", "l l", "he ll")
CONTROL = 256 + len(MERGES)
"""The first control token."""


def metadata(more: Mapping[str, object] | None = None, *, merges: tuple[str, ...] = MERGES, padding: int = 0) -> dict[str, Any]:
    keys = byte_level_metadata(merges=merges, more=more)
    keys["tokenizer.ggml.tokens"] = [*keys["tokenizer.ggml.tokens"], *(f"<pad{number}>" for number in range(padding))]  # type: ignore[misc]
    keys["tokenizer.ggml.token_type"] = [*keys["tokenizer.ggml.token_type"], *([5] * padding)]  # type: ignore[misc]
    return keys | {"llama.vocab_size": len(keys["tokenizer.ggml.tokens"])} | dict(more or {})  # type: ignore[arg-type]


def content(more: Mapping[str, object] | None = None, *, fill: int = 0x3C, **changes: Any) -> bytes:
    """A tiny model's file."""
    keys = metadata(more, **changes)
    return write_gguf(keys, llama_tensors(len(keys["tokenizer.ggml.tokens"])), fill=fill)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target.gguf"
    path.write_bytes(content())
    return path


def specification(target: Path, draft: Path, **digests: str) -> LoadSpecification:
    return LoadSpecification(
        name="m",
        source=str(target),
        context=0,
        sequences_max=2,
        state_bytes_max=1 << 24,
        threads=1,
        prefill_chunk=16,
        draft=DraftSpecification(name="small", source=str(draft), **digests),
    )


def load(settings: LoadSpecification, told: list[str] | None = None, *, kernels: str = "torch") -> LoadedModel:
    stages: list[str] = [] if told is None else told
    for model in PicolmBackend(kernels).load(settings, lambda stage, done: stages.append(stage)):
        if model is not None:
            return model
    raise AssertionError("loading ended without a model")


def draft_beside(target: Path, data: bytes) -> Path:
    path = target.with_name("draft.gguf")
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("kernels", ["torch", pytest.param("auto", marks=pytest.mark.long)])
def test_a_draft_is_loaded_beside_its_target_and_closed_with_it(target: Path, kernels: str) -> None:
    told: list[str] = []
    loaded = load(specification(target, draft_beside(target, content(padding=128))), told, kernels=kernels)
    engine, draft = loaded.engine, loaded.draft
    assert isinstance(engine, DraftedEngine) and draft is not None and draft.step_cost > 0
    alone = next(model for model in PicolmBackend(kernels).load(plain(target), lambda stage, done: None) if model is not None)
    assert engine.info.weight_bytes == alone.engine.info.weight_bytes + draft.engine.info.weight_bytes
    assert engine.info.state_bytes_per_token == 2 * alone.engine.info.state_bytes_per_token
    assert engine.info.context_max == draft.engine.info.context_max == 128
    assert "draft weights" in told and engine.sequences() == draft.engine.sequences() == []
    prompt = list(b"hello hello")
    assert answer(engine, prompt, ModelSource(draft, prompt, GREEDY)) == answer(alone.engine, prompt, None)
    assert draft.engine.sequences() == [0]
    engine.close()
    alone.engine.close()


def plain(target: Path) -> LoadSpecification:
    return LoadSpecification(
        name="m", source=str(target), context=0, sequences_max=2, state_bytes_max=1 << 24, threads=1, prefill_chunk=16
    )


def answer(engine: Any, prompt: list[int], source: ModelSource | None) -> list[int]:
    """What an engine says, with guesses or without."""
    table = StepTable(slots_max=1, steps_max=32, rows_max=16)
    table.clear(steps_max=32)
    engine.open_sequence(0)
    table.add(
        sequence=0, position=0, pending=prompt, remaining=12, output_index=0, sampling=GREEDY, ends=frozenset(), history=(),
        prompt_length=len(prompt), drafter=None if source is None else FixedDrafter(source, width_max=3),
    )  # fmt: skip
    for _ in engine.run(table):
        pass
    assert bool(table.runs) is (source is not None)
    return [
        token for step in range(table.steps_done) for token in (*table.runs.get(step, {}).get(0, ()), int(table.drawn[step, 0]))
    ]


ENDS = {"tokenizer.ggml.eos_token_id": CONTROL + 1}
BEGINS = {"tokenizer.ggml.add_bos_token": True}


@pytest.mark.parametrize(
    ("data", "code", "told"),
    [
        pytest.param(content(merges=("h e", "l l", "e l")), "draft_vocab_mismatch", "the token 258", id="another token"),
        pytest.param(content(merges=MERGES[:2]), "draft_vocab_mismatch", "the token 258", id="fewer tokens"),
        pytest.param(content(padding=129), "draft_vocab_mismatch", "391 tokens and 262", id="many more tokens"),
        pytest.param(content(ENDS), "draft_vocab_mismatch", "a text ends with", id="another end"),
        pytest.param(content(BEGINS), "draft_vocab_mismatch", "a text begins with", id="another beginning"),
        pytest.param(
            content({"llama.context_length": 64}), "draft_context_too_short", "engine.context to 64", id="short context"
        ),
        pytest.param(
            content({"general.architecture": "mamba"}), "unsupported_architecture", "the draft model", id="unknown architecture"
        ),
        pytest.param(content()[:-5000], "", "the draft model", id="truncated"),
        pytest.param(content()[:100], "", "the draft model", id="truncated header"),
        pytest.param(b"no model at all", "", "the draft model", id="no model"),
        pytest.param(content(fill=0xFF), "self_test_failed", "damaged", id="damaged weights"),
    ],
)
def test_a_draft_that_does_not_fit_is_refused_by_its_setting_and_nothing_stays(
    target: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, code: str, told: str
) -> None:
    made: list[Any] = []
    real = backend.load_engine

    def recording(*arguments: Any) -> Any:
        engine = yield from real(*arguments)
        made.append(engine)
        monkeypatch.setattr(engine, "close", lambda: made.remove(engine))
        return engine

    monkeypatch.setattr(drafted, "load_engine", recording)
    stages: list[str] = []
    with pytest.raises(ModelRefused, match=told) as refusal:
        load(specification(target, draft_beside(target, data)), stages)
    error = refusal.value
    assert code in ("", error.code)
    assert (error.param, "small" in error.message) == ("speculation.draft_model", True)
    assert str(target.parent) not in error.message
    assert made == []
    assert ("weights" in stages) is (error.code == "self_test_failed")


def test_a_draft_that_is_not_there_is_refused(target: Path) -> None:
    with pytest.raises(ModelRefused) as refusal:
        load(specification(target, target.with_name("nowhere.gguf")))
    assert refusal.value.param == "speculation.draft_model"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_digests_in_any_case_bind_the_draft_to_itself_and_to_its_target(target: Path) -> None:
    draft = draft_beside(target, content())
    load(specification(target, draft, sha256=digest(draft).upper(), target_sha256=digest(target))).engine.close()


@pytest.mark.parametrize("name", ["sha256", "target_sha256"])
def test_a_draft_with_another_digest_or_for_another_target_is_refused(target: Path, name: str) -> None:
    draft = draft_beside(target, content())
    digests = {"sha256": digest(draft), "target_sha256": digest(target)}
    changed = draft if name == "sha256" else target
    data = bytearray(changed.read_bytes())
    data[-1] ^= 1  # one bit of a weight
    changed.write_bytes(data)
    stages: list[str] = []
    with pytest.raises(ModelRefused, match="correct") as refusal:
        load(specification(target, draft, **digests), stages)
    assert refusal.value.code == ("draft_digest_mismatch" if name == "sha256" else "draft_target_mismatch")
    assert refusal.value.param == f"speculation.draft_{name}"
    assert stages == []


def test_the_states_of_both_fit_into_what_is_allowed(tiny_model: Any) -> None:
    wide, narrow = tiny_model("llama", layers=3), tiny_model("llama", layers=1)
    settings = LoadSpecification(
        name="m", source=str(wide), context=0, sequences_max=2, state_bytes_max=1 << 20, threads=1, prefill_chunk=16,
    )  # fmt: skip
    with open_model(wide) as file, open_model(narrow) as other:
        plan, draft_plan, (ours, theirs) = plan_both(file, other, settings, "small", Choices("torch", "f32", "cpu"))
    assert plan.context == draft_plan.context > 0
    each = [backend.state_bytes_per_position(made.decoder, "f32") for made in (plan, draft_plan)]
    assert each[0] == 3 * each[1]
    assert 2 * plan.context * sum(each) <= settings.state_bytes_max == ours.state_bytes_max + theirs.state_bytes_max


def test_what_a_draft_costs_is_measured_once_and_kept(
    load_torch: Any, tiny_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIPOWER_KERNEL_CACHE", str(tmp_path))
    target, draft = load_torch(tiny_model("llama", layers=3)), load_torch(tiny_model("llama", layers=1))
    first = to_end(draft_cost.measure_step_cost(target, draft))
    assert first > 0 and target.sequences() == draft.sequences() == []
    monkeypatch.setattr(draft_cost, "_measure", None)
    assert to_end(draft_cost.measure_step_cost(target, draft)) == first
    with pytest.raises(TypeError):
        to_end(draft_cost.measure_step_cost(draft, target))


def to_end(work: Any) -> Any:
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value
