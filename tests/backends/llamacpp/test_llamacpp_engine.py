"""The engine beside llama.cpp itself, which a child process runs: the same logits, the same greedy text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tripower.backends.llamacpp.engine import LlamacppEngine
from tripower.runtime.engine import SamplingParameters, StepRow
from tripower.runtime.kernel.errors import DeviceFailed, InvalidRequest

GREEDY = SamplingParameters(temperature=0.0)
POSITIONS = 40
TEXT = "The lighthouse keeper wrote a letter to the harbour:"


def relative_difference(found: Any, expected: Any) -> float:
    """The largest absolute difference over the largest absolute value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def generate(engine: LlamacppEngine, prompt: list[int], count: int) -> list[int]:
    engine.open_sequence(40)
    drawn: list[int] = []
    for index in range(count):
        pending = tuple(drawn[-1:] or prompt)
        drawn += engine.step([StepRow(40, engine.length(40), pending, True, index, GREEDY)])
    engine.close_sequence(40)
    return drawn


@pytest.mark.parametrize(("architecture", "options"), [("llama", {}), ("gemma3", {"layers": 6}), ("llama", {"kind": "Q4_0"})])
def test_tiny_logits_equal_those_of_llamacpp(
    architecture: str, options: dict[str, Any], tiny_model: Any, load_llamacpp: Any, llamacpp: Any
) -> None:
    path = tiny_model(architecture, **options)
    ids = np.random.default_rng(1).integers(0, 96, POSITIONS).tolist()
    expected = llamacpp("logits", path, ids, "--threads", "1")
    engine = load_llamacpp(path, sequences_max=POSITIONS)
    engine.open_sequence(0)
    assert np.array_equal(engine.logits(0, ids), expected)


@pytest.mark.parametrize("model", ["smollm2_path", pytest.param("gemma3_path", marks=pytest.mark.long)])
def test_greedy_text_is_what_llamacpp_would_write(
    model: str, request: pytest.FixtureRequest, load_llamacpp: Any, llamacpp: Any
) -> None:
    """Each token is the most likely one to llama.cpp, or is within what a pass of other width changes in its logits."""
    path: Path = request.getfixturevalue(model)
    [prompt] = llamacpp("tokenize", path, [{"text": TEXT, "add_special": True}])
    engine = load_llamacpp(path, context=256, sequences_max=2)
    drawn = generate(engine, prompt, POSITIONS)
    theirs = llamacpp("logits", path, prompt + drawn, "--threads", "1")
    engine.open_sequence(0)
    ours = engine.logits(0, prompt + drawn)
    assert relative_difference(ours, theirs) < 0.05
    for position, token in enumerate(drawn, len(prompt) - 1):
        row = theirs[position]
        assert row.max() - row[token] <= 2 * np.abs(row - ours[position]).max()


def test_a_step_of_more_rows_than_a_batch_holds_is_several_calls(tiny_model: Any, load_llamacpp: Any) -> None:
    path = tiny_model("llama", metadata={"llama.context_length": 4096})
    engine: LlamacppEngine = load_llamacpp(path, context=2304, sequences_max=2)
    prompts = [np.random.default_rng(seed).integers(0, 96, 2300).tolist() for seed in (1, 2)]
    for sequence in (0, 1):
        engine.open_sequence(sequence)
    together = engine.step([StepRow(each, 0, tuple(prompts[each]), True, 0, GREEDY) for each in (1, 0)])
    for sequence in (0, 1):
        engine.open_sequence(sequence)
        for start in (0, 1000):
            row = StepRow(sequence, start, tuple(prompts[sequence][start : 1000 if not start else None]), start > 0, 0, GREEDY)
            [alone] = engine.step([row])
        assert together[1 - sequence] == alone


