"""Masks, bans and log probabilities: the same of every engine behind the contract, and of the toy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.backends.test_engine_contract import CONTEXT, ENGINES, GREEDY, OTHER, PROMPT, SEQUENCES, VOCABULARY
from tests.constraints import Broken, Script, mask_of
from tripower.backends.toy import ToyEngine
from tripower.backends.toy.engine import absorb_all, toy_logits
from tripower.runtime.engine import RowReport, SamplingParameters, StepEngine, StepRow, StepTable, TokenLogprobs
from tripower.runtime.engine.logprobs import TOP_LOGPROBS_MAX
from tripower.runtime.engine.step_table import INVALID_LOGITS, NOT_DRAWN

CONTROLLED = [*(name for name in ENGINES if "gemma3" not in name), "toy"]


@pytest.fixture(params=CONTROLLED)
def engine(request: pytest.FixtureRequest, tiny_model: Any) -> Iterable[StepEngine]:
    if request.param == "toy":
        yield ToyEngine(context=CONTEXT, sequences_max=SEQUENCES, native=True)
        return
    loader, architecture, options = ENGINES[request.param]
    path = tiny_model(architecture, vocabulary=VOCABULARY, **options)
    engine = request.getfixturevalue(loader)(path, context=CONTEXT, sequences_max=SEQUENCES)
    yield engine
    engine.close()


def one_step(engine: StepEngine, tokens: list[int], **more: Any) -> tuple[int, RowReport]:
    """What a fresh sequence draws after these tokens, and the report where one is wanted."""
    engine.open_sequence(0)
    report = RowReport()
    row = StepRow(0, 0, tuple(tokens), True, sampling=GREEDY, history=tokens, prompt_length=len(tokens))
    [token] = engine.step([msgspec.structs.replace(row, report=report, **more)])
    engine.close_sequence(0)
    return token, report


def distribution(engine: StepEngine, tokens: list[int]) -> NDArray[np.float64]:
    """Log probabilities of all tokens after these, from the engine's logits."""
    if isinstance(engine, ToyEngine):
        logits = toy_logits(absorb_all(0, tokens))
    else:
        engine.open_sequence(0)
        if engine.info.backend == "llamacpp":  # its kernels depend on the step: what the same step left behind
            engine.step([StepRow(0, 0, tuple(tokens), True, sampling=GREEDY)])
            logits = cast(Any, engine)._context.logits(1)[0].copy()
        else:
            logits = cast(Any, engine).logits(0, tokens)[-1]
        engine.close_sequence(0)
    wide = logits.astype(np.float64)
    found: NDArray[np.float64] = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    return found


def in_order(logprobs: NDArray[np.float64]) -> list[int]:
    """Tokens, likeliest first, the lower id first among equals."""
    return sorted(range(len(logprobs)), key=lambda token: (-logprobs[token], token))


def tolerance(engine: StepEngine) -> float:
    """llama.cpp keeps its state in float16, and chooses the kernel of a row by its step."""
    return 1e-2 if engine.info.backend == "llamacpp" else 1e-4


def test_log_probabilities_are_the_log_of_the_softmax_of_the_logits(engine: StepEngine) -> None:
    token, report = one_step(engine, PROMPT, logprobs=TOP_LOGPROBS_MAX)
    whole = distribution(engine, PROMPT)
    assert report.drawn is not None and not report.prompt
    top = report.drawn.top
    assert [each for each, _ in top] == in_order(whole)[:TOP_LOGPROBS_MAX]
    assert [value for _, value in top] == pytest.approx([whole[each] for each, _ in top], abs=tolerance(engine))
    assert top[0] == (report.drawn.token, report.drawn.logprob) == (token, top[0][1])
    few = one_step(engine, PROMPT, logprobs=3)[1].drawn
    assert few is not None and [each for each, _ in few.top] == [each for each, _ in top[:3]]


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParameters(temperature=1.5, seed=3)], ids=["greedy", "sampled"])
def test_log_probabilities_do_not_see_what_the_draw_is_held_to(engine: StepEngine, sampling: SamplingParameters) -> None:
    whole = distribution(engine, PROMPT)
    wanted = in_order(whole)[7]
    mask = mask_of([wanted], engine.info.vocabulary_size)
    token, report = one_step(engine, PROMPT, logprobs=0, mask=mask, sampling=sampling)
    assert token == wanted and report.drawn is not None and report.drawn.top == ()
    assert report.drawn.logprob == pytest.approx(whole[wanted], abs=tolerance(engine))


def test_a_mask_and_a_ban_leave_the_likeliest_of_the_rest(engine: StepEngine) -> None:
    size = engine.info.vocabulary_size
    order = in_order(distribution(engine, PROMPT))
    assert one_step(engine, PROMPT, mask=mask_of(order[3:], size))[0] == order[3]
    banning = SamplingParameters(temperature=0.0, banned=tuple(order[:2]), banned_until=4)
    assert one_step(engine, PROMPT, sampling=banning, output_index=3)[0] == order[2]
    assert one_step(engine, PROMPT, sampling=banning, output_index=4)[0] == order[0]
    assert one_step(engine, PROMPT, sampling=banning, mask=mask_of(order[1:], size))[0] == order[2]


