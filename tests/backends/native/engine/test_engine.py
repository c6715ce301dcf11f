"""The native engine's steps, logits and memory: large prompts in small steps, more sequences than slots, failures, several engines."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import psutil
import pytest

from tests.backends.native.engine.rigs import (
    GREEDY,
    SAMPLED,
    VOCABULARY,
    build_engine,
    logits_alone,
    prefill,
    same_bits,
    tokens_of,
)
from tripower.backends.picolm.native.engine import NativeEngine
from tripower.runtime.engine import StepRow
from tripower.runtime.engine.step_table import NOT_DRAWN
from tripower.runtime.kernel.errors import DeviceFailed, InvalidRequest

TOKENS = tokens_of(11, 190)


@pytest.fixture
def path(tiny_model: Any) -> Any:
    return tiny_model("llama", kind="Q8_0")


def drawing(engine: NativeEngine, sequence: int, tokens: list[int], sampling: Any = GREEDY, index: int = 0) -> StepRow:
    return StepRow(sequence, engine.length(sequence), tuple(tokens), True, index, sampling, tokens, len(tokens))


@pytest.mark.parametrize("rows_max", [4, 7, 64])
def test_a_prompt_of_more_rows_than_a_step_holds_passes_in_several(rows_max: int, path: Any, make_engine: Any) -> None:
    engine = make_engine(path, rows_max=rows_max)
    expected = logits_alone(engine, TOKENS)
    for sequence in (0, 1, 2):
        engine.open_sequence(sequence)
    rows = [drawing(engine, 0, TOKENS), StepRow(1, 0, tuple(TOKENS[:9]), draw=False), drawing(engine, 2, TOKENS[:1], SAMPLED)]
    drawn = engine.step(rows)
    engine.open_sequence(3)
    sampled = engine.step([drawing(engine, 3, TOKENS[:1], SAMPLED)])
    assert drawn == [int(expected[-1].argmax()), NOT_DRAWN, *sampled]
    assert [engine.length(sequence) for sequence in (0, 1, 2)] == [190, 9, 1]
    assert same_bits(engine.logits(1, TOKENS[9:40]), expected[9:40])


def test_a_prompt_may_take_thousands_of_steps(tiny_model: Any, make_engine: Any) -> None:
    engine = make_engine(tiny_model("llama", context=2000), context=2000, rows_max=1, slots_max=1, sequences_max=1)
    engine.open_sequence(0)
    assert engine.step([drawing(engine, 0, [5] * 2000)])[0] >= 0
    assert engine.length(0) == 2000


def test_more_sequences_than_slots_pass_in_several_steps(path: Any, make_engine: Any) -> None:
    few, many = (make_engine(path, slots_max=slots, sequences_max=12) for slots in (3, 12))
    found = []
    for engine in (few, many):
        rows = []
        for sequence in range(12):
            engine.open_sequence(sequence)
            tokens = TOKENS[sequence : 5 + 3 * sequence]
            rows.append(drawing(engine, sequence, tokens, SAMPLED if sequence % 2 else GREEDY) if sequence != 7 else
                        StepRow(sequence, 0, tuple(tokens), draw=False))  # fmt: skip
        drawn = engine.step(rows)
        again = engine.step([drawing(engine, sequence, [3], index=1) for sequence in range(12)])
        found.append((drawn, again, [engine.length(sequence) for sequence in range(12)]))
    assert found[0] == found[1] and found[0][0][7] == NOT_DRAWN


def test_a_failure_in_a_later_part_takes_the_earlier_ones_back(
    path: Any, make_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(path, slots_max=2, rows_max=16)
    for sequence in range(4):
        engine.open_sequence(sequence)
        prefill(engine, sequence, TOKENS[:sequence])
    free, workers, runs = engine.pages_free, engine._program._workers, 0
    original = workers.run

    def failing() -> None:
        nonlocal runs
        runs += 1
        if runs == 5:
            raise MemoryError("no room")
        original()

    with monkeypatch.context() as patch:
        patch.setattr(workers, "run", failing)
        with pytest.raises(MemoryError):
            engine.step([drawing(engine, sequence, TOKENS[: 30 + sequence]) for sequence in range(4)])
    assert runs == 5
    assert [engine.length(sequence) for sequence in range(4)] == [0, 1, 2, 3] and engine.pages_free == free
    assert same_bits(engine.logits(3, TOKENS[3:50]), logits_alone_of(engine, TOKENS[:50])[3:])


def logits_alone_of(engine: NativeEngine, tokens: list[int]) -> Any:
    """Through a place that is free."""
    engine.close_sequence(0)
    return logits_alone(engine, tokens)


def test_logits_are_those_that_a_step_draws_from(path: Any, make_engine: Any) -> None:
    engine = make_engine(path)
    expected = logits_alone(engine, TOKENS[:40])
    engine.open_sequence(0)
    assert engine.step([drawing(engine, 0, TOKENS[:40])]) == [int(expected[-1].argmax())]
    engine.open_sequence(1)
    assert same_bits(engine.logits(1, TOKENS[:40]), expected)


def test_logits_of_a_batch_are_those_of_each_row(path: Any, make_engine: Any) -> None:
    engine = make_engine(path)
    rows = []
    for sequence in range(4):
        engine.open_sequence(sequence)
        prefill(engine, sequence, TOKENS[: 7 * sequence])
        rows.append(StepRow(sequence, 7 * sequence, (TOKENS[7 * sequence],), draw=False))
    found = engine.batch_logits(rows)
    engine.close_sequence(0)
    assert same_bits(found, logits_alone(engine, TOKENS[:22])[[0, 7, 14, 21]])


@pytest.mark.parametrize("call", ["logits", "batch_logits"])
def test_logits_of_rows_that_break_the_contract_are_refused(call: str, path: Any, make_engine: Any) -> None:
    engine = make_engine(path)
    engine.open_sequence(0)
    for sequence, token in ((4, 1), (0, VOCABULARY)):
        with pytest.raises(InvalidRequest):
            engine.logits(sequence, [token]) if call == "logits" else engine.batch_logits(
                [StepRow(sequence, 0, (token,), draw=False)]
            )
    assert engine.length(0) == 0


def test_trim_and_fork_over_used_pages_change_no_bit(path: Any, make_engine: Any) -> None:
    engine = make_engine(path)
    other = tokens_of(12, 60)
    expected = logits_alone(engine, TOKENS[:70] + other)
    engine.open_sequence(0)
    prefill(engine, 0, TOKENS)
    engine.trim(0, 70)
    engine.fork(0, 1, 66)
    engine.fork(1, 2, 64)
    for sequence in (0, 1, 2):
        start = engine.length(sequence)
        assert same_bits(engine.logits(sequence, (TOKENS[:70] + other)[start:]), expected[start:])


def test_states_of_all_sequences_have_room_at_once(path: Any, make_engine: Any) -> None:
    engine = make_engine(path)
    for sequence in range(4):
        engine.open_sequence(sequence)
        prefill(engine, sequence, [sequence] * 200)
    with pytest.raises(DeviceFailed) as caught:
        engine.open_sequence(4)
    assert caught.value.code == "state_memory_exhausted"
    assert engine.pages_free == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_closing_one_engine_leaves_others_alone(threads: int, path: Any, make_engine: Any) -> None:
    first, second = (make_engine(path, threads=threads) for _ in range(2))
    expected = logits_alone(first, TOKENS[:30])
    for engine in (first, second):
        engine.open_sequence(0)
    for start in range(0, 30, 10):
        for engine in (first, second):
            assert same_bits(engine.logits(0, TOKENS[start : start + 10]), expected[start : start + 10])
    first.close()
    first.close()
    assert same_bits(logits_alone(second, TOKENS[:30]), expected)


def test_engines_on_lanes_of_their_own_run_at_once(path: Any, make_engine: Any, tiny_model: Any) -> None:
    paths = [path, tiny_model("gemma3", layers=3)]
    expected = [logits_alone(make_engine(each), TOKENS[:60]) for each in paths]
    found: dict[int, list[bool]] = {0: [], 1: []}

    def lane(index: int) -> None:
        for _ in range(5):
            engine = build_engine(paths[index], threads=2)
            found[index].append(same_bits(logits_alone(engine, TOKENS[:60]), expected[index]))
            engine.close()

    lanes = [threading.Thread(target=lane, args=(index,)) for index in (0, 1)]
    for each in lanes:
        each.start()
    for each in lanes:
        each.join()
    assert found == {0: [True] * 5, 1: [True] * 5}


def test_closing_frees_threads_descriptors_and_memory(path: Any) -> None:
    process = psutil.Process()
    descriptors, threads = process.num_fds(), threading.active_count()
    engine = build_engine(path, threads=4)
    logits_alone(engine, TOKENS[:5])
    assert threading.active_count() == threads + 3 and engine._program is not None
    program = weakref.ref(engine._program)
    engine.close()
    gc.collect()
    assert program() is None
    assert (process.num_fds(), threading.active_count()) == (descriptors, threads)


def test_a_closed_engine_says_so(path: Any, make_engine: Any) -> None:
    engine = make_engine(path)
    engine.open_sequence(0)
    engine.close()
    with pytest.raises(AssertionError, match="closed"):
        engine.step([StepRow(0, 0, (1,), draw=False)])
    engine.close_sequence(0)


def test_building_and_closing_does_not_grow(tiny_model: Any) -> None:
    path = tiny_model("llama", vocabulary=4000, width=64, head_size=16)
    process, sizes = psutil.Process(), []
    for _ in range(20):
        engine = build_engine(path, threads=2)
        logits_alone(engine, TOKENS[:20])
        engine.close()
        sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[5] < 10 << 20


def test_logits_are_float32_in_order_of_the_tokens(path: Any, make_engine: Any) -> None:
    engine = make_engine(path)
    engine.open_sequence(0)
    found = engine.logits(0, TOKENS[:3])
    assert found.dtype == np.float32 and found.shape == (3, VOCABULARY)
