"""The frequencies of RoPE: plain, stretched by factors, scaled linearly, and scaled by YaRN."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.backends.picolm.decoder import RopeShape
from tripower.runtime.kernel.errors import ModelRefused

YARN = RopeShape(64, 10_000.0, scale=0.25, extrapolation=1.0, context_original=4096)


def test_frequencies_fall_from_one_by_powers_of_the_base() -> None:
    found = RopeShape(8, 10_000.0).frequencies()
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [1.0, 0.1, 0.01, 0.001], rtol=1e-15)


def test_linear_scaling_multiplies_them_and_factors_divide_them() -> None:
    found = RopeShape(4, 100.0, scale=0.5).frequencies(np.array([1.0, 4.0], np.float32))
    np.testing.assert_allclose(found, [0.5, 0.1 * 0.5 / 4.0], rtol=1e-15)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_factors_must_be_positive_numbers(factor: float) -> None:
    with pytest.raises(ModelRefused) as caught:
        RopeShape(4, 100.0).frequencies(np.array([1.0, factor]))
    assert caught.value.param == "rope_freqs.weight"


def test_yarn_keeps_fast_pairs_scales_slow_ones_and_mixes_those_between() -> None:
    """Pairs by the turns they make over the original context, as equation 13 of the paper has it, with whole pairs as bounds."""
    plain = RopeShape(64, 10_000.0).frequencies()
    found = YARN.frequencies() / plain
    turns = 4096 * plain / math.tau
    first_mixed, last_mixed = np.flatnonzero(turns >= 32.0)[-1], np.flatnonzero(turns <= 1.0)[0]
    np.testing.assert_allclose(found[: first_mixed + 1], 1.0)
    np.testing.assert_allclose(found[last_mixed:], 0.25)
    between = found[first_mixed : last_mixed + 1]
    np.testing.assert_allclose(np.diff(between), between[1] - between[0])
    assert len(between) > 3


def test_yarn_mixes_with_factors_applied_to_both_sides() -> None:
    factors = np.linspace(1.0, 8.0, 32)
    np.testing.assert_allclose(YARN.frequencies(factors), YARN.frequencies() / factors)


@pytest.mark.parametrize("extrapolation", [0.0, 0.5, 1.0])
def test_the_mix_is_as_strong_as_stated(extrapolation: float) -> None:
    shape = RopeShape(64, 10_000.0, scale=0.25, extrapolation=extrapolation, context_original=4096)
    linear = RopeShape(64, 10_000.0, scale=0.25).frequencies()
    np.testing.assert_allclose(shape.frequencies(), linear + extrapolation * (YARN.frequencies() - linear))


@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 64),
    st.floats(1.0001, 1e12),
    st.floats(1e-6, 1e6),
    st.integers(1, 2**31 - 1),
    st.floats(1e-6, 1e6),
    st.floats(1e-6, 1e6),
)
def test_yarn_stays_between_plain_and_scaled_whatever_is_stated(
    pairs: int, base: float, scale: float, context: int, fast: float, slow: float
) -> None:
    shape = RopeShape(2 * pairs, base, scale, extrapolation=1.0, context_original=context, beta_fast=fast, beta_slow=slow)
    found, plain = shape.frequencies(), RopeShape(2 * pairs, base).frequencies()
    low, high = np.minimum(plain, plain * scale), np.maximum(plain, plain * scale)
    assert np.isfinite(found).all()
    assert (found >= low * (1 - 1e-9)).all() and (found <= high * (1 + 1e-9)).all()
