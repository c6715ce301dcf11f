"""Divergences of hand-made distributions, against what can be worked out on paper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tripower.bench.fidelity.divergence import Fidelity, compare, divergences, log_softmax, paired_divergence


def logits(*rows: tuple[float, ...]) -> Any:
    return np.array(rows, np.float32)


EVEN, TILTED = (0.0, 0.0), (math.log(3.0), 0.0)  # probabilities 1/2, 1/2 and 3/4, 1/4


@pytest.mark.parametrize(
    ("reference", "other", "expected"),
    [
        (EVEN, EVEN, 0.0),
        (TILTED, TILTED, 0.0),
        (EVEN, TILTED, 0.5 * math.log(2 / 3) + 0.5 * math.log(2)),
        (TILTED, EVEN, 0.75 * math.log(1.5) + 0.25 * math.log(0.5)),
        ((5.0, 5.0), (-7.0, -7.0), 0.0),  # only differences count
        ((1e4, -1e4), (1e4, -1e4), 0.0),
    ],
)
def test_divergence_is_what_it_is_on_paper(reference: tuple[float, ...], other: tuple[float, ...], expected: float) -> None:
    [found] = divergences(log_softmax(logits(reference)), log_softmax(logits(other)))
    assert found == pytest.approx(expected, abs=1e-7)


def test_what_the_reference_holds_impossible_adds_nothing_and_the_reverse_is_infinite() -> None:
    sure, even = log_softmax(logits((0.0, -np.inf))), log_softmax(logits(EVEN))
    assert divergences(sure, even)[0] == pytest.approx(math.log(2))
    assert divergences(even, sure)[0] == math.inf


@settings(deadline=None)
@given(arrays(np.float32, (2, 3, 8), elements=st.floats(-30, 30, width=32)))
def test_no_divergence_is_negative_and_equal_distributions_have_none(pair: Any) -> None:
    reference, other = log_softmax(pair[0]), log_softmax(pair[1])
    assert np.exp(reference).sum(axis=-1) == pytest.approx(np.ones(3))
    assert (divergences(reference, other) > -1e-9).all()
    assert divergences(reference, reference) == pytest.approx(np.zeros(3), abs=1e-9)


def test_chunks_give_what_the_whole_gives() -> None:
    random = np.random.default_rng(3)
    reference, ours, peer = (random.standard_normal((10, 6)).astype(np.float32) for _ in range(3))
    [whole_ours, whole_peer] = compare([(reference, [ours, peer])])
    pieces = [(reference[at : at + 3], [ours[at : at + 3], peer[at : at + 3]]) for at in range(0, 10, 3)]
    [chunked_ours, chunked_peer] = compare(pieces)
    assert np.array_equal(whole_ours.divergence, chunked_ours.divergence)
    assert np.array_equal(whole_peer.agrees, chunked_peer.agrees)
    assert whole_ours.agreement == (reference.argmax(1) == ours.argmax(1)).mean()


def fidelity(*values: float) -> Fidelity:
    return Fidelity(np.array(values), np.array([True] * len(values)))


def test_the_ratio_is_that_of_the_means_and_its_quartiles_those_of_the_parts() -> None:
    paired = paired_divergence(fidelity(1.0, 2.0, 3.0, 6.0), fidelity(2.0, 2.0, 2.0, 2.0))
    assert (paired.ours, paired.peer, paired.ratio) == (3.0, 2.0, 1.5)
    assert paired.iqr == (0.875, 1.875)
    assert paired.rounds == 4


def test_a_peer_without_any_divergence_has_no_ratio() -> None:
    assert math.isnan(paired_divergence(fidelity(1.0), fidelity(0.0)).ratio)
