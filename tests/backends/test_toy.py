"""The toy engine: its native loop does what its Python does, and it keeps the contract of all engines."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterable

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.backends.toy import ToyBackend, ToyEngine, ToyText
from tripower.backends.toy.engine import END, absorb, draw, draw_key
from tripower.runtime.engine import (
    ChatMessage,
    LoadedModel,
    LoadSpecification,
    SamplingParameters,
    StepEngine,
    StepRow,
    StepTable,
    TextLayer,
    ToolChoice,
)
from tripower.runtime.kernel import DeviceFailed, InvalidRequest, ModelRefused


@attrs.frozen
class Slot:
    prompt: list[int]
    remaining: int
    sampling: SamplingParameters
    heeds_end: bool


slots = st.builds(
    Slot,
    prompt=st.lists(st.integers(0, 255), min_size=1, max_size=12),
    remaining=st.integers(0, 60),
    sampling=st.builds(
        SamplingParameters, temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 2**64 - 1), choice=st.integers(0, 3)
    ),
    heeds_end=st.booleans(),
)


def fill(engine: ToyEngine, table: StepTable, plan: Iterable[Slot], *, steps_max: int, first: int = 0) -> None:
    table.clear(steps_max=steps_max)
    for sequence, slot in enumerate(plan, first):
        engine.open_sequence(sequence)
        table.add(
            sequence=sequence,
            position=0,
            pending=slot.prompt,
            remaining=slot.remaining,
            output_index=0,
            sampling=slot.sampling,
            ends=frozenset({END}) if slot.heeds_end else frozenset(),
            history=(),
            prompt_length=len(slot.prompt),
        )


def outcome(engine: ToyEngine, table: StepTable) -> object:
    """All that a caller can see of a job, and all that the engine keeps."""
    done = table.steps_done
    return (
        table.evaluated[:done, : table.slots].tolist(),
        table.drawn[:done, : table.slots].tolist(),
        [
            (sequence, engine.length(sequence), engine._tokens[sequence], engine._states[sequence])
            for sequence in engine.sequences()
        ],
        table.pending,
    )


@settings(deadline=None, max_examples=200)
@given(st.lists(slots, min_size=1, max_size=5), st.integers(1, 16), st.integers(1, 40))
def test_the_native_loop_equals_the_python_loop(plan: list[Slot], rows_max: int, steps_max: int) -> None:
    outcomes = []
    for native in (False, True):
        engine = ToyEngine(native=native)
        table = StepTable(slots_max=6, steps_max=40, rows_max=rows_max)
        fill(engine, table, plan, steps_max=steps_max)
        for _ in engine.run(table):
            pass
        outcomes.append(outcome(engine, table))
    assert outcomes[0] == outcomes[1]


@settings(deadline=None, max_examples=50)
@given(st.lists(slots, min_size=1, max_size=4), st.lists(st.integers(1, 7), min_size=1, max_size=8))
def test_a_text_does_not_depend_on_how_its_steps_were_cut_into_jobs(plan: list[Slot], jobs: list[int]) -> None:
    whole, cut = ToyEngine(native=True), ToyEngine(native=True)
    table = StepTable(slots_max=4, steps_max=60, rows_max=64)
    fill(whole, table, plan, steps_max=sum(jobs))
    list(whole.run(table))
    drawn = [[token for token in table.drawn[: table.steps_done, slot].tolist() if token >= 0] for slot in range(len(plan))]
    texts: list[list[int]] = [[] for _ in plan]
    positions, pendings = [0] * len(plan), [slot.prompt for slot in plan]
    for sequence in range(len(plan)):
        cut.open_sequence(sequence)
    for steps in jobs:
        table.clear(steps_max=steps)
        live = [number for number, pending in enumerate(pendings) if pending]
        for number in live:
            slot = plan[number]
            table.add(
                sequence=number,
                position=positions[number],
                pending=pendings[number],
                remaining=slot.remaining - len(texts[number]),
                output_index=len(texts[number]),
                sampling=slot.sampling,
                ends=frozenset({END}) if slot.heeds_end else frozenset(),
                history=(),
                prompt_length=len(slot.prompt),
            )
        list(cut.run(table))
        for place, number in enumerate(live):
            texts[number] += [token for token in table.drawn[: table.steps_done, place].tolist() if token >= 0]
            positions[number] += int(table.evaluated[: table.steps_done, place].sum())
            pendings[number] = list(table.pending[place])
    assert texts == drawn
    assert [cut.length(n) for n in range(len(plan))] == [whole.length(n) for n in range(len(plan))]


def test_a_text_does_not_depend_on_its_neighbours() -> None:
    alone, together = ToyEngine(native=True), ToyEngine(native=True)
    plan = [Slot([65 + n], 30, SamplingParameters(seed=n), False) for n in range(3)]
    table = StepTable(slots_max=3, steps_max=30, rows_max=3)
    fill(together, table, plan, steps_max=30)
    list(together.run(table))
    for number, slot in enumerate(plan):
        single = StepTable(slots_max=1, steps_max=30, rows_max=3)
        fill(alone, single, [slot], steps_max=30, first=number)
        list(alone.run(single))
        assert single.drawn[:30, 0].tolist() == table.drawn[:30, number].tolist()


def test_the_native_loop_stops_at_the_boundary_after_it_is_told() -> None:
    read, write = os.pipe()
    engine = ToyEngine(native=True, step_microseconds=200)
    table = StepTable(slots_max=2, steps_max=100_000, rows_max=4)
    plan = [Slot([65], 100_000, SamplingParameters(seed=1), False)]
    fill(engine, table, plan, steps_max=100_000)
    table.set_signal_fd(write)
    lane = threading.Thread(target=lambda: list(engine.run(table)))
    lane.start()
    for _ in range(3):
        assert select.select([read], [], [], 30)[0]
        assert os.read(read, 8) == (1).to_bytes(8, "little")
    table.request_stop()
    lane.join()
    os.close(read)
    os.close(write)
    assert 3 <= table.steps_done < 100_000
    reference, again = ToyEngine(), StepTable(slots_max=2, steps_max=100_000, rows_max=4)
    fill(reference, again, plan, steps_max=table.steps_done)
    list(reference.run(again))
    assert outcome(reference, again) == outcome(engine, table)


def test_a_stop_before_the_start_runs_no_native_step() -> None:
    engine, table = ToyEngine(native=True), StepTable(slots_max=1, steps_max=8, rows_max=4)
    fill(engine, table, [Slot([65], 8, SamplingParameters(), False)], steps_max=8)
    table.request_stop()
    list(engine.run(table))
    assert table.steps_done == 0 and engine.length(0) == 0


def test_two_tables_run_at_once_and_do_not_mix() -> None:
    engines = [ToyEngine(native=True, step_microseconds=20) for _ in range(2)]
    tables = [StepTable(slots_max=3, steps_max=200, rows_max=8) for _ in range(2)]
    plans = [[Slot([97 + 2 * number + n], 200, SamplingParameters(seed=n), False) for n in range(3)] for number in range(2)]
    for engine, table, plan in zip(engines, tables, plans, strict=True):
        fill(engine, table, plan, steps_max=200)
    lanes = [
        threading.Thread(target=lambda e=engine, t=table: list(e.run(t))) for engine, table in zip(engines, tables, strict=True)
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    for engine, table, plan in zip(engines, tables, plans, strict=True):
        reference, again = ToyEngine(), StepTable(slots_max=3, steps_max=200, rows_max=8)
        fill(reference, again, plan, steps_max=200)
        list(reference.run(again))
        assert outcome(engine, table) == outcome(reference, again)


def test_two_tables_take_turns_on_one_engine() -> None:
    engine = ToyEngine(native=True)
    tables = [StepTable(slots_max=1, steps_max=10, rows_max=1) for _ in range(2)]
    for number, table in enumerate(tables):
        fill(engine, table, [Slot([65, 66, 67 + number], 10, SamplingParameters(), False)], steps_max=10, first=number)
    runs = [engine.run(table) for table in tables]
    while runs:
        runs = [run for run in runs if next(run, True) is None]
    for number, table in enumerate(tables):
        reference, again = ToyEngine(), StepTable(slots_max=1, steps_max=10, rows_max=1)
        fill(reference, again, [Slot([65, 66, 67 + number], 10, SamplingParameters(), False)], steps_max=10, first=number)
        list(reference.run(again))
        assert table.drawn[:10].tolist() == again.drawn[:10].tolist()


def test_a_lost_repeated_or_misplaced_row_changes_the_text() -> None:
    def text(tokens: bytes) -> list[int]:
        state, drawn = 0, []
        for token in tokens:
            state = absorb(state, token)
        for _ in range(20):
            drawn.append(draw(state, 0))
            state = absorb(state, drawn[-1])
        return drawn

    assert len({tuple(text(tokens)) for tokens in (b"abcd", b"abd", b"abbcd", b"acbd")}) == 4


def test_greedy_draws_ignore_the_seed_and_others_do_not() -> None:
    assert draw_key(SamplingParameters(temperature=0, seed=5)) == draw_key(SamplingParameters(temperature=0, seed=6)) == 0
    keys = {draw_key(SamplingParameters(seed=seed, choice=choice)) for seed in range(5) for choice in range(5)}
    assert len(keys) == 25


def test_both_ends_of_a_text_are_seen() -> None:
    drawn = {draw(absorb(0, n), 0) for n in range(5000)}
    assert END in drawn and drawn <= {*range(97, 123), 32, END}


def row(sequence: int, position: int, tokens: tuple[int, ...], *, draw: bool = True) -> StepRow:
    return StepRow(sequence, position, tokens, draw)


def test_a_row_that_breaks_the_contract_changes_nothing() -> None:
    engine = ToyEngine(context=4)
    engine.open_sequence(0)
    engine.step([row(0, 0, (1, 2))])
    for bad in (row(0, 1, (3,)), row(0, 3, (3,)), row(9, 0, (3,)), row(0, 2, (1, 2, 3))):
        with pytest.raises(InvalidRequest):
            engine.step([row(0, 2, (3,)), bad] if bad.sequence else [bad])
        assert engine.length(0) == 2


def test_sequences_are_opened_emptied_trimmed_forked_and_closed() -> None:
    engine = ToyEngine(sequences_max=2)
    engine.open_sequence(5)
    first = engine.step([row(5, 0, (1, 2, 3))])
    engine.fork(5, 6, 2)
    assert engine.step([row(6, 2, (3,))]) == first
    engine.trim(5, 1)
    assert engine.length(5) == 1 and engine.step([row(5, 1, (2, 3))]) == first
    with pytest.raises(DeviceFailed, match="all 2 sequences are open"):
        engine.open_sequence(7)
    engine.open_sequence(5)
    assert engine.length(5) == 0 and engine.length(6) == 3
    engine.close_sequence(5)
    engine.close_sequence(5)
    assert engine.sequences() == [6]
    engine.close()
    engine.close()
    assert engine.sequences() == [] and engine.closed


def load(source: str) -> list[LoadedModel | None]:
    specification = LoadSpecification(
        name="toy", source=source, context=100, sequences_max=3, state_bytes_max=0, threads=1, prefill_chunk=8
    )
    return list(ToyBackend().load(specification, lambda stage, fraction: None))


def test_the_backend_loads_a_toy_of_the_size_that_was_asked_for() -> None:
    *boundaries, model = load("toy:250")
    assert boundaries == [None] and model is not None
    assert (model.engine.info.context_max, model.engine.info.sequences_max) == (100, 3)


@pytest.mark.parametrize("source", ["toy:fast", "toy:-1", "toy:1.5"])
def test_a_source_that_is_no_toy_is_refused(source: str) -> None:
    with pytest.raises(ModelRefused, match="toy:MICROSECONDS"):
        load(source)


@settings(deadline=None, max_examples=30)
@given(st.text())
def test_text_is_bytes(text: str) -> None:
    layer = ToyText()
    assert b"".join(layer.piece(token) for token in layer.tokenize(text)) == text.encode()
    assert layer.piece(END) == b"" and layer.end_tokens == {END}


def test_a_conversation_waits_for_the_assistant() -> None:
    tokens = ToyText().render_chat([ChatMessage("system", "be brief"), ChatMessage("user", "hi")])
    assert bytes(tokens) == b"system: be brief\nuser: hi\nassistant: "


def test_a_toy_that_shall_call_a_tool_says_that_it_cannot() -> None:  # BB-032
    with pytest.raises(InvalidRequest) as refusal:
        ToyText().plan_answer(choice=ToolChoice(mode="required"))
    assert refusal.value.code == "unsupported_by_model"
    assert ToyText().plan_answer(choice=ToolChoice(mode="none", name="add")).format is None


def test_the_toy_is_an_engine_and_a_text_layer() -> None:
    engine: StepEngine = ToyEngine()
    text: TextLayer = ToyText()
    assert engine.info.vocabulary_size == END + 1 and text.has_chat_template
