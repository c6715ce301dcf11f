"""What every engine behind the contract must do. A new engine is one more line in `ENGINES`.

Only tokens are compared, so an engine needs no way to show logits: a lost, repeated or misplaced row changes a greedy stream sooner or
later, and the streams here are long enough that it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from tripower.runtime.engine import SamplingParameters, StepEngine, StepRow, StepTable
from tripower.runtime.engine.step_table import NOT_DRAWN
from tripower.runtime.kernel.errors import DeviceFailed, InvalidRequest

SEQUENCES, CONTEXT, VOCABULARY = 4, 200, 96
GREEDY = SamplingParameters(temperature=0.0)
SAMPLED = SamplingParameters(temperature=0.9, top_p=0.95, seed=77, repeat_penalty=1.2, presence_penalty=0.2)
PROMPT = np.random.default_rng(5).integers(0, VOCABULARY, 90).tolist()
OTHER = np.random.default_rng(6).integers(0, VOCABULARY, 70).tolist()

ENGINES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "picolm llama": ("load_native", "llama", {}),
    "picolm gemma3": ("load_native", "gemma3", {"layers": 6}),
    "picolm llama in torch": ("load_torch", "llama", {}),
    "picolm gemma3 in torch": ("load_torch", "gemma3", {"layers": 6}),
    "picolm accelerated llama": ("load_accelerated", "llama", {}),
    "picolm accelerated gemma3": ("load_accelerated", "gemma3", {"layers": 6}),
    "llamacpp llama": ("load_llamacpp", "llama", {}),
    "llamacpp gemma3": ("load_llamacpp", "gemma3", {"layers": 6}),
}
"""The fixture that makes a file resident, and what tiny model it is to be."""


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest, tiny_model: Any) -> Iterable[StepEngine]:
    loader, architecture, options = ENGINES[request.param]
    path = tiny_model(architecture, vocabulary=VOCABULARY, **options)
    engine = request.getfixturevalue(loader)(path, context=CONTEXT, sequences_max=SEQUENCES)
    yield engine
    engine.close()


def evaluate(engine: StepEngine, sequence: int, tokens: list[int], sampling: SamplingParameters = GREEDY) -> int:
    """One step that draws."""
    return engine.step([StepRow(sequence, engine.length(sequence), tuple(tokens), True, 0, sampling, tokens, 0)])[0]


def stream(
    engine: StepEngine, sequence: int, tokens: list[int], count: int = 20, sampling: SamplingParameters = GREEDY
) -> list[int]:
    """The next `count` tokens after appending `tokens`."""
    history, drawn = list(tokens), list[int]()
    for index in range(count):
        pending = tuple(tokens if not index else drawn[-1:])
        row = StepRow(sequence, engine.length(sequence), pending, True, index, sampling, history, len(tokens))
        drawn += engine.step([row])
        history.append(drawn[-1])
    return drawn


def fresh_stream(engine: StepEngine, tokens: list[int], **options: Any) -> list[int]:
    engine.open_sequence(1000)
    try:
        return stream(engine, 1000, tokens, **options)
    finally:
        engine.close_sequence(1000)


def test_the_engine_says_what_it_is(engine: StepEngine) -> None:
    info = engine.info
    assert (info.context_max, info.sequences_max, info.vocabulary_size) == (CONTEXT, SEQUENCES, VOCABULARY)
    assert info.determinism in ("exact", "numeric")


def test_a_step_without_rows_does_nothing(engine: StepEngine) -> None:
    assert engine.step([]) == []


def test_only_rows_that_draw_get_a_token(engine: StepEngine) -> None:
    for sequence in (0, 1):
        engine.open_sequence(sequence)
    rows = [StepRow(0, 0, (1, 2, 3), draw=False), StepRow(1, 0, (4, 5), draw=True, sampling=GREEDY)]
    quiet, drawn = engine.step(rows)
    assert quiet == NOT_DRAWN and 0 <= drawn < VOCABULARY
    assert (engine.length(0), engine.length(1)) == (3, 2)


def test_equal_prompts_give_equal_streams(engine: StepEngine) -> None:
    assert fresh_stream(engine, PROMPT) == fresh_stream(engine, PROMPT)
    assert fresh_stream(engine, PROMPT) != fresh_stream(engine, OTHER)


@pytest.mark.parametrize(
    "chunks", [(1, 89), (30, 30, 30), (64, 26), (89, 1), (1,) * 90], ids=lambda chunks: f"{len(chunks)} chunks"
)
def test_a_prompt_in_chunks_is_the_same_prompt(engine: StepEngine, chunks: tuple[int, ...]) -> None:
    engine.open_sequence(0)
    start = 0
    for chunk in chunks[:-1]:
        engine.step([StepRow(0, start, tuple(PROMPT[start : start + chunk]), draw=False)])
        start += chunk
    assert stream(engine, 0, PROMPT[start:]) == fresh_stream(engine, PROMPT)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_stream_does_not_depend_on_who_runs_beside_it(engine: StepEngine, sampling: SamplingParameters) -> None:
    prompts = [PROMPT[: 5 + 20 * index] for index in range(SEQUENCES)]
    alone = [fresh_stream(engine, prompt, sampling=sampling) for prompt in prompts]
    together: list[list[int]] = [[] for _ in prompts]
    for sequence in range(SEQUENCES):
        engine.open_sequence(sequence)
    for index in range(20):
        rows = []
        for sequence, prompt in enumerate(prompts):
            pending = tuple(together[sequence][-1:] or prompt)
            history = prompt + together[sequence]
            rows.append(StepRow(sequence, engine.length(sequence), pending, True, index, sampling, history, len(prompt)))
        for sequence, token in enumerate(engine.step(rows)):
            together[sequence].append(token)
    assert together == alone


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 89])
def test_trim_forgets_what_came_after(engine: StepEngine, length: int) -> None:
    engine.open_sequence(0)
    evaluate(engine, 0, PROMPT)
    engine.trim(0, length)
    assert engine.length(0) == length
    assert stream(engine, 0, OTHER) == fresh_stream(engine, PROMPT[:length] + OTHER)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 90])
def test_a_fork_and_its_source_go_on_without_each_other(engine: StepEngine, length: int) -> None:
    engine.open_sequence(0)
    evaluate(engine, 0, PROMPT)
    engine.fork(0, 1, length)
    assert (engine.length(0), engine.length(1)) == (90, length)
    forked = stream(engine, 1, OTHER)
    assert stream(engine, 0, OTHER) == fresh_stream(engine, PROMPT + OTHER)
    assert forked == fresh_stream(engine, PROMPT[:length] + OTHER)


def test_a_fork_outlives_its_source(engine: StepEngine) -> None:
    engine.open_sequence(0)
    evaluate(engine, 0, PROMPT)
    engine.fork(0, 1, 80)
    engine.close_sequence(0)
    engine.open_sequence(0)
    evaluate(engine, 0, OTHER)
    assert stream(engine, 1, OTHER) == fresh_stream(engine, PROMPT[:80] + OTHER)


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([StepRow(0, 4, (1,), True)], "invalid_value"),
        ([StepRow(0, 2, (1,), True)], "invalid_value"),
        ([StepRow(0, 3, (), True)], "invalid_value"),
        ([StepRow(0, 3, (VOCABULARY,), True)], "invalid_value"),
        ([StepRow(0, 3, (1, -1), False)], "invalid_value"),
        ([StepRow(9, 0, (1,), True)], "invalid_value"),
        ([StepRow(0, 3, (1,), True), StepRow(0, 4, (1,), True)], "invalid_value"),
        ([StepRow(1, 2, (1,), True), StepRow(0, 0, (1,), True)], "invalid_value"),
        ([StepRow(0, 3, (1,) * (CONTEXT - 2), True)], "context_length_exceeded"),
        ([StepRow(0, 3, (1,), True, sampling=SamplingParameters(logit_bias=((VOCABULARY, 1.0),)))], "invalid_value"),
        ([StepRow(0, 3, (1,), True, sampling=SamplingParameters(temperature=float("nan")))], "invalid_value"),
    ],
)
def test_rows_that_break_the_contract_are_refused_and_change_nothing(
    engine: StepEngine, rows: list[StepRow], code: str
) -> None:
    for sequence, count in ((0, 3), (1, 2)):
        engine.open_sequence(sequence)
        evaluate(engine, sequence, PROMPT[:count])
    with pytest.raises(InvalidRequest) as caught:
        engine.step(rows)
    assert caught.value.code == code
    assert (engine.length(0), engine.length(1)) == (3, 2)
    assert stream(engine, 0, OTHER) == fresh_stream(engine, PROMPT[:3] + OTHER)
    assert stream(engine, 1, OTHER) == fresh_stream(engine, PROMPT[:2] + OTHER)


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.length(9),
        lambda engine: engine.trim(9, 0),
        lambda engine: engine.trim(0, 4),
        lambda engine: engine.trim(0, -1),
        lambda engine: engine.fork(9, 1, 0),
        lambda engine: engine.fork(0, 0, 1),
        lambda engine: engine.fork(0, 1, 4),
    ],
    ids=["length of nobody", "trim nobody", "trim beyond", "trim below", "fork nobody", "fork onto itself", "fork beyond"],
)
def test_calls_that_break_the_contract_are_refused(engine: StepEngine, call: Callable[[StepEngine], None]) -> None:
    engine.open_sequence(0)
    evaluate(engine, 0, PROMPT[:3])
    with pytest.raises(InvalidRequest):
        call(engine)
    assert engine.length(0) == 3


def test_a_sequence_may_fill_the_context_to_the_last_position(engine: StepEngine) -> None:
    engine.open_sequence(0)
    evaluate(engine, 0, [7] * CONTEXT)
    assert engine.length(0) == CONTEXT


def test_all_sequences_have_room_for_the_whole_context_again_and_again(engine: StepEngine) -> None:
    for _ in range(3):
        for sequence in range(SEQUENCES):
            engine.open_sequence(sequence)
        with pytest.raises(DeviceFailed) as caught:
            engine.open_sequence(SEQUENCES)
        assert caught.value.code == "state_memory_exhausted"
        engine.step([StepRow(sequence, 0, (sequence,) * CONTEXT, True) for sequence in range(SEQUENCES)])
        for sequence in range(SEQUENCES):
            engine.close_sequence(sequence)


def test_closing_is_idempotent_and_leaves_nothing(engine: StepEngine) -> None:
    engine.open_sequence(0)
    evaluate(engine, 0, PROMPT)
    engine.close_sequence(0)
    engine.close_sequence(0)
    engine.close_sequence(12345)
    engine.open_sequence(0)
    assert engine.length(0) == 0
    assert stream(engine, 0, OTHER) == fresh_stream(engine, OTHER)
    engine.close()
    engine.close()


def test_opening_an_open_sequence_empties_it(engine: StepEngine) -> None:
    for sequence in range(SEQUENCES):
        engine.open_sequence(sequence)
    evaluate(engine, 2, PROMPT)
    engine.open_sequence(2)
    assert engine.length(2) == 0
    assert sorted(engine.sequences()) == list(range(SEQUENCES))


def test_an_engine_knows_its_open_sequences(engine: StepEngine) -> None:
    assert engine.sequences() == []
    for sequence in (7, 3):
        engine.open_sequence(sequence)
    engine.fork(3, 5, 0)
    engine.close_sequence(7)
    assert sorted(engine.sequences()) == [3, 5]


def fill(table: StepTable, engine: StepEngine, prompts: dict[int, list[int]], remaining: int) -> None:
    for sequence, prompt in prompts.items():
        engine.open_sequence(sequence)
        table.add(
            sequence=sequence,
            position=0,
            pending=prompt,
            remaining=remaining,
            output_index=0,
            sampling=SAMPLED if sequence % 2 else GREEDY,
            ends=frozenset(),
            history=prompt,
            prompt_length=len(prompt),
        )


def test_run_commits_the_steps_that_single_steps_would_have_made(engine: StepEngine) -> None:
    table = StepTable(slots_max=SEQUENCES, steps_max=16, rows_max=40)
    table.clear(steps_max=16)
    prompts = {0: PROMPT, 1: OTHER}
    fill(table, engine, prompts, remaining=6)
    assert sum(1 for _ in engine.run(table)) < table.steps_done  # no boundary after the last
    drawn = table.drawn[: table.steps_done]
    for slot, prompt in prompts.items():
        expected = fresh_stream(engine, prompt, count=6, sampling=SAMPLED if slot else GREEDY)
        assert [token for token in drawn[:, slot].tolist() if token != NOT_DRAWN] == expected
        assert engine.length(slot) == len(prompt) + 5


def test_run_ends_at_the_boundary_after_a_stop_and_can_be_taken_up_again(engine: StepEngine) -> None:
    prompt = PROMPT[:60]  # a step of any engine here holds it
    table = StepTable(slots_max=SEQUENCES, steps_max=16, rows_max=60)
    table.clear(steps_max=16)
    fill(table, engine, {0: prompt}, remaining=8)
    table.request_turn()  # a loop that runs ahead has few boundaries by itself
    running = engine.run(table)
    next(running)
    table.request_stop()
    assert list(running) == []
    done = table.steps_done
    assert 1 <= done < 8
    assert engine.length(0) == len(prompt) + done - 1
    drawn = [token for token in table.drawn[:done, 0].tolist() if token != NOT_DRAWN]
    assert drawn + stream(engine, 0, drawn[-1:], count=8 - done) == fresh_stream(engine, prompt, count=8)
