"""What the report kernel finds out about a row of logits, at every width, against float64."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tripower.backends.picolm.native.kernels.sampler.report import (
    NO_TOKEN,
    SUM_LARGEST,
    SUM_MASS,
    SUMS,
    build_report,
    report_scratch_bytes,
)
from tripower.backends.picolm.native.target import Target, host_target, narrower_targets
from tripower.runtime.engine.logprobs import TOP_LOGPROBS_MAX

Logits = NDArray[np.float32]
Found = tuple[NDArray[np.float64], NDArray[np.int32]]
UNTOUCHED = -77


def report(build_kernel: Any, target: Target, logits: Logits, wanted: Sequence[int], order: Iterable[int] = ()) -> Found:
    """Sums and likeliest tokens of all rows. Row `index` has slot `count - 1 - index` and is row `index + 1` of its step."""
    count, vocabulary = logits.shape
    sums, tokens = np.full((count, SUMS), UNTOUCHED, float), np.full((count, TOP_LOGPROBS_MAX), UNTOUCHED, np.int32)
    drawn_row = np.arange(1, count + 1, dtype=np.int32)
    row_slot = np.array([-1, *reversed(range(count))], np.int32)
    run = build_kernel(build_report, target, report_scratch_bytes())
    run(
        [logits, vocabulary, vocabulary, drawn_row, row_slot, np.array(wanted[::-1], np.int64), sums, tokens],
        order or range(count),
    )
    return sums, tokens


def rows_of_all_kinds(vocabulary: int) -> Logits:
    """Spread out, sharp, full of ties, all equal, one after the other larger, and mostly -inf."""
    random = np.random.default_rng(vocabulary)
    x = random.standard_normal((6, vocabulary)) * np.array([1, 12, 2, 0, 1, 3])[:, None]
    x[2] = np.round(x[2])
    x[4] = np.arange(vocabulary) * 0.01
    x[5, random.random(vocabulary) < 0.9] = -np.inf
    x[5, vocabulary // 2] = 40.0
    logits: Logits = x.astype(np.float32)
    return logits


@pytest.mark.parametrize("vocabulary", [1, 3, 16, 17, 96, 255, 1_003, 49_152])
@pytest.mark.parametrize("count", [0, 1, 5, TOP_LOGPROBS_MAX, TOP_LOGPROBS_MAX + 9])
def test_sums_and_the_likeliest_are_those_of_float64(build_kernel: Any, target: Target, vocabulary: int, count: int) -> None:
    logits = rows_of_all_kinds(vocabulary)
    sums, tokens = report(build_kernel, target, logits, [count] * len(logits))
    assert sums[:, SUM_LARGEST].tolist() == logits.max(axis=1).tolist()
    exact = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True)).sum(axis=1)
    np.testing.assert_allclose(sums[:, SUM_MASS], exact, rtol=1e-12)
    for values, found in zip(logits, tokens, strict=True):
        order = np.argsort(-values, kind="stable")[: min(count, TOP_LOGPROBS_MAX)]
        likeliest = order[np.isfinite(values[order])].tolist()
        assert found.tolist() == likeliest + [NO_TOKEN] * (TOP_LOGPROBS_MAX - len(likeliest))


def test_the_bits_are_the_same_at_every_width_and_in_every_company(build_kernel: Any) -> None:
    logits = rows_of_all_kinds(5_003)
    sums, tokens = report(build_kernel, host_target(), logits, [7] * 6)
    for target in narrower_targets():
        found = report(build_kernel, target, logits, [7] * 6, order=reversed(range(6)))
        assert (found[0].view(np.int64) == sums.view(np.int64)).all() and (found[1] == tokens).all()
    for row in range(6):
        alone = report(build_kernel, host_target(), logits[row : row + 1].copy(), [7])
        assert (alone[0].view(np.int64) == sums[row].view(np.int64)).all() and (alone[1] == tokens[row]).all()


def test_rows_of_slots_that_want_no_report_are_passed_over(build_kernel: Any, target: Target) -> None:
    sums, tokens = report(build_kernel, target, rows_of_all_kinds(50), [-1, 0, -1, 3, -1, 2])
    silent = [0, 2, 4]
    assert (sums[silent] == UNTOUCHED).all() and (tokens[silent] == UNTOUCHED).all()
    assert (sums[1::2] != UNTOUCHED).all()
