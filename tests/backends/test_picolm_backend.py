"""Loading: boundaries, what is refused before weights are read, a context that fits, and nothing left after a failure."""

from __future__ import annotations

import gc
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from tripower.backends.picolm import backend
from tripower.backends.picolm.backend import PicolmBackend, choose_context
from tripower.backends.picolm.decoder import Decoder, RopeShape
from tripower.runtime.engine import LoadedModel, LoadSpecification, SamplingParameters, StepRow, StepTable
from tripower.runtime.engine.step_table import NOT_DRAWN
from tripower.runtime.kernel.errors import ModelRefused

PAGE_BYTES = 64 * 1024  # of SHAPE: 2 layers, keys and values, 2 heads of 32 floats, 64 positions
SHAPE = Decoder(
    architecture="llama",
    vocabulary_size=96,
    context_trained=1000,
    layers=2,
    width=64,
    feed_forward=64,
    heads=2,
    kv_heads=2,
    head_size=32,
    norm_epsilon=1e-5,
    attention_scale=1.0,
    activation="silu",
    rope_pairs="adjacent",
    ropes=(RopeShape(32, 10_000.0),),
    layer_rope=(0, 0),
    windows=(0, 0),
)


def specification(source: Path | str = "m.gguf", **changes: Any) -> LoadSpecification:
    settings: dict[str, Any] = {
        "name": "m",
        "source": str(source),
        "context": 0,
        "sequences_max": 2,
        "state_bytes_max": 1 << 30,
        "threads": 0,
        "prefill_chunk": 64,
    }
    return LoadSpecification(**(settings | changes))