def test_places_are_taken_lowest_first_and_rows_answer_in_their_own_order(tiny_model: Any, load_llamacpp: Any) -> None:
    engine: LlamacppEngine = load_llamacpp(tiny_model("llama"), context=256)
    for sequence in (30, 10, 20, 40):
        engine.open_sequence(sequence)
    engine.close_sequence(10)
    engine.open_sequence(99)  # takes the place of 10, between those of 30 and 20
    prompts = {sequence: tuple(range(sequence % 50, sequence % 50 + 9)) for sequence in (20, 99, 40, 30)}
    rows = [StepRow(sequence, 0, prompt, True, 0, GREEDY) for sequence, prompt in prompts.items()]
    drawn = engine.step(rows)
    for row, token in zip(rows, drawn, strict=True):
        engine.trim(row.sequence, 0)
        assert engine.step([row]) == [token]


@pytest.mark.parametrize("failure", [1, 2, -1, -3])
def test_a_failed_native_call_changes_nothing(
    failure: int, tiny_model: Any, load_llamacpp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: LlamacppEngine = load_llamacpp(tiny_model("llama"), context=256)
    for sequence in (0, 1):
        engine.open_sequence(sequence)
        engine.step([StepRow(sequence, 0, (1, 2, 3), draw=False)])
    rows = [StepRow(sequence, 3, (4, 5), True, 0, GREEDY) for sequence in (0, 1)]
    expected = engine.step(rows)
    for sequence in (0, 1):
        engine.trim(sequence, 3)
    real = engine._context._api

    class Failing:
        """Evaluates, then says that it did not."""

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def llama_decode(self, context: Any, batch: Any) -> int:
            real.llama_decode(context, batch)
            return failure

    with monkeypatch.context() as broken:
        broken.setattr(engine._context, "_api", Failing())
        with pytest.raises(DeviceFailed, match=f"status {failure}") as caught:
            engine.step(rows)
    assert caught.value.code == ("state_memory_exhausted" if failure == 1 else "device_failed")
    assert [engine.length(sequence) for sequence in (0, 1)] == [3, 3]
    assert engine.step(rows) == expected


def test_a_state_that_cannot_be_trimmed_exactly_is_refused(
    tiny_model: Any, load_llamacpp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: LlamacppEngine = load_llamacpp(tiny_model("llama"), context=256)
    engine.open_sequence(0)
    engine.step([StepRow(0, 0, (1, 2, 3, 4), draw=False)])
    real = engine._context._api

    class Forgetful:
        """Says that old positions are gone, as a reduced cache would."""

        def __getattr__(self, name: str) -> Any:
            return (lambda memory, sequence: 2) if name == "llama_memory_seq_pos_min" else getattr(real, name)

    with monkeypatch.context() as reduced:
        reduced.setattr(engine._context, "_api", Forgetful())
        with pytest.raises(DeviceFailed) as caught:
            engine.trim(0, 3)
        assert caught.value.code == "state_refused"


def test_a_window_that_slid_can_be_trimmed_to_any_length(tiny_model: Any, load_llamacpp: Any) -> None:
    engine: LlamacppEngine = load_llamacpp(tiny_model("gemma3", layers=6, window=8), context=256)
    prompt = np.random.default_rng(3).integers(0, 96, 200).tolist()
    engine.open_sequence(0)
    engine.step([StepRow(0, 0, tuple(prompt), draw=False)])
    engine.trim(0, 20)
    [after_trim] = engine.step([StepRow(0, 20, (7, 8, 9), True, 0, GREEDY)])
    engine.open_sequence(0)
    assert engine.step([StepRow(0, 0, (*prompt[:20], 7, 8, 9), True, 0, GREEDY)]) == [after_trim]


def test_a_fork_onto_an_open_sequence_is_refused(tiny_model: Any, load_llamacpp: Any) -> None:
    engine: LlamacppEngine = load_llamacpp(tiny_model("llama"), context=256)
    for sequence in (0, 1):
        engine.open_sequence(sequence)
    with pytest.raises(InvalidRequest, match="is open already"):
        engine.fork(0, 1, 0)
