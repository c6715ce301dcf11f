"""Loading: what is refused, by which code, and that a failure anywhere leaves nothing behind."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tripower.backends.gguf.reader import open_gguf
from tripower.backends.llamacpp import LlamacppBackend
from tripower.backends.llamacpp import probe as probes
from tripower.backends.llamacpp.engine import LlamacppEngine
from tripower.backends.llamacpp.library import open_library
from tripower.backends.llamacpp.pair import Pair
from tripower.backends.llamacpp.sizes import state_bytes
from tripower.runtime.engine import LoadedModel, LoadSpecification, SamplingParameters, StepRow
from tripower.runtime.kernel.errors import DeviceFailed, InvalidConfiguration, ModelRefused

Refusal = Callable[..., ModelRefused]
CYCLES_BEFORE, CYCLES = 30, 50
GROWTH_BYTES_MAX = 2 << 20


@pytest.fixture
def freed(pair: Pair, finish: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is allocated and freed natively, in order: `+model`, `+context`, `-context`, `-model`."""
    finish(probes.probe(pair))
    library = open_library(pair)
    events: list[str] = []

    class Counting:
        """The functions of the library; those that own memory are written down."""

        def __getattr__(self, name: str) -> Any:
            function = getattr(real, name)
            if name not in words:
                return function

            def call(*arguments: Any) -> Any:
                result = function(*arguments)
                if result != library.ffi.NULL:
                    events.append(words[name])
                return result

            return call

    words = {
        "llama_model_load_from_file": "+model",
        "llama_init_from_model": "+context",
        "llama_free": "-context",
        "llama_model_free": "-model",
    }
    real = library.api
    monkeypatch.setattr(library, "api", Counting())
    yield events


def specification(path: Path, **changes: Any) -> LoadSpecification:
    settings: dict[str, Any] = {
        "context": 256,
        "sequences_max": 2,
        "state_bytes_max": 1 << 28,
        "threads": 1,
        "prefill_chunk": 64,
    }
    return LoadSpecification(name=path.stem, source=str(path), **(settings | changes))


def load(path: Path, **changes: Any) -> LoadedModel:
    *boundaries, model = LlamacppBackend().load(specification(path, **changes), lambda stage, done: None)
    assert model is not None and boundaries and not any(boundaries)
    return model


def test_a_real_model_answers_with_our_text_layer(smollm2_path: Path) -> None:
    stages: dict[str, list[float]] = {}

    def progress(stage: str, done: float) -> None:
        stages.setdefault(stage, []).append(done)

    *_, model = LlamacppBackend().load(specification(smollm2_path), progress)
    assert model is not None
    engine, text = model.engine, model.text
    try:
        assert engine.info.backend == "llamacpp" and engine.info.determinism == "numeric"
        assert engine.info.parameters == 134_515_008 and engine.info.weight_bytes == 96_576_768
        assert engine.info.state_bytes_per_token == 30 * 3 * (64 + 64) * 2
        assert engine.info.kernels.startswith("llama.cpp ")
        assert list(stages) == ["engine", "weights", "self-test"]
        assert stages["weights"] == sorted(stages["weights"]) and stages["weights"][-1] == 1.0
        pending, words = text.tokenize("The capital of France is"), b""
        engine.open_sequence(3)
        for index in range(3):
            row = StepRow(3, engine.length(3), tuple(pending), True, index, SamplingParameters(temperature=0.0))
            pending = engine.step([row])
            words += text.piece(pending[0])
        assert words.startswith(b" Paris.")
    finally:
        engine.close()


def test_a_load_frees_what_it_allocated_in_the_right_order(tiny_model: Any, load_llamacpp: Any, freed: list[str]) -> None:
    engine = load_llamacpp(tiny_model("llama"))
    assert freed == ["+model", "+context"]
    engine.close()
    engine.close()
    assert freed == ["+model", "+context", "-context", "-model"]


def test_a_failed_self_test_frees_everything(tiny_model: Any, refusal: Refusal, freed: list[str]) -> None:
    import numpy as np

    path = tiny_model("llama", tensors={"output_norm.weight": np.full(32, np.nan)})
    assert refusal(path).code == "self_test_failed"
    assert freed == ["+model", "+context", "-context", "-model"]


