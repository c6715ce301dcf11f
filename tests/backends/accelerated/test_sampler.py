"""Draws on the device are those of the host, id for id."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tripower.backends.picolm.accelerated.sampler import SamplerClass, draw, needs_host, running_sum, sampler_class
from tripower.backends.picolm.accelerated.step_inputs import StepInputs
from tripower.backends.picolm.accelerated.step_shape import GroupShape, StepShape
from tripower.backends.sampling import draw_rows
from tripower.runtime.engine import SamplingParameters, StepRow
from tripower.runtime.engine.step_table import INVALID_LOGITS

CPU = torch.device("cpu")
GREEDY = SamplingParameters(temperature=0.0)


def step_rows(parameters: list[SamplingParameters], first_index: int = 0) -> list[StepRow]:
    return [StepRow(i, 0, (1,), True, first_index + i, each) for i, each in enumerate(parameters)]


def drawn_here(logits: NDArray[np.float32], rows: list[StepRow], needed: SamplerClass | None = None) -> list[int]:
    inputs = StepInputs(StepShape((GroupShape(len(rows), 1, (1,)),), len(rows), decode=True), CPU)
    inputs.fill_draws([(place, place, row) for place, row in enumerate(rows)])
    inputs.send()
    chosen = needed or sampler_class([row.sampling for row in rows], logits.shape[1])
    tokens: list[int] = draw(torch.from_numpy(logits), inputs.device, chosen).tolist()
    return tokens


def random_parameters(random: np.random.Generator) -> SamplingParameters:
    return SamplingParameters(
        temperature=float(random.choice([0.0, 1e-3, 0.3, 0.8, 1.0, 2.5])),
        top_k=int(random.choice([0, 0, 1, 2, 40, 200, 5000])),
        top_p=float(random.choice([1.0, 1.0, 0.99, 0.9, 0.5, 0.01, 0.0])),
        min_p=float(random.choice([0.0, 0.0, 0.01, 0.2, 1.0])),
        seed=int(random.integers(0, 2**63)),
        choice=int(random.integers(0, 4)),
    )


@pytest.mark.parametrize("vocabulary", [2, 97, 1000])
@pytest.mark.parametrize("form", ["wide", "narrow", "ties", "masked"])
def test_ten_thousand_rows_are_drawn_as_on_the_host(vocabulary: int, form: str) -> None:
    random = np.random.default_rng(vocabulary)
    for block in range(17):
        logits = (random.standard_normal((50, vocabulary)) * (12 if form == "wide" else 1)).astype(np.float32)
        if form == "ties":
            logits = np.round(logits)
        if form == "masked":
            logits[:, 1:][random.random((50, vocabulary - 1)) < 0.7] = -np.inf
        rows = step_rows([random_parameters(random) for _ in range(50)], block * 50)
        assert drawn_here(logits, rows) == draw_rows(logits, rows)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.sampled_from([0.0, 1.0, 1.0, 3.0, -5.0, -np.inf]), min_size=1, max_size=12),
    st.builds(
        SamplingParameters,
        temperature=st.sampled_from([1e-9, 0.5, 1.0, 1e6]),
        top_k=st.integers(-1, 14),
        top_p=st.sampled_from([-1.0, 0.0, 0.25, 0.5, 0.75, 0.999, 1.0, 2.0]),
        min_p=st.sampled_from([-0.5, 0.0, 0.1, 1.0, 1.5]),
        seed=st.integers(0, 2**64 - 1),
    ),
    st.integers(0, 1000),
)
def test_edges_of_the_settings_mean_the_same_as_on_the_host(
    values: list[float], parameters: SamplingParameters, output_index: int
) -> None:
    logits = np.array([[2.0, *values]], np.float32)
    rows = step_rows([parameters], output_index)
    assert drawn_here(logits, rows) == draw_rows(logits, rows)


def test_a_row_draws_the_same_alone_in_a_batch_and_in_any_order() -> None:
    random = np.random.default_rng(3)
    logits = random.standard_normal((8, 500)).astype(np.float32)
    rows = step_rows([random_parameters(random) for _ in range(8)])
    together = drawn_here(logits, rows, "narrowed")
    assert [drawn_here(logits[i : i + 1], [rows[i]], "narrowed")[0] for i in range(8)] == together
    assert drawn_here(np.ascontiguousarray(logits[::-1]), rows[::-1], "narrowed")[::-1] == together


@pytest.mark.parametrize("needed", ["greedy", "drawn", "narrowed"])
def test_greedy_rows_take_the_lowest_of_equals_whatever_the_class(needed: SamplerClass) -> None:
    logits = np.array([[1, 5, 5, 0], [7, 7, 7, 7]], np.float32)
    assert drawn_here(logits, step_rows([GREEDY, GREEDY]), needed) == [1, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_without_finite_logits_fails_and_no_other(bad: float) -> None:
    logits = np.zeros((3, 5), np.float32)
    logits[1] = -np.inf
    logits[1, 3] = bad
    hot = SamplingParameters(temperature=1.0, top_k=2, seed=1)
    for parameters in (GREEDY, hot):
        tokens = drawn_here(logits, step_rows([parameters] * 3), "narrowed")
        assert tokens[1] == INVALID_LOGITS and min(tokens[0], tokens[2]) >= 0


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ([], "greedy"),
        ([GREEDY], "greedy"),
        ([SamplingParameters(temperature=0.0, top_k=5)], "greedy"),
        ([GREEDY, SamplingParameters(min_p=0.1)], "drawn"),
        ([SamplingParameters(top_k=10)], "drawn"),
        ([SamplingParameters(top_k=9)], "narrowed"),
        ([SamplingParameters(), SamplingParameters(top_p=0.9)], "narrowed"),
    ],
)
def test_a_step_sorts_only_where_a_row_needs_it(parameters: list[SamplingParameters], expected: str) -> None:
    assert sampler_class(parameters, 10) == expected


@pytest.mark.parametrize(
    ("parameters", "more", "host"),
    [
        (GREEDY, {}, False),
        (SamplingParameters(top_p=0.5), {}, False),
        (SamplingParameters(repeat_penalty=1.1), {}, True),
        (SamplingParameters(temperature=0.0, presence_penalty=0.1), {}, True),
        (SamplingParameters(frequency_penalty=-0.1), {}, True),
        (SamplingParameters(logit_bias=((1, 2.0),)), {}, True),
        (GREEDY, {"mask": np.ones(1, np.uint32)}, True),
        (SamplingParameters(banned=(1,), banned_until=3), {"output_index": 2}, True),
        (SamplingParameters(banned=(1,), banned_until=3), {"output_index": 3}, False),
        (GREEDY, {"logprobs": 2}, False),
    ],
)
def test_rows_with_penalties_a_bias_a_mask_or_a_ban_are_the_hosts(
    parameters: SamplingParameters, more: dict[str, Any], host: bool
) -> None:
    assert needs_host(StepRow(0, 0, (1,), True, sampling=parameters, **more)) is host


@pytest.mark.parametrize("size", [1, 2, 3, 64, 65, 1000])
def test_running_sums_are_sums_of_beginnings_whatever_the_rows(size: int) -> None:
    values = torch.rand(5, size, dtype=torch.float64)
    found = running_sum(values)
    torch.testing.assert_close(found, values.cumsum(-1), rtol=1e-14, atol=0)
    assert torch.equal(found[2:3], running_sum(values[2:3]))
