"""The loop without Python gives the tokens that single steps give, and ends where it is asked to."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.constraints import Script
from tripower.backends.llamacpp import run_ahead
from tripower.backends.llamacpp.engine import LlamacppEngine
from tripower.backends.llamacpp.native import Context
from tripower.backends.llamacpp.run_ahead import BATCH_BYTES, compiled, decodes_plainly
from tripower.backends.picolm.native.target import narrower_targets
from tripower.runtime.engine import SamplingParameters, StepTable
from tripower.runtime.engine.step_table import INVALID_LOGITS, NOT_DRAWN
from tripower.runtime.kernel.errors import DeviceFailed, InvalidRequest

GREEDY, SAMPLED = SamplingParameters(temperature=0.0), SamplingParameters(temperature=0.8, seed=5)
STEPS = 24


class BatchBytes(ctypes.Structure):
    """A struct of the size of a batch, passed by value."""

    _fields_ = (("words", ctypes.c_int64 * (BATCH_BYTES // 8)),)


@pytest.fixture
def engine(tiny_model: Any, load_llamacpp: Any) -> LlamacppEngine:
    engine: LlamacppEngine = load_llamacpp(tiny_model("llama"), context=256)
    return engine


def table_for(
    engine: LlamacppEngine,
    prompts: dict[int, list[int]],
    *,
    remaining: int = 100,
    ends: frozenset[int] = frozenset(),
    sampling: SamplingParameters = GREEDY,
) -> StepTable:
    table = StepTable(slots_max=6, steps_max=64, rows_max=64)
    table.clear(steps_max=STEPS)
    for sequence, prompt in prompts.items():
        engine.open_sequence(sequence)
        table.add(
            sequence=sequence,
            position=0,
            pending=prompt,
            remaining=remaining,
            output_index=0,
            sampling=sampling,
            ends=ends,
            history=prompt,
            prompt_length=len(prompt),
        )
    return table


def tokens_of(table: StepTable, slot: int) -> list[int]:
    return [token for token in table.drawn[: table.steps_done, slot].tolist() if token != NOT_DRAWN]


def by_steps(engine: LlamacppEngine, monkeypatch: pytest.MonkeyPatch, table: StepTable) -> StepTable:
    with monkeypatch.context() as slow:
        slow.setattr(engine, "_may_run_ahead", lambda table: False)
        for _ in engine.run(table):
            pass
    return table


PROMPTS = {3: [5, 6, 7, 8], 11: [50, 3], 7: [90]}
"""In an order that is not the one of places once 7 has been opened first."""


@pytest.mark.parametrize("remaining", [1, 2, 9, 100])
@pytest.mark.parametrize("ending", [False, True])
def test_the_table_is_what_single_steps_make_of_it(
    remaining: int, ending: bool, engine: LlamacppEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.open_sequence(7)
    free = by_steps(engine, monkeypatch, table_for(engine, PROMPTS))
    ends = frozenset({tokens_of(free, 0)[6], tokens_of(free, 2)[1], 95}) if ending else frozenset[int]()
    expected = by_steps(engine, monkeypatch, table_for(engine, PROMPTS, remaining=remaining, ends=ends))
    lengths = [engine.length(sequence) for sequence in PROMPTS]
    found = table_for(engine, PROMPTS, remaining=remaining, ends=ends)
    boundaries = sum(1 for _ in engine.run(found))
    assert boundaries <= 1  # the prompt's
    assert found.steps_done == expected.steps_done
    assert np.array_equal(found.drawn, expected.drawn) and np.array_equal(found.evaluated, expected.evaluated)
    for column in ("position", "remaining", "output_index"):
        assert np.array_equal(getattr(found, column), getattr(expected, column))
    assert (found.pending, found.history) == (expected.pending, expected.history)
    assert [engine.length(sequence) for sequence in PROMPTS] == lengths


def test_a_next_job_takes_up_where_the_loop_ended(engine: LlamacppEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = by_steps(engine, monkeypatch, table_for(engine, {0: [1, 2, 3]}))
    table = table_for(engine, {0: [1, 2, 3]})
    table.clear(steps_max=10)
    table.add(sequence=0, position=0, pending=[1, 2, 3], remaining=100, output_index=0, sampling=GREEDY, ends=frozenset(),
              history=[1, 2, 3], prompt_length=3)  # fmt: skip
    list(engine.run(table))
    assert table.steps_done == 10
    drawn = tokens_of(table, 0)
    second = StepTable(slots_max=6, steps_max=64, rows_max=64)
    second.clear(steps_max=STEPS - 10)
    second.add(sequence=0, position=int(table.position[0]), pending=table.pending[0], remaining=90, output_index=10,
               sampling=GREEDY, ends=frozenset(), history=table.history[0], prompt_length=3)  # fmt: skip
    list(engine.run(second))
    assert drawn + tokens_of(second, 0) == tokens_of(whole, 0)


@pytest.mark.parametrize("ask", [StepTable.request_stop, StepTable.request_turn])
def test_the_loop_ends_at_the_boundary_after_it_was_asked(ask: Any, engine: LlamacppEngine) -> None:
    table = table_for(engine, {0: [1, 2, 3]})
    running = engine.run(table)
    next(running)
    ask(table)
    boundaries = len(list(running))
    if table.stop:
        assert table.steps_done == 1 and boundaries == 0
    else:
        assert table.steps_done == STEPS and boundaries == 1 and not table.turn


def test_each_step_is_signalled(engine: LlamacppEngine) -> None:
    read, write = os.pipe()
    try:
        table = table_for(engine, {0: [1, 2, 3]}, remaining=6)
        table.set_signal_fd(write)
        list(engine.run(table))
        assert table.steps_done == 6
        assert os.read(read, 1000) == (1).to_bytes(8, "little") * 5  # the prompt's step was Python's
    finally:
        os.close(read)
        os.close(write)


def test_a_call_has_a_boundary_after_so_many_steps(engine: LlamacppEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = by_steps(engine, monkeypatch, table_for(engine, {0: [1, 2, 3]}))
    monkeypatch.setattr(run_ahead, "STEPS_AHEAD", 5)
    table = table_for(engine, {0: [1, 2, 3]})
    assert len([None for _ in engine.run(table)]) == 5  # the prompt's, and one in each gap of the other 23 steps
    assert np.array_equal(table.drawn, whole.drawn)


@pytest.mark.parametrize("sampling", [SAMPLED, SamplingParameters(temperature=0.0, repeat_penalty=1.1)])
def test_whoever_draws_by_chance_or_with_penalties_goes_by_steps(sampling: SamplingParameters, engine: LlamacppEngine) -> None:
    table = table_for(engine, {0: [4]}, sampling=sampling)
    assert not decodes_plainly(table)
    assert len(list(engine.run(table))) == STEPS  # a boundary each, the last one included: there is more to do


def test_a_prompt_goes_by_steps() -> None:
    table = StepTable(slots_max=2, steps_max=4, rows_max=8)
    table.clear(steps_max=4)
    assert not decodes_plainly(table)
    table.add(sequence=0, position=0, pending=[1, 2], remaining=5, output_index=0, sampling=GREEDY, ends=frozenset(),
              history=[1, 2], prompt_length=2)  # fmt: skip
    assert not decodes_plainly(table)
    table.pending[0].pop()
    assert decodes_plainly(table)
    table.remaining[0] = 0
    assert not decodes_plainly(table)


def test_the_context_is_never_exceeded(engine: LlamacppEngine) -> None:
    table = table_for(engine, {0: [1] * 250})
    with pytest.raises(InvalidRequest) as caught:
        list(engine.run(table))
    assert caught.value.code == "context_length_exceeded"
    assert engine.length(0) == 256


@pytest.mark.parametrize(("position", "token"), [(5, 3), (3, 96), (3, -1)])
def test_rows_that_break_the_contract_never_reach_native_code(position: int, token: int, engine: LlamacppEngine) -> None:
    table = table_for(engine, {0: [1, 2, 3]})
    next(engine.run(table))
    table.position[0] = position
    table.pending[0][:] = [token]
    with pytest.raises(InvalidRequest):
        list(engine.run(table))
    assert engine.length(0) == 3


def test_a_failed_call_keeps_the_steps_before_it(engine: LlamacppEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = by_steps(engine, monkeypatch, table_for(engine, {0: [1, 2, 3], 1: [9]}))
    calls: list[int] = []
    signature = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, BatchBytes)
    real = signature(engine._context.words["decode"])

    def decode(context: int, batch: Any) -> int:
        calls.append(context)
        status = real(context, batch)
        return -3 if len(calls) == 4 else int(status)

    failing = signature(decode)
    address = ctypes.cast(failing, ctypes.c_void_p).value
    read = vars(Context)["words"].fget
    table = table_for(engine, {0: [1, 2, 3], 1: [9]})
    with monkeypatch.context() as broken:
        broken.setattr(Context, "words", property(lambda self: read(self) | {"decode": address}))
        with pytest.raises(DeviceFailed, match="status -3"):
            list(engine.run(table))
    assert table.steps_done == 4  # the prompt's and three
    assert np.array_equal(table.drawn[:4], whole.drawn[:4])
    assert [engine.length(sequence) for sequence in (0, 1)] == table.position[:2].tolist() == [6, 4]
    list(engine.run(table))
    assert np.array_equal(table.drawn[:STEPS], whole.drawn[:STEPS])


def test_a_row_that_is_not_finite_ends_its_sequence_and_no_other(
    engine: LlamacppEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    width = engine.info.vocabulary_size
    rows = np.zeros((2, width), np.float32)
    rows[0, 5], rows[1, 7] = 3.0, np.nan
    logits = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda context: rows.ctypes.data)
    address = ctypes.cast(logits, ctypes.c_void_p).value
    read = vars(Context)["words"].fget
    table = table_for(engine, {0: [1], 1: [9]}, remaining=2)
    with monkeypatch.context() as broken:
        broken.setattr(Context, "words", property(lambda self: read(self) | {"logits_of": address}))
        list(engine.run(table))
    assert tokens_of(table, 0) == [5, 5] and tokens_of(table, 1) == [INVALID_LOGITS]
    assert table.pending == [[], []] and table.history == [[1, 5, 5], [9]]


VALUES = st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 1.0, 2.0]) | st.floats(-1e6, 1e6, width=32)


@pytest.mark.parametrize("target", narrower_targets(), ids=lambda target: target.name)
@settings(deadline=None, max_examples=200)
@given(
    values=st.lists(VALUES, min_size=1, max_size=70), spoilt=st.sampled_from([None, None, np.nan, np.inf]), at=st.integers(0)
)
def test_the_largest_is_the_first_of_the_largest(target: Any, values: list[float], spoilt: float | None, at: int) -> None:
    row = np.array(values, np.float32)
    if spoilt is not None:
        row[at % len(row)] = spoilt
    largest = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(
        compiled(target).get_function_address("largest")
    )
    found = largest(row.ctypes.data, len(row))
    best = int(np.argmax(row))
    assert found == (best if np.isfinite(row[best]) else INVALID_LOGITS)


@pytest.mark.parametrize(
    ("more", "plainly"),
    [({}, True), ({"constraint": Script([], 96)}, False), ({"logprobs": 0}, False), ({"prompt_logprobs": 0}, False)],
)
def test_who_needs_python_between_steps_keeps_everybody_from_running_ahead(more: dict[str, Any], plainly: bool) -> None:
    table = StepTable(slots_max=2, steps_max=4, rows_max=4)
    table.clear(steps_max=4)
    for sequence, asked in enumerate(({}, more)):
        table.add(sequence=sequence, position=0, pending=[1], remaining=3, output_index=0, sampling=GREEDY, ends=frozenset(),
                  history=(), prompt_length=1, **asked)  # fmt: skip
    assert decodes_plainly(table) is plainly


def test_the_loop_takes_over_when_a_ban_ends(engine: LlamacppEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    free = tokens_of(by_steps(engine, monkeypatch, table_for(engine, PROMPTS)), 0)
    banning = SamplingParameters(temperature=0.0, banned=tuple(sorted(set(free[:4]))), banned_until=5)
    expected = by_steps(engine, monkeypatch, table_for(engine, PROMPTS, remaining=12, sampling=banning))
    found = table_for(engine, PROMPTS, remaining=12, sampling=banning)
    assert 5 <= sum(1 for _ in engine.run(found)) < found.steps_done - 1
    assert np.array_equal(found.drawn, expected.drawn) and not set(tokens_of(found, 0)[:5]) & set(free[:4])