def test_a_context_that_cannot_be_made_frees_the_weights(
    tiny_model: Any, refusal: Refusal, freed: list[str], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = open_library(pair)
    monkeypatch.setattr(library.api, "llama_init_from_model", lambda model, parameters: library.ffi.NULL, raising=False)
    refused = refusal(tiny_model("llama"))
    assert refused.code == "out_of_memory" and "it gives no reason" in refused.message
    assert freed == ["+model", "-model"]


def test_a_load_that_is_stopped_frees_everything(tiny_model: Any, freed: list[str]) -> None:
    path = tiny_model("llama")
    with open_gguf(path) as file:
        loading = LlamacppBackend().load_engine(file, specification(path), lambda stage, done: None)
        while "+context" not in freed:
            next(loading)
        loading.close()
    assert freed == ["+model", "+context", "-context", "-model"]


def test_progress_that_fails_ends_the_load(tiny_model: Any, freed: list[str], finish: Any) -> None:
    def progress(stage: str, done: float) -> None:
        if stage == "weights":
            raise RuntimeError("the display is gone")

    path = tiny_model("llama")
    with open_gguf(path) as file, pytest.raises(RuntimeError, match="the display is gone"):
        finish(LlamacppBackend().load_engine(file, specification(path), progress))
    assert freed.count("+model") == freed.count("-model")


def test_a_file_that_llamacpp_does_not_load_is_refused_with_its_reason(tiny_model: Any, refusal: Refusal) -> None:
    refused = refusal(tiny_model("llama", drop=("blk.0.ffn_up.weight",)))
    assert refused.code == "model_refused"
    assert "blk.0.ffn_up.weight" in refused.message


def test_an_unknown_architecture_is_refused_by_name(tiny_model: Any, refusal: Refusal) -> None:
    refused = refusal(tiny_model("harbour"))
    assert refused.code == "unsupported_architecture"
    assert "harbour" in refused.message


def test_a_recurrent_state_is_refused_by_name(
    tiny_model: Any, refusal: Refusal, freed: list[str], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_library(pair).api, "llama_model_is_recurrent", lambda model: True, raising=False)
    refused = refusal(tiny_model("llama"))
    assert refused.code == "unsupported_architecture" and "recurrent state" in refused.message
    assert freed == ["+model", "-model"]


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"context": 1024}, "context_too_long", "trained for 512"),
        ({"state_bytes_max": 1000}, "state_memory_too_small", "4 sequences of 256 positions need 131072 bytes"),
        ({"sequences_max": 300}, "too_many_sequences", "256"),
        ({"gpu_layers": 7}, "gpu_layers_unsupported", "uses no GPU"),
        ({"gpu_layers": -1}, "gpu_layers_unsupported", "uses no GPU"),
    ],
)
def test_what_cannot_be_had_is_refused_before_weights_are_read(
    changes: dict[str, Any], code: str, words: str, tiny_model: Any, refusal: Refusal, freed: list[str]
) -> None:
    refused = refusal(tiny_model("llama"), **changes)
    assert refused.code == code and words in refused.message
    assert freed == []


def test_a_number_of_layers_that_means_nothing_is_a_setting_to_fix() -> None:
    with pytest.raises(InvalidConfiguration, match="gpu_layers is -2"):
        LlamacppBackend(gpu_layers=-2)


@pytest.mark.parametrize(("room", "context"), [(0, 256), (1, 512), (100, 512)])
def test_the_context_is_what_memory_allows(room: int, context: int, tiny_model: Any, load_llamacpp: Any) -> None:
    path = tiny_model("llama")
    with open_gguf(path) as file:
        unit = state_bytes(file.metadata) * 256 * 4
    assert load_llamacpp(path, state_bytes_max=unit * (1 + room) + 5).info.context_max == context


def test_a_probe_that_dies_leaves_the_process_able_to_load(
    tiny_model: Any, refusal: Refusal, load_llamacpp: Any, strange_library: Path
) -> None:
    path = tiny_model("llama")
    assert refusal(path, library=strange_library).code == "native_incompatible"
    assert load_llamacpp(path).info.vocabulary_size == 96


def test_an_engine_that_was_closed_evaluates_nothing(tiny_model: Any, load_llamacpp: Any) -> None:
    engine: LlamacppEngine = load_llamacpp(tiny_model("llama"))
    engine.open_sequence(0)
    engine.close()
    assert engine.sequences() == []
    with pytest.raises(DeviceFailed, match="was closed"):
        engine.open_sequence(0)


@pytest.mark.long
def test_fifty_loads_leave_memory_as_it_was(tiny_model: Any, load_llamacpp: Any) -> None:
    path = tiny_model("llama")
    held = []
    for _ in range(CYCLES_BEFORE + CYCLES):
        engine = load_llamacpp(path)
        engine.open_sequence(0)
        engine.step([StepRow(0, 0, (1, 2, 3), draw=True)])
        engine.close()
        held.append(anonymous_bytes())
    first, second = held[CYCLES_BEFORE : -CYCLES // 2], held[-CYCLES // 2 :]
    assert min(second) - min(first) < GROWTH_BYTES_MAX  # what leaks is never given back; all else comes and goes


def anonymous_bytes() -> int:
    """Memory of this process's own, without what the allocator keeps for later where it can be told to let go of that."""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("this system does not tell what memory a process has of its own")
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    with open("/proc/self/status") as lines:
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "VmSwap")))


def test_nothing_native_is_printed(
    tiny_model: Any, load_llamacpp: Any, refusal: Refusal, capfd: pytest.CaptureFixture[str]
) -> None:
    load_llamacpp(tiny_model("llama"))
    refusal(tiny_model("llama", drop=("blk.1.ffn_down.weight",)))
    assert capfd.readouterr() == ("", "")