def test_a_mask_that_allows_nothing_ends_its_own_row_and_no_other(engine: StepEngine) -> None:
    alone, _ = one_step(engine, OTHER)
    for sequence in (0, 1):
        engine.open_sequence(sequence)
    nothing = mask_of((), engine.info.vocabulary_size)
    rows = [
        StepRow(0, 0, tuple(PROMPT), True, sampling=GREEDY, mask=nothing, logprobs=2, report=RowReport()),
        StepRow(1, 0, tuple(OTHER), True, sampling=GREEDY),
    ]
    assert engine.step(rows) == [INVALID_LOGITS, alone]


@pytest.mark.parametrize("chunks", [(90,), (1, 40, 49), (64, 26)], ids=str)
def test_a_prompts_log_probabilities_are_those_of_each_next_token(engine: StepEngine, chunks: tuple[int, ...]) -> None:
    engine.open_sequence(0)
    told: list[TokenLogprobs] = []
    start = 0
    for chunk in chunks:
        report, end = RowReport(), start + chunk
        following = PROMPT[end] if end < len(PROMPT) else -1
        row = StepRow(0, start, tuple(PROMPT[start:end]), False, prompt_length=90, prompt_logprobs=2, following=following)
        assert engine.step([msgspec.structs.replace(row, report=report)]) == [NOT_DRAWN]
        told += report.prompt
        start = end
    engine.close_sequence(0)
    assert [each.token for each in told] == PROMPT[1:]
    for place in (0, 39, 41, 63, 64, 88):
        whole = distribution(engine, PROMPT[: place + 1])
        assert told[place].logprob == pytest.approx(whole[PROMPT[place + 1]], abs=tolerance(engine))
        assert [token for token, _ in told[place].top] == in_order(whole)[:2]


def add(table: StepTable, engine: StepEngine, prompt: list[int], **more: Any) -> None:
    sequence = table.slots
    engine.open_sequence(sequence)
    settings: dict[str, Any] = {"remaining": 6, "ends": frozenset(), "sampling": GREEDY} | more
    table.add(
        sequence=sequence, position=0, pending=prompt, output_index=0, history=prompt, prompt_length=len(prompt), **settings
    )


def new_table() -> StepTable:
    table = StepTable(slots_max=SEQUENCES, steps_max=32, rows_max=40)
    table.clear(steps_max=32)
    return table


def drawn_of(table: StepTable, slot: int) -> list[int]:
    return [token for token in table.drawn[: table.steps_done, slot].tolist() if token != NOT_DRAWN]


def told_of(table: StepTable, slot: int) -> list[RowReport]:
    return [table.reports[step][slot] for step in range(table.steps_done) if slot in table.reports.get(step, {})]


def test_run_holds_each_slot_to_its_own_constraint_and_tells_before_it_commits(engine: StepEngine) -> None:
    plain = new_table()
    add(plain, engine, OTHER)
    list(engine.run(plain))

    size, wanted = engine.info.vocabulary_size, [5, 80, 5, 31, 32, 64]
    script = Script([[token] for token in wanted], size)
    table = new_table()
    add(table, engine, PROMPT, constraint=script, logprobs=1)
    add(table, engine, OTHER)
    add(table, engine, OTHER, constraint=Broken())
    add(table, engine, PROMPT[:50], remaining=0, prompt_logprobs=0)
    for _ in engine.run(table):
        last = table.steps_done - 1
        assert table.drawn[last, 0] == NOT_DRAWN or 0 in table.reports[last]
    assert drawn_of(table, 0) == script.accepted == wanted and script.asked == list(range(6))
    assert drawn_of(table, 1) == drawn_of(plain, 0)
    assert drawn_of(table, 2) == [INVALID_LOGITS]
    assert [report.drawn.token for report in told_of(table, 0) if report.drawn] == wanted
    assert [each.token for report in told_of(table, 3) for each in report.prompt] == PROMPT[1:50]
    assert all(report.drawn is None for report in told_of(table, 3))


def test_run_ends_at_any_token_that_it_is_given_and_bans_it_before(engine: StepEngine) -> None:
    plain = new_table()
    add(plain, engine, PROMPT, remaining=12)
    list(engine.run(plain))
    tokens = drawn_of(plain, 0)

    table = new_table()
    add(table, engine, PROMPT, remaining=12, ends=frozenset({tokens[2]}))
    banning = SamplingParameters(temperature=0.0, banned=(tokens[0],), banned_until=1)
    add(table, engine, PROMPT, remaining=12, ends=frozenset({tokens[0]}), sampling=banning)
    list(engine.run(table))
    assert drawn_of(table, 0) == tokens[: tokens.index(tokens[2]) + 1]
    assert drawn_of(table, 1)[0] != tokens[0] and len(drawn_of(table, 1)) > 1
