"""A token is a function of its own row, history and parameters: the order of the stages, the draw, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.constraints import mask_of
from tripower.backends.sampling import (
    LOGPROB_MIN,
    allowed_tokens,
    check_sampling,
    draw_rows,
    draw_token,
    is_plain_greedy,
    row_logprobs,
    uniform,
)
from tripower.runtime.engine import SamplingParameters, StepRow
from tripower.runtime.engine.step_table import INVALID_LOGITS
from tripower.runtime.kernel.errors import DeviceFailed, InvalidRequest

GREEDY = SamplingParameters(temperature=0.0)
WORD = 2**64 - 1


def row(sampling: SamplingParameters, *, output_index: int = 0, history: Sequence[int] = (), prompt_length: int = 0) -> StepRow:
    return StepRow(0, 0, (0,), True, output_index, sampling, history, prompt_length)


def logits(*values: float) -> Any:
    return np.array(values, np.float32)


def philox_4x64_10(counter: list[int], key: list[int]) -> list[int]:
    """The generator as its authors describe it, written down once more."""
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * counter[0], 0xCA5A826395121157 * counter[2]
        counter = [(right >> 64) ^ counter[1] ^ key[0], right & WORD, (left >> 64) ^ counter[3] ^ key[1], left & WORD]
        key = [(key[0] + 0x9E3779B97F4A7C15) & WORD, (key[1] + 0xBB67AE8584CAA73B) & WORD]
    return counter


def plain_draw(values: Any, sampling: SamplingParameters, output_index: int) -> int:
    """The same stages on lists, with a full sort and no shortcut."""
    kept = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if sampling.top_k:
        kept = kept[: sampling.top_k]
    top = values[kept[0]]
    if sampling.top_p < 1:
        mass = {token: float(np.exp(values[token] - top)) for token in kept}
        wanted = sampling.top_p * float(np.array([mass[token] for token in sorted(kept)]).sum())
        kept = kept[: int(np.searchsorted(np.cumsum([mass[token] for token in kept]), wanted)) + 1]
    if sampling.min_p:
        kept = [token for token in kept if values[token] - top >= min(math.log(sampling.min_p), 0.0)]
    kept.sort()
    weights = np.cumsum([math.exp((values[token] - top) / sampling.temperature) for token in kept])
    return kept[
        int(np.searchsorted(weights, uniform(sampling.seed, sampling.choice, output_index) * weights[-1], side="right"))
    ]


@given(st.integers(0, WORD), st.integers(0, 2**32), st.integers(0, 2**32))
def test_the_uniform_number_is_philox_keyed_by_seed_choice_and_output_index(seed: int, choice: int, output_index: int) -> None:
    expected = philox_4x64_10([output_index + 1, 0, 0, 0], [seed, choice])[0] >> 11
    assert uniform(seed, choice, output_index) * 2**53 == expected


@pytest.mark.parametrize("count", [1, 3, 40])
def test_greedy_takes_the_largest_logit_and_the_lowest_id_of_equals(count: int) -> None:
    rows = np.zeros((count, 100), np.float32)
    rows[:, [7, 3, 90]] = 2.5
    assert draw_rows(rows, [row(GREEDY)] * count) == [3] * count


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParameters(), msgspec.structs.replace(GREEDY, repeat_penalty=1.5)])
@pytest.mark.parametrize(
    "values",
    [(0.0, math.nan, 1.0), (math.nan,) * 3, (-math.inf,) * 3, (0.0, math.inf, 1.0)],
    ids=["nan", "all nan", "nothing left", "infinite"],
)
def test_rows_that_are_not_finite_are_a_fault_of_the_device(values: Any, sampling: SamplingParameters) -> None:
    good = logits(0.0, 1.0, 0.0)
    with pytest.raises(DeviceFailed) as caught:
        draw_rows(np.stack([good, logits(*values)]), [row(sampling)] * 2)
    assert caught.value.code == "invalid_logits"


def test_a_masked_token_is_never_drawn() -> None:
    values = logits(-math.inf, 0.0, -math.inf)
    drawn = {draw_token(values, row(SamplingParameters(temperature=5.0), output_index=index)) for index in range(50)}
    assert drawn == {1}


@pytest.mark.parametrize(
    ("sampling", "history", "prompt_length", "expected"),
    [
        ({"repeat_penalty": 2.0}, [2], 1, 1),
        ({"repeat_penalty": 2.0}, [1, 2], 2, 3),
        ({"repeat_penalty": 2.0, "repeat_last_n": 1}, [2, 9], 2, 2),
        ({"repeat_penalty": 2.0, "repeat_last_n": 0}, [2], 1, 2),
        ({"repeat_penalty": 2.0, "repeat_last_n": -1}, [2, *[9] * 100], 1, 1),
        ({"presence_penalty": 1.0}, [2], 0, 1),
        ({"presence_penalty": 1.0}, [2], 1, 2),
        ({"presence_penalty": 0.5}, [2, 2], 0, 2),
        ({"frequency_penalty": 0.5}, [2, 2], 0, 1),
        ({"frequency_penalty": 0.5}, [2, 2], 1, 2),
        ({"logit_bias": ((4, 100.0),)}, [], 0, 4),
        ({"logit_bias": ((2, -100.0), (1, -100.0))}, [], 0, 3),
        ({"logit_bias": ((2, -0.6),), "presence_penalty": 0.5}, [2], 0, 1),
    ],
)
def test_penalties_and_bias_change_the_largest_logit(
    sampling: dict[str, Any], history: list[int], prompt_length: int, expected: int
) -> None:
    values = logits(0.0, 2.0, 2.9, 1.5, -5.0, *[-9.0] * 6)
    parameters = SamplingParameters(temperature=0.0, **sampling)
    before = values.copy()
    assert draw_rows(values[None], [row(parameters, history=history, prompt_length=prompt_length)]) == [expected]
    assert np.array_equal(values, before)


def test_a_repetition_makes_negative_logits_smaller() -> None:
    values = logits(-1.0, -1.5, -1.8)
    assert draw_token(values, row(SamplingParameters(temperature=0.0, repeat_penalty=2.0), history=[0])) == 1


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"top_k": 2}, {1, 2}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_p": 0.0}, {1}),
        ({"top_p": 0.6}, {1, 2}),
        ({"min_p": 1.0}, {1, 2}),
        ({"min_p": 0.5}, {0, 1, 2, 3}),
        ({"top_k": 1, "top_p": 0.99, "min_p": 0.01}, {1}),
        ({"top_k": 3, "top_p": 0.5}, {1, 2}),
        ({"logit_bias": ((1, -100.0), (2, -100.0)), "top_k": 1}, {0}),
    ],
)
def test_filters_keep_the_largest_and_the_lower_id_of_equals(sampling: dict[str, Any], kept: set[int]) -> None:
    values = logits(*np.log([0.2, 0.3, 0.3, 0.2]))
    parameters = SamplingParameters(temperature=50.0, seed=11, **sampling)
    assert {draw_token(values, row(parameters, output_index=index)) for index in range(200)} == kept


def test_temperature_applies_after_the_filters() -> None:
    values = np.log(np.array([0.5, 0.3, 0.2])).astype(np.float32)
    hot = SamplingParameters(temperature=100.0, top_p=0.6)
    assert {draw_token(values, row(hot, output_index=index)) for index in range(100)} == {0, 1}


@pytest.mark.parametrize("temperature", [1e-300, 1e-9])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    values = np.random.default_rng(3).standard_normal(1000).astype(np.float32)
    assert draw_token(values, row(SamplingParameters(temperature=temperature))) == int(values.argmax())


def test_draws_follow_the_distribution() -> None:
    probabilities = np.array([0.05, 0.4, 0.25, 0.3])
    values = np.log(probabilities).astype(np.float32)
    count = 20_000
    drawn = Counter(draw_token(values, row(SamplingParameters(seed=5), output_index=index)) for index in range(count))
    for token, probability in enumerate(probabilities):
        assert abs(drawn[token] / count - probability) < 4 * math.sqrt(probability / count)


def test_seed_choice_and_output_index_all_change_the_draw() -> None:
    values = np.zeros(100_000, np.float32)
    drawn = {
        draw_token(values, row(SamplingParameters(seed=seed, choice=choice), output_index=index))
        for seed in range(3)
        for choice in range(3)
        for index in range(3)
    }
    assert len(drawn) == 27


SAMPLINGS = st.builds(
    SamplingParameters,
    temperature=st.sampled_from([0.1, 0.8, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 5, 60, 400]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.02, 0.3]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(deadline=None)
@given(SAMPLINGS, st.integers(0, 1000), st.integers(0, 2**32), st.sampled_from([0.1, 2.0, 20.0]), st.booleans())
def test_shortcuts_draw_what_a_full_sort_draws(
    sampling: SamplingParameters, output_index: int, seed: int, spread: float, coarse: bool
) -> None:
    spreads = np.random.default_rng(seed).standard_normal(600) * spread
    values = logits(*(np.round(spreads) if coarse else spreads))
    assert draw_token(values, row(sampling, output_index=output_index)) == plain_draw(values.tolist(), sampling, output_index)


@settings(deadline=None)
@given(st.lists(st.tuples(SAMPLINGS | st.just(GREEDY), st.integers(0, 5)), min_size=1, max_size=6), st.randoms())
def test_a_rows_token_does_not_depend_on_its_batch(rows: list[tuple[SamplingParameters, int]], random: Any) -> None:
    values = np.random.default_rng(len(rows)).standard_normal((len(rows), 500)).astype(np.float32)
    steps = [row(sampling, output_index=index) for sampling, index in rows]
    together = draw_rows(values, steps)
    assert together == [draw_rows(values[i : i + 1], [step])[0] for i, step in enumerate(steps)]
    order = list(range(len(rows)))
    random.shuffle(order)
    assert draw_rows(values[order], [steps[i] for i in order]) == [together[i] for i in order]


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": math.nan}, "top_p"),
        ({"min_p": math.inf}, "min_p"),
        ({"repeat_penalty": 0.0}, "repeat_penalty"),
        ({"repeat_penalty": -1.0}, "repeat_penalty"),
        ({"repeat_penalty": 1e-320}, "repeat_penalty"),
        ({"repeat_penalty": 1e308}, "repeat_penalty"),
        ({"presence_penalty": -1e308}, "presence_penalty"),
        ({"logit_bias": ((0, 1e308),)}, "logit_bias"),
        ({"presence_penalty": math.nan}, "presence_penalty"),
        ({"frequency_penalty": -math.inf}, "frequency_penalty"),
        ({"logit_bias": ((100, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((1, math.nan),)}, "logit_bias"),
        ({"banned": (100,)}, "banned"),
        ({"banned": (3, -1)}, "banned"),
    ],
)
def test_settings_that_cannot_be_drawn_with_name_their_field(sampling: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_sampling(SamplingParameters(**sampling), 100)
    assert caught.value.param == param


def test_ordinary_settings_are_accepted() -> None:
    check_sampling(SamplingParameters(temperature=0.7, top_p=0.0, logit_bias=((99, -100.0),)), 100)


def masked(sampling: SamplingParameters, allowed: Sequence[int], *, output_index: int = 0, size: int = 600) -> StepRow:
    return msgspec.structs.replace(row(sampling, output_index=output_index), mask=mask_of(allowed, size))


@settings(deadline=None)
@given(
    SAMPLINGS | st.just(GREEDY),
    st.sets(st.integers(0, 599), min_size=1, max_size=40),
    st.sets(st.integers(0, 599), max_size=5),
    st.integers(0, 2**32),
)
def test_what_mask_and_bans_leave_is_drawn_as_if_nothing_else_were_there(
    sampling: SamplingParameters, allowed: set[int], banned: set[int], seed: int
) -> None:
    values = np.round(np.random.default_rng(seed).standard_normal(600) * 3).astype(np.float32)
    sampling = msgspec.structs.replace(sampling, banned=tuple(banned), banned_until=5)
    left = sorted(allowed - banned)
    plain = msgspec.structs.replace(sampling, banned=())
    expected = left[draw_token(values[left], row(plain, output_index=4))] if left else INVALID_LOGITS
    assert draw_rows(values[None], [masked(sampling, sorted(allowed), output_index=4)]) == [expected]
    later = sorted(allowed)[draw_token(values[sorted(allowed)], row(plain, output_index=5))]
    assert draw_rows(values[None], [masked(sampling, sorted(allowed), output_index=5)]) == [later]


def test_penalties_and_bias_come_before_the_mask() -> None:
    values = logits(1.0, 2.0, 3.0)
    biased = SamplingParameters(temperature=0.0, logit_bias=((2, 1000.0), (0, 5.0)))
    assert draw_token(values, masked(biased, [0, 1], size=3)) == 0  # whatever a bias says, a mask has the last word


def test_a_row_without_a_token_left_is_its_own_fault_and_bad_logits_are_the_devices() -> None:
    values = np.stack([logits(1.0, 5.0, 2.0)] * 3)
    everything = SamplingParameters(banned=(0, 1, 2), banned_until=1)
    rows = [masked(GREEDY, [], size=3), row(GREEDY), row(everything)]
    assert draw_rows(values, rows) == [INVALID_LOGITS, 1, INVALID_LOGITS]
    values[0, 1] = math.nan
    with pytest.raises(DeviceFailed):
        draw_rows(values, rows)  # also where the mask hides it


def test_a_mask_may_be_shorter_or_longer_than_the_vocabulary() -> None:
    def allowed(*words: int) -> list[int]:
        mask = np.array(words, np.uint32)
        return np.flatnonzero(allowed_tokens(msgspec.structs.replace(row(GREEDY), mask=mask), 40)).tolist()

    assert allowed(1 << 31 | 1) == [0, 31]  # a vocabulary padded by the model: what has no text is not drawn
    assert allowed(2, 0x80, 7) == [1, 39]


@pytest.mark.parametrize(
    ("more", "output_index", "plain"),
    [({}, 0, True), ({"banned": (1,), "banned_until": 2}, 1, False), ({"banned": (1,), "banned_until": 2}, 2, True)],
)
def test_a_ban_is_no_plain_draw_while_it_lasts(more: dict[str, Any], output_index: int, plain: bool) -> None:
    assert is_plain_greedy(SamplingParameters(temperature=0.0, **more), output_index) is plain


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(0, 20), st.booleans())
def test_log_probabilities_are_the_log_of_the_softmax_in_order(seed: int, top: int, coarse: bool) -> None:
    spread = np.random.default_rng(seed).standard_normal(300) * 8
    values = (np.round(spread) if coarse else spread).astype(np.float32)
    wide = values.astype(np.float64)
    expected = wide - wide.max() - math.log(np.exp(wide - wide.max()).sum())
    found = row_logprobs(values, 7, top)
    order = sorted(range(300), key=lambda token: (-values[token], token))[:top]
    assert found.token == 7 and [token for token, _ in found.top] == order
    assert [found.logprob, *(value for _, value in found.top)] == pytest.approx([expected[7], *expected[order]], abs=1e-12)


@pytest.mark.parametrize("values", [(0.0, -math.inf, -1e5), (math.nan, 1.0, 2.0), (math.inf, 0.0, 1.0), (-math.inf,) * 3])
def test_log_probabilities_are_always_finite(values: tuple[float, ...]) -> None:
    found = row_logprobs(logits(*values), 1, 3)
    assert found.logprob == LOGPROB_MIN and len(found.top) == 3
    assert all(LOGPROB_MIN <= value <= 0 for _, value in found.top)
