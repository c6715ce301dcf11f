"""Single steps with masks, bans and reports: what `StepRow` asks for, in one step or in as many as it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backends.native.engine.constrained import assert_close, exact_logprobs
from tests.backends.native.engine.rigs import GREEDY, SAMPLED, VOCABULARY, logits_alone, tokens_of
from tripower.backends.picolm.native.engine import NativeEngine
from tripower.backends.sampling import draw_token
from tripower.runtime.engine import RowReport, SamplingParameters, StepRow
from tripower.runtime.engine.step_table import INVALID_LOGITS, NOT_DRAWN
from tripower.runtime.kernel.errors import DeviceFailed

TOKENS = tuple(tokens_of(8, 70))
MASK = np.array([0x0F0F0F0F, 0, 0xFF], np.uint32)
NOTHING = np.zeros(3, np.uint32)


@pytest.fixture
def engine(tiny_model: Any, make_engine: Any) -> NativeEngine:
    made: NativeEngine = make_engine(tiny_model("llama", layers=2), threads=2, slots_max=2, sequences_max=6)
    for sequence in range(5):
        made.open_sequence(sequence)
    return made


@pytest.mark.parametrize("pieces", [(70,), (1, 69), (33, 30, 7), (17,) * 4 + (2,)], ids=str)
def test_a_prompt_is_told_of_whatever_the_pieces(engine: NativeEngine, pieces: tuple[int, ...]) -> None:
    logits = logits_alone(engine, TOKENS)
    found, start = [], 0
    for size in pieces:
        end, report = start + size, RowReport()
        following = TOKENS[end] if end < len(TOKENS) else -1
        row = StepRow(
            0, start, TOKENS[start:end], draw=following < 0, sampling=GREEDY, logprobs=2, prompt_logprobs=1,
            following=following, report=report, prompt_length=len(TOKENS),
        )  # fmt: skip
        other = StepRow(1, start, TOKENS[start:end], draw=True, sampling=GREEDY)
        beside = engine.step([other, row])
        assert beside[0] == int(logits[end - 1].argmax())
        assert (report.drawn is None) == (beside[1] == NOT_DRAWN)
        found += report.prompt
        start = end
    assert report.drawn is not None
    assert_close([report.drawn], [exact_logprobs(logits[-1], int(logits[-1].argmax()), 2)])
    assert_close(found, [exact_logprobs(row, token, 1) for row, token in zip(logits, TOKENS[1:], strict=False)])


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, SamplingParameters(seed=4, banned=(1, 2, 3), banned_until=1)])
def test_more_rows_than_slots_keep_their_masks_and_reports_apart(engine: NativeEngine, sampling: SamplingParameters) -> None:
    masks = [None, MASK, None, ~MASK, MASK[:1]]
    reports = [RowReport() if sequence % 2 else None for sequence in range(5)]
    rows = [
        StepRow(sequence, 0, TOKENS[: 30 + sequence], True, 0, sampling, TOKENS[: 30 + sequence], 30 + sequence, masks[sequence],
                logprobs=3 if reports[sequence] else -1, report=reports[sequence])
        for sequence in range(5)
    ]  # fmt: skip
    logits = logits_alone(engine, TOKENS)
    tokens = engine.step(rows)
    for row, token in zip(rows, tokens, strict=True):
        values = logits[len(row.tokens) - 1]
        assert token == draw_token(values, row)
        if row.report is not None:
            assert row.report.drawn is not None and not row.report.prompt
            assert_close([row.report.drawn], [exact_logprobs(values, token, 3)])


def test_a_mask_that_leaves_nothing_fails_its_own_row(engine: NativeEngine) -> None:
    report = RowReport()
    rows = [
        StepRow(0, 0, TOKENS[:3], True, mask=NOTHING, logprobs=1, report=report),
        StepRow(1, 0, TOKENS[:3], True, sampling=GREEDY),
        StepRow(2, 0, TOKENS[:3], True, sampling=SamplingParameters(banned=tuple(range(VOCABULARY)), banned_until=1)),
    ]
    invalid, good, banned = engine.step(rows)
    assert (invalid, banned) == (INVALID_LOGITS, INVALID_LOGITS) and good >= 0 and report.drawn is None
    assert engine.length(0) == 3


def test_logits_that_are_not_finite_are_the_devices_fault_behind_any_mask(tiny_model: Any, make_engine: Any) -> None:
    embedding = np.random.default_rng(3).standard_normal((VOCABULARY, 32))
    embedding[5] = np.nan
    engine: NativeEngine = make_engine(tiny_model("llama", tied=False, tensors={"token_embd.weight": embedding}))
    engine.open_sequence(0)
    for mask in (None, MASK, NOTHING):
        with pytest.raises(DeviceFailed) as caught:
            engine.step([StepRow(0, 0, (5,), True, mask=mask)])
        assert caught.value.code == "invalid_logits" and engine.length(0) == 0