@pytest.fixture
def without_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no tokenizer."""
    monkeypatch.setattr(backend, "make_text_layer", lambda file: None)


def load(
    settings: LoadSpecification, at_boundary: Callable[[int], None] = lambda count: None, *, kernels: str = "auto"
) -> tuple[LoadedModel, int, list[tuple[str, float]]]:
    """The model, the number of boundaries before it, the progress that was told."""
    told: list[tuple[str, float]] = []
    loading = PicolmBackend(kernels).load(settings, lambda stage, done: told.append((stage, done)))
    for count, model in enumerate(loading):
        if model is not None:
            return model, count, told
        at_boundary(count)
    raise AssertionError("loading ended without a model")


@pytest.mark.parametrize(
    ("asked", "pages_each", "expected"),
    [(0, 100, 1000), (0, 10, 640), (0, 4, 256), (300, 100, 300), (300, 5, 300), (1000, 16, 1000), (64, 1, 64)],
)
def test_the_context_is_what_was_asked_for_or_what_memory_allows(asked: int, pages_each: int, expected: int) -> None:
    settings = specification(context=asked, state_bytes_max=2 * pages_each * PAGE_BYTES)
    assert choose_context(SHAPE, settings) == expected


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"context": 1001}, "context_too_long", "context"),
        ({"context": 300, "state_bytes_max": 2 * 5 * PAGE_BYTES - 1}, "state_memory_too_small", "state_bytes_max"),
        ({"state_bytes_max": 2 * 4 * PAGE_BYTES - 1}, "state_memory_too_small", "state_bytes_max"),
        ({"state_bytes_max": 0}, "state_memory_too_small", "state_bytes_max"),
    ],
)
def test_a_context_that_cannot_be_had_is_refused_with_the_cure(changes: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ModelRefused) as caught:
        choose_context(SHAPE, specification(**changes))
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.usefixtures("without_text")
def test_loading_stops_at_a_boundary_after_each_tensor_and_tells_progress(tiny_model: Any) -> None:
    path = tiny_model("llama")
    model, boundaries, told = load(specification(path), kernels="torch")
    tensors = 2 + 2 * 9
    assert boundaries >= tensors + 2
    assert [stage for stage, _ in told] == ["weights"] * tensors + ["self-test"]
    fractions = [done for stage, done in told if stage == "weights"]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0
    assert model.engine.info.parameters > 0
    assert model.engine.info.weight_bytes == 4 * model.engine.info.parameters
    assert model.engine.info.state_bytes_per_token == 2 * 2 * 2 * 8 * 4


@pytest.mark.usefixtures("without_text")
def test_a_loaded_model_has_no_open_sequence_and_all_its_room(tiny_model: Any) -> None:
    engine = load(specification(tiny_model("gemma3"), context=100))[0].engine
    for sequence in (0, 1):
        engine.open_sequence(sequence)
    engine.step([StepRow(sequence, 0, (1,) * 100, draw=False) for sequence in (0, 1)])


@pytest.mark.usefixtures("without_text")
def test_a_file_that_is_replaced_while_it_is_read_is_refused(tiny_model: Any, tmp_path: Path) -> None:
    path, other = tmp_path / "m.gguf", tmp_path / "other.gguf"
    for copy in (path, other):
        shutil.copy(tiny_model("llama"), copy)
    with pytest.raises(ModelRefused, match="load it again") as caught:
        load(specification(path), lambda count: os.replace(other, path) if count == 5 else None)
    assert caught.value.code == "source_changed"


@pytest.mark.usefixtures("without_text")
@pytest.mark.parametrize("size", [0, 3000])
def test_a_file_that_is_cut_while_it_is_read_is_refused(size: int, tiny_model: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(tiny_model("llama"), path)
    with pytest.raises(ModelRefused, match="load it again") as caught:
        load(specification(path), lambda count: os.truncate(path, size) if count == 5 else None)
    assert caught.value.code == "source_changed"


@pytest.mark.usefixtures("without_text")
def test_replacing_the_file_of_a_loaded_model_does_no_harm(tiny_model: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(tiny_model("llama"), path)
    engine = load(specification(path))[0].engine
    path.write_bytes(b"")
    engine.open_sequence(0)
    assert engine.step([StepRow(0, 0, (1, 2), draw=True)])[0] >= 0


@pytest.mark.usefixtures("without_text")
@pytest.mark.parametrize("name", ["output_norm.weight", "blk.0.ffn_norm.weight"])
def test_weights_that_give_no_finite_logits_fail_the_self_test(name: str, tiny_model: Any) -> None:
    with pytest.raises(ModelRefused) as caught:
        load(specification(tiny_model("llama", tensors={name: np.full(32, np.nan)})))
    assert caught.value.code == "self_test_failed"


@pytest.mark.usefixtures("without_text")
def test_what_is_not_ours_becomes_a_refusal(tiny_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(error: Exception) -> Callable[..., Iterator[None]]:
        def read(*arguments: Any) -> Iterator[None]:
            raise error
            yield

        return read

    for error, code in ((MemoryError("no room"), "out_of_memory"), (RuntimeError("odd"), "model_refused")):
        monkeypatch.setattr(backend, "read_weights", failing(error))
        with pytest.raises(ModelRefused) as caught:
            load(specification(tiny_model("llama")), kernels="torch")
        assert caught.value.code == code
        assert caught.value.__cause__ is error


@pytest.mark.usefixtures("without_text")
@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_a_load_that_is_given_up_leaves_no_file_and_no_thread(kernels: str, tiny_model: Any) -> None:
    settings = specification(tiny_model("llama"), threads=2 if kernels == "native" else 0)
    for _ in range(2):  # the first one opens what stays open, and measures what is kept
        model, boundaries, _ = load(settings, kernels=kernels)
        model.engine.close()
    process = psutil.Process()
    gc.collect()
    before, threads = process.num_fds(), threading.active_count()
    for boundary in range(boundaries):
        loading = PicolmBackend(kernels).load(settings, lambda stage, done: None)
        for _ in range(boundary + 1):
            assert next(loading) is None
        loading.close()  # type: ignore[attr-defined] # a generator, as an iterator
        assert (process.num_fds(), threading.active_count()) == (before, threads)


@pytest.mark.usefixtures("without_text")
def test_a_native_load_tells_its_stages_and_stops_between_them(tiny_model: Any) -> None:
    settings = specification(tiny_model("llama", kind="Q8_0"))
    model, boundaries, told = load(settings, kernels="native")
    stages = list(dict.fromkeys(stage for stage, _ in told))
    assert stages == ["weights", "code", "tiles", "certificate", "costs", "self-test"]
    assert boundaries > 2 + 2 * 9
    info = model.engine.info
    assert info.certificate is not None and info.determinism == "exact" and info.kernels.startswith("native code for")
    assert info.weight_bytes < 2 * info.parameters
    model.engine.close()


@pytest.mark.usefixtures("without_text")
def test_auto_takes_torch_where_kernels_cannot_and_says_why_and_native_insists(tiny_model: Any) -> None:
    path = tiny_model("llama", head_size=12)
    assert load(specification(path))[0].engine.info.kernels == "torch float32 (heads of 12 elements)"
    with pytest.raises(ModelRefused, match="heads of 12 elements") as caught:
        load(specification(path), kernels="native")
    assert caught.value.code == "kernels_unavailable"


@pytest.mark.usefixtures("without_text")
def test_float_weights_may_have_rows_of_any_length(tiny_model: Any) -> None:
    engine = load(specification(tiny_model("llama", width=48, kind="F16", feed_forward=80)), kernels="native")[0].engine
    assert engine.info.kernels.startswith("native code")
    engine.close()


@pytest.mark.usefixtures("without_text")
def test_loading_and_unloading_does_not_grow(tiny_model: Any) -> None:
    path = tiny_model("llama", vocabulary=4000, width=64, head_size=16)
    process = psutil.Process()
    sizes = []
    for _ in range(30):
        engine = load(specification(path))[0].engine
        engine.open_sequence(0)
        engine.step([StepRow(0, 0, (1,) * 100, draw=True)])
        engine.close()
        sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[5] < 10 << 20


@pytest.mark.usefixtures("without_text")
def test_threads_are_set_only_when_a_number_is_given(tiny_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    path = tiny_model("llama")
    for threads in (0, 2, 1):
        load(specification(path, threads=threads), kernels="torch")
    assert asked == [1]


@pytest.mark.parametrize(
    ("source", "code"),
    [("no such file.gguf", "not_found"), (__file__, "not_gguf"), (os.path.dirname(__file__), "missing_file")],
)
def test_what_is_no_model_file_is_refused(source: str, code: str) -> None:
    with pytest.raises(ModelRefused) as caught:
        load(specification(source))
    assert caught.value.code == code


@pytest.mark.parametrize(
    "options",
    [
        {"drop": ("output_norm.weight",)},
        {"metadata": {"llama.rope.scaling.type": "yarn"}},
        {"metadata": {"llama.context_length": 10**9, "llama.block_count": 1000}},
    ],
)
def test_refusals_come_before_anything_is_allocated(
    options: dict[str, Any], tiny_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any, **options: Any) -> None:
        raise AssertionError("something was allocated")

    for module, name in ((torch, "empty"), (torch, "zeros"), (backend, "make_text_layer"), (backend, "read_weights")):
        monkeypatch.setattr(module, name, never)
    with pytest.raises(ModelRefused):
        load(specification(tiny_model("llama", **options)))


def test_smollm2_knows_a_capital(smollm2_path: Path) -> None:
    model = load(specification(smollm2_path, context=256, sequences_max=1))[0]
    engine, text = model.engine, model.text
    prompt = text.tokenize("The capital of France is")
    table = StepTable(slots_max=1, steps_max=8, rows_max=64)
    table.clear(steps_max=8)
    engine.open_sequence(0)
    table.add(
        sequence=0,
        position=0,
        pending=prompt,
        remaining=8,
        output_index=0,
        sampling=SamplingParameters(temperature=0.0),
        ends=text.end_tokens,
        history=prompt,
        prompt_length=len(prompt),
    )
    for _ in engine.run(table):
        pass
    drawn = table.drawn[: table.steps_done, 0].tolist()
    answer = b"".join(text.piece(token) for token in drawn if token != NOT_DRAWN)
    assert b"Paris" in answer
    engine.close()
