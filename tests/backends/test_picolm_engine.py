"""What is the torch engine's own: logits, pages, failures in the middle of a step, and torch's globals."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from tripower.backends.picolm.engine import PicolmEngine
from tripower.runtime.engine import SamplingParameters, StepRow
from tripower.runtime.kernel.errors import DeviceFailed, InvalidRequest

GREEDY = SamplingParameters(temperature=0.0)
TOKENS = np.random.default_rng(8).integers(0, 96, 150).tolist()


FAMILIES: dict[str, dict[str, Any]] = {"llama": {}, "gemma2": {}, "gemma3": {}, "qwen3moe": {"experts": 4}}


@pytest.fixture(params=FAMILIES)
def engine(request: pytest.FixtureRequest, tiny_model: Any, load_torch: Any) -> PicolmEngine:
    path = tiny_model(request.param, layers=6, **FAMILIES[request.param])
    return load_torch(path, context=256, sequences_max=3)  # type: ignore[no-any-return]


def fresh_logits(engine: PicolmEngine, tokens: list[int]) -> Any:
    engine.open_sequence(1000)
    try:
        return engine.logits(1000, tokens)
    finally:
        engine.close_sequence(1000)


def assert_close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_logits_do_not_depend_on_how_a_prompt_is_chunked(engine: PicolmEngine, chunk: int) -> None:
    engine.open_sequence(0)
    parts = [engine.logits(0, TOKENS[start : start + chunk]) for start in range(0, len(TOKENS), chunk)]
    assert_close(np.concatenate(parts), fresh_logits(engine, TOKENS))


def test_logits_are_those_that_a_step_draws_from(engine: PicolmEngine) -> None:
    engine.open_sequence(0)
    drawn = engine.step([StepRow(0, 0, tuple(TOKENS), draw=True, sampling=GREEDY)])
    assert drawn == [int(fresh_logits(engine, TOKENS)[-1].argmax())]


def test_the_tail_of_a_fork_has_its_own_logits(engine: PicolmEngine) -> None:
    engine.open_sequence(0)
    engine.logits(0, TOKENS[:100])
    engine.fork(0, 1, 70)
    assert_close(engine.logits(1, TOKENS[:50]), fresh_logits(engine, TOKENS[:70] + TOKENS[:50])[70:])
    assert_close(engine.logits(0, TOKENS[100:]), fresh_logits(engine, TOKENS)[100:])


def test_a_fork_takes_only_the_pages_that_it_writes(engine: PicolmEngine) -> None:
    engine.open_sequence(0)
    engine.logits(0, TOKENS)
    free = engine.pages_free
    engine.fork(0, 1, 150)
    assert engine.pages_free == free
    engine.logits(1, TOKENS[:1])
    assert engine.pages_free == free - 1


def test_all_pages_return_when_sequences_close(engine: PicolmEngine) -> None:
    free = engine.pages_free
    for sequence in range(3):
        engine.open_sequence(sequence)
        engine.logits(sequence, TOKENS)
    engine.close_sequence(2)
    engine.fork(0, 2, 100)
    engine.logits(2, TOKENS[:30])
    assert engine.pages_free < free
    for sequence in range(3):
        engine.close_sequence(sequence)
    assert engine.pages_free == free


class Broken(Exception):
    """What a native library might raise."""


@pytest.mark.parametrize("layer", [0, 3])
def test_a_failure_in_the_middle_of_a_step_leaves_every_sequence_as_it_was(
    engine: PicolmEngine, layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sequence in (0, 1):
        engine.open_sequence(sequence)
        engine.logits(sequence, TOKENS[: 60 + sequence])
    free, write = engine.pages_free, engine._cache.write

    def failing(index: int, *arguments: Any) -> None:
        write(index, *arguments)
        if index == layer:
            raise Broken("the device went away")

    monkeypatch.setattr(engine._cache, "write", failing)
    with pytest.raises(DeviceFailed, match="the device went away") as caught:
        engine.step([StepRow(0, 60, (5,) * 20, draw=True), StepRow(1, 61, (6,) * 3, draw=False)])
    assert isinstance(caught.value.__cause__, Broken)
    monkeypatch.undo()
    assert (engine.length(0), engine.length(1), engine.pages_free) == (60, 61, free)
    assert_close(engine.logits(0, TOKENS[60:]), fresh_logits(engine, TOKENS)[60:])


def test_keyboard_interrupts_pass_and_leave_sequences_as_they_were(
    engine: PicolmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    engine.open_sequence(0)
    monkeypatch.setattr(engine._cache, "write", interrupted)
    free = engine.pages_free
    with pytest.raises(KeyboardInterrupt):
        engine.step([StepRow(0, 0, (1, 2), draw=True)])
    assert (engine.length(0), engine.pages_free) == (0, free)


def test_values_that_are_not_finite_do_not_outlive_their_step(engine: PicolmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.open_sequence(0)
    engine.logits(0, TOKENS[:10])
    assert engine._model is not None
    with monkeypatch.context() as poison:
        poison.setattr(engine._model, "embedding", engine._model.embedding * torch.nan)
        with pytest.raises(DeviceFailed) as caught:
            engine.step([StepRow(0, 10, (5,) * 100, draw=True, sampling=GREEDY)])
    assert caught.value.code == "invalid_logits"
    assert engine.length(0) == 10
    assert_close(engine.logits(0, TOKENS[10:12]), fresh_logits(engine, TOKENS[:12])[10:])
    engine.open_sequence(1)
    assert_close(engine.logits(1, TOKENS), fresh_logits(engine, TOKENS))


def test_settings_of_torch_are_left_alone(engine: PicolmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def state() -> tuple[Any, ...]:
        return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(), torch.initial_seed())

    before = state()
    engine.open_sequence(0)
    engine.step([StepRow(0, 0, (1, 2, 3), draw=True)])
    assert state() == before


def test_another_default_type_of_torch_does_not_matter(engine: PicolmEngine) -> None:
    expected = fresh_logits(engine, TOKENS)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = fresh_logits(engine, TOKENS)
    finally:
        torch.set_default_dtype(default)
    assert found.dtype == np.float32
    assert np.array_equal(found, expected)


def test_logits_of_a_sequence_that_is_not_open_are_refused(engine: PicolmEngine) -> None:
    with pytest.raises(InvalidRequest):
        engine.logits(4, [1])


def test_closing_frees_the_model(tiny_model: Any, load_torch: Any) -> None:
    engine = load_torch(tiny_model("llama"))
    model, pool = weakref.ref(engine._model), weakref.ref(engine._cache.pool)
    engine.close()
    gc.collect()
    assert model() is None and pool() is None
