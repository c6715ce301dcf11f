"""Jobs: many steps in one native call. What they do is what single steps would have done, and where they stop they can be taken up."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.backends.native.engine.rigs import (
    GREEDY,
    SAMPLED,
    VOCABULARY,
    ignore_costs,
    new_table,
    state_of,
    steps_of,
    tokens_of,
)
from tripower.backends.picolm.native.engine import NativeEngine
from tripower.runtime.engine import StepRow, StepTable, run_steps
from tripower.runtime.engine.step_table import INVALID_LOGITS, NOT_DRAWN
from tripower.runtime.kernel.errors import DeviceFailed, InvalidRequest

POISON = VOCABULARY - 1
"""A token whose embedding is not a number, in the model `poisoned`."""
PROMPTS = [tokens_of(seed, length, POISON) for seed, length in enumerate((50, 1, 7, 90))]


@pytest.fixture(params=["llama", "gemma3"])
def engine(request: pytest.FixtureRequest, tiny_model: Any, make_engine: Any) -> NativeEngine:
    made: NativeEngine = make_engine(tiny_model(request.param, layers=3), threads=2)
    return ignore_costs(made)


@pytest.fixture
def poisoned(tiny_model: Any, make_engine: Any) -> NativeEngine:
    return poison(np.nan, "llama", tiny_model, make_engine)


def poison(value: float, architecture: str, tiny_model: Any, make_engine: Any, **options: Any) -> NativeEngine:
    """An engine whose token `POISON` has an embedding of this value."""
    embedding = np.random.default_rng(3).standard_normal((VOCABULARY, 32))
    embedding[POISON] = value
    path = tiny_model(architecture, tied=False, tensors={"token_embd.weight": embedding}, **options)
    made: NativeEngine = make_engine(path, threads=2)
    return made


def open_all(engine: Any, count: int = 4) -> None:
    for sequence in range(count):
        engine.open_sequence(sequence)


def members(**changes: Any) -> list[dict[str, Any]]:
    """Greedy and sampled ones, one that ends early, one that draws nothing."""
    return [
        {"pending": PROMPTS[0], "remaining": 12, **changes},
        {"pending": PROMPTS[1], "remaining": 9, "sampling": SAMPLED, **changes},
        {"pending": PROMPTS[2], "remaining": 20, "ends": frozenset(range(0, VOCABULARY, 5)), **changes},
        {"pending": PROMPTS[3], "remaining": 0, **changes},
    ]


def finish(work: Iterator[None]) -> int:
    """Run to the end; the number of boundaries at which another job would have had its turn."""
    return sum(1 for _ in work)


@pytest.mark.parametrize("limits", [{}, {"rows_max": 9}, {"rows_max": 20, "mixed_rows": 3}, {"steps": 7}])
def test_a_run_makes_the_steps_of_the_python_loop(engine: NativeEngine, limits: dict[str, int]) -> None:
    tables = []
    for run in (engine.run, lambda table: run_steps(engine, table)):
        open_all(engine)
        table = new_table(engine, *members(), **limits)
        finish(run(table))
        assert [engine.length(sequence) for sequence in range(4)] == table.position[:4].tolist()
        tables.append(table)
    native, python = tables
    assert native.steps_done > 1 and steps_of(native) == steps_of(python)
    assert state_of(native) == state_of(python)
    assert native.history[1] == python.history[1]  # the one that a penalty looks at


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_run_draws_what_the_torch_engine_draws(architecture: str, tiny_model: Any, make_engine: Any, load_torch: Any) -> None:
    path, found = tiny_model(architecture, layers=3), []
    for engine in (ignore_costs(make_engine(path)), load_torch(path, context=200)):
        open_all(engine)
        table = new_table(engine, *members(), rows_max=16, mixed_rows=5)
        finish(engine.run(table))
        found.append((steps_of(table), state_of(table)))
    assert found[0] == found[1]


def test_a_stop_before_the_first_step_leaves_everything_as_it_is(engine: NativeEngine) -> None:
    open_all(engine)
    table = new_table(engine, *members())
    before = state_of(table)
    table.request_stop()
    assert finish(engine.run(table)) == 0
    assert table.steps_done == 0 and state_of(table) == before and engine.length(0) == 0


@pytest.mark.parametrize("turns", [1, 3, 30])
def test_a_run_that_gives_way_goes_on_as_if_nothing_had_been(engine: NativeEngine, turns: int) -> None:
    open_all(engine)
    whole = new_table(engine, *members())
    assert finish(engine.run(whole)) == 0
    open_all(engine)
    parts = new_table(engine, *members())
    parts.request_turn()
    boundaries = 0
    for _ in engine.run(parts):
        boundaries += 1
        assert parts.steps_done == boundaries and not parts.turn
        if boundaries < turns:
            parts.request_turn()
    assert boundaries == min(turns, whole.steps_done - 1)
    assert steps_of(parts) == steps_of(whole) and state_of(parts) == state_of(whole)
    assert parts.history[1] == whole.history[1]


def test_a_stop_at_a_boundary_is_taken_up_by_the_next_job(engine: NativeEngine) -> None:
    open_all(engine)
    whole = new_table(engine, *members())
    finish(engine.run(whole))
    open_all(engine)
    first = new_table(engine, *members())
    first.request_turn()
    running = engine.run(first)
    next(running)
    first.request_stop()
    assert finish(running) == 0 and first.steps_done == 1
    rest = new_table(
        engine,
        *[
            member
            | {
                "sequence": slot,
                "pending": first.pending[slot],
                "remaining": int(first.remaining[slot]),
                "output_index": int(first.output_index[slot]),
                "history": first.history[slot],
                "prompt_length": len(PROMPTS[slot]),
            }
            for slot, member in enumerate(members())
            if first.pending[slot]
        ],
    )
    finish(engine.run(rest))
    going_on = [slot for slot in range(4) if first.pending[slot]]
    later = [
        ([evaluated[slot] for slot in going_on], [drawn[slot] for slot in going_on]) for evaluated, drawn in steps_of(whole)[1:]
    ]
    assert steps_of(first) == steps_of(whole)[:1] and steps_of(rest) == later


@pytest.mark.parametrize("steps", [1, 5])
def test_a_run_ends_when_its_steps_are_used_up(engine: NativeEngine, steps: int) -> None:
    open_all(engine)
    table = new_table(engine, *members(remaining=40), steps=steps)
    assert finish(engine.run(table)) == 0
    assert table.steps_done == steps and table.pending[0]
    assert finish(engine.run(table)) == 0 and table.steps_done == steps


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="this system has no eventfd")
def test_every_step_is_signalled_once(engine: NativeEngine) -> None:
    open_all(engine)
    table = new_table(engine, *members())
    descriptor = os.eventfd(0, os.EFD_NONBLOCK)
    table.set_signal_fd(descriptor)
    try:
        finish(engine.run(table))
        assert os.eventfd_read(descriptor) == table.steps_done > 10
        engine.step([])
        with pytest.raises(BlockingIOError):
            os.eventfd_read(descriptor)
    finally:
        os.close(descriptor)


def test_a_table_without_slots_needs_no_engine_time(engine: NativeEngine) -> None:
    table = new_table(engine)
    assert finish(engine.run(table)) == 0 and table.steps_done == 0


def test_pages_that_a_run_did_not_reach_are_given_back(engine: NativeEngine) -> None:
    open_all(engine)
    free = engine.pages_free
    table = new_table(engine, {"pending": PROMPTS[3], "remaining": 100, "ends": frozenset(range(VOCABULARY))})
    finish(engine.run(table))
    assert table.steps_done == 2 and engine.length(0) == 90
    assert engine.pages_free == free - 2
    engine.close_sequence(0)
    assert engine.pages_free == free


def test_a_run_ends_where_the_context_does(engine: NativeEngine) -> None:
    open_all(engine)
    table = new_table(engine, {"pending": PROMPTS[3], "remaining": 500}, {"pending": [1], "remaining": 150}, steps=300)
    finish(engine.run(table))
    assert engine.length(0) == 200 and table.pending[0] == [] and table.remaining[0] == 500 - 111
    assert engine.length(1) == 150
    drawn = [token for token in table.drawn[: table.steps_done, 0].tolist() if token != NOT_DRAWN]
    assert len(drawn) == 111
    again = new_table(engine, {"pending": drawn[-1:], "remaining": 389})
    with pytest.raises(InvalidRequest) as caught:
        finish(engine.run(again))
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"pending": [3, VOCABULARY]}, "invalid_value"),
        ({"pending": [-1]}, "invalid_value"),
        ({"position": 2}, "invalid_value"),
        ({"sequence": 77, "position": 0}, "invalid_value"),
        ({"sequence": 3, "position": 0}, "invalid_value"),
        ({"pending": [1] * 201}, "context_length_exceeded"),
        ({"sampling": msgspec.structs.replace(GREEDY, logit_bias=((VOCABULARY, 1.0),))}, "invalid_value"),
        ({"sampling": msgspec.structs.replace(GREEDY, top_p=float("nan"))}, "invalid_value"),
    ],
)
def test_tables_that_break_the_contract_are_refused_and_change_nothing(
    engine: NativeEngine, change: dict[str, Any], code: str
) -> None:
    open_all(engine)
    free = engine.pages_free
    table = new_table(engine, {"pending": [5] * 70, "sequence": 3}, {"pending": [1, 2], **change})
    with pytest.raises(InvalidRequest) as caught:
        finish(engine.run(table))
    assert caught.value.code == code
    assert table.steps_done == 0 and (engine.length(0), engine.length(1), engine.pages_free) == (0, 0, free)


@pytest.mark.parametrize(
    ("architecture", "options"),
    [("llama", {}), ("gemma2", {}), ("qwen3moe", {"experts": 4}), ("llama", {"kind": {"blk": "Q8_0", "output": "Q4_0"}})],
    ids=["llama", "gemma2", "qwen3moe", "quantised"],
)
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_logits_that_are_not_finite_end_their_sequence_and_no_other(
    value: float, architecture: str, options: dict[str, Any], tiny_model: Any, make_engine: Any
) -> None:
    engine = poison(value, architecture, tiny_model, make_engine, **options)
    open_all(engine)
    alone = new_table(engine, *members()[:2])
    finish(engine.run(alone))
    open_all(engine)
    table = new_table(
        engine,
        *members()[:2],
        {"pending": [1, POISON], "remaining": 9, "sampling": SAMPLED},
        {"pending": [POISON], "remaining": 9},
    )
    finish(engine.run(table))
    drawn = [drawn for _, drawn in steps_of(table)]
    assert [each[:2] for each in drawn] == [drawn[:2] for _, drawn in steps_of(alone)]
    if not np.isfinite(value):  # the largest numbers become zero in a norm
        assert [each[2:] for each in drawn] == [[INVALID_LOGITS, INVALID_LOGITS]] + [[NOT_DRAWN, NOT_DRAWN]] * 11
        assert table.pending == [[], [], [], []]


def test_a_step_with_logits_that_are_not_finite_fails_as_a_whole(poisoned: NativeEngine) -> None:
    open_all(poisoned)
    free = poisoned.pages_free
    rows = [StepRow(0, 0, tuple(PROMPTS[0]), True), StepRow(1, 0, (1, POISON), True, sampling=GREEDY)]
    with pytest.raises(DeviceFailed) as caught:
        poisoned.step(rows)
    assert caught.value.code == "invalid_logits"
    assert (poisoned.length(0), poisoned.length(1), poisoned.pages_free) == (0, 0, free)


def test_what_a_poisoned_sequence_left_in_its_pages_reaches_nobody(poisoned: NativeEngine) -> None:
    poisoned.open_sequence(0)
    expected = poisoned.logits(0, PROMPTS[3])
    poisoned.open_sequence(0)
    assert np.isnan(poisoned.logits(0, [POISON] * 150)).all()
    poisoned.close_sequence(0)
    poisoned.open_sequence(0)
    assert np.array_equal(poisoned.logits(0, PROMPTS[3]), expected)
    poisoned.logits(0, [POISON])
    poisoned.trim(0, 90)
    poisoned.fork(0, 1, 89)
    assert np.isfinite(poisoned.logits(0, [1])).all() and np.isfinite(poisoned.logits(1, [1])).all()


def test_a_failure_leaves_sequences_and_table_as_they_were(engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    open_all(engine)
    engine.logits(0, PROMPTS[2])
    free = engine.pages_free
    assert engine._program is not None

    def failing() -> None:
        raise KeyboardInterrupt

    table = new_table(engine, *members(remaining=100))
    before = state_of(table)
    with monkeypatch.context() as patch:
        patch.setattr(engine._program._workers, "run", failing)
        with pytest.raises(KeyboardInterrupt):
            finish(engine.run(table))
    assert (engine.pages_free, engine.length(0), engine.length(3)) == (free, 7, 0)
    assert state_of(table) == before and table.steps_done == 0
    finish(engine.run(table))
    assert table.steps_done > 1


def test_steps_of_other_sequences_between_two_turns_change_nothing(engine: NativeEngine) -> None:
    open_all(engine)
    whole = new_table(engine, *members()[:2])
    finish(engine.run(whole))
    open_all(engine)
    parts = new_table(engine, *members()[:2])
    parts.request_turn()
    for _ in engine.run(parts):
        engine.step([StepRow(3, engine.length(3), (5, 6), True, sampling=GREEDY)])
        parts.request_turn()
    assert steps_of(parts) == steps_of(whole) and state_of(parts) == state_of(whole)


def test_a_run_that_is_given_up_at_a_boundary_keeps_what_was_committed(engine: NativeEngine) -> None:
    open_all(engine)
    table: StepTable = new_table(engine, *members(remaining=100))
    table.request_turn()
    running = engine.run(table)
    next(running)
    running.close()  # type: ignore[attr-defined] # a generator, as an iterator
    assert [engine.length(sequence) for sequence in range(4)] == table.position[:4].tolist()
    assert table.steps_done == 1 and engine.length(0) > 0


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="this system has no eventfd")
def test_a_run_is_heard_and_stopped_from_another_thread(tiny_model: Any, make_engine: Any) -> None:
    engine = make_engine(tiny_model("llama", context=8192), context=8192, threads=2, sequences_max=1, slots_max=1)
    engine.open_sequence(0)
    table = new_table(engine, {"pending": [1], "remaining": 8000}, steps=8000)
    descriptor = os.eventfd(0)
    table.set_signal_fd(descriptor)
    lane = threading.Thread(target=lambda: finish(engine.run(table)))
    lane.start()
    heard = os.eventfd_read(descriptor)
    table.request_stop()
    lane.join()
    os.close(descriptor)
    assert 1 <= heard <= table.steps_done < 8000
    assert engine.length(0) == table.steps_done and (table.drawn[: table.steps_done, 0] >= 0).all()
    assert table.pending == [[int(table.drawn[table.steps_done - 1, 0])]]


def test_many_streams_run_together_as_each_runs_alone(tiny_model: Any, make_engine: Any) -> None:
    engine = make_engine(tiny_model("llama", kind="Q8_0"), threads=2, slots_max=40, sequences_max=41)
    streams = [
        {"pending": tokens_of(seed, 1 + seed % 19), "remaining": 6, "sampling": SAMPLED if seed % 3 else GREEDY}
        for seed in range(40)
    ]
    alone = []
    for member in streams:
        engine.open_sequence(40)
        table = new_table(engine, member | {"sequence": 40})
        finish(engine.run(table))
        alone.append(table.drawn[: table.steps_done, 0].tolist())
    open_all(engine, 40)
    table = new_table(engine, *streams, slots_max=40)
    finish(engine.run(table))
    together = table.drawn[: table.steps_done, :40].T.tolist()
    assert [[token for token in drawn if token != NOT_DRAWN] for drawn in together] == alone
