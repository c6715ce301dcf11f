"""What ours has to reach, and how much of a bench fits into its time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.bench.serving.targets import PREFILL, TOKENS_MIN, Size, Trial, size_blocks, target_for

SMALL, GEMMA = "smollm2-135m", "gemma-3-270m"


@pytest.mark.parametrize(
    ("peer", "model", "encoding", "ratios"),
    [
        ("llamacpp", SMALL, "Q4_1", {1: 1.3, 4: 2.5, 8: 3.0, 16: 3.0, PREFILL: 2.5}),
        ("llamacpp", SMALL, "Q4_0", {1: 1.0, 4: 1.3, 8: 1.6, 16: 1.6, PREFILL: 1.0}),
        ("llamacpp", GEMMA, "Q4_K_M", {1: 1.1, 4: 1.5, 8: 2.0, 16: 2.0, PREFILL: None}),
        ("llamacpp", SMALL, "Q8_0", {1: None, 16: None, PREFILL: None}),
        ("llamacpp", "another", "Q4_1", {1: None, PREFILL: None}),
        ("llamacpp", SMALL, "Q4_1", {2: None, 32: None}),
        ("mistralrs", SMALL, "Q4_1", {1: 6.0, 4: 6.0, 16: 6.0, PREFILL: None}),
        ("transformers", "any", "?", {1: 5.0, 8: 5.0, 16: 5.0, PREFILL: None}),
        ("own-llamacpp", SMALL, "Q4_1", {1: 0.97, 16: 0.97, PREFILL: None}),
        (None, SMALL, "Q4_1", {1: None, PREFILL: None}),
    ],
)
def test_targets_belong_to_a_model_an_encoding_and_a_peer(
    peer: str | None, model: str, encoding: str, ratios: dict[int, float | None]
) -> None:
    for concurrency, ratio in ratios.items():
        target = target_for(peer, model, encoding, concurrency)
        assert (target and target.limit) == ratio
        assert target is None or (target.column, target.relation) == ("ratio", ">=")


FAST = Trial(tokens=9, seconds=1.0, soonest=0.2)


def test_a_longer_block_takes_the_first_token_once() -> None:
    assert FAST.seconds_for(9) == pytest.approx(1.0)
    assert FAST.seconds_for(1) == pytest.approx(0.2)
    assert FAST.seconds_for(17) == pytest.approx(1.8)


@pytest.mark.parametrize(
    ("slow", "seconds", "size"),
    [
        (FAST, 1e9, Size(64, 8)),  # everything fits
        (FAST, 100.0, Size(64, 4)),  # 5 rounds of 19.5 s: an even number of them
        (FAST, 30.0, Size(32, 2)),  # no two of 64 tokens
        (FAST, 1.0, Size(8, 2)),  # not even the shortest: both orders all the same
        (Trial(tokens=8, seconds=80.0, soonest=3.0), 60.0, Size(8, 2)),
    ],
)
def test_rounds_get_fewer_before_blocks_get_shorter(slow: Trial, seconds: float, size: Size) -> None:
    assert size_blocks(FAST, slow, tokens_max=64, rounds_max=8, seconds=seconds) == size


def test_a_quick_run_keeps_its_one_round() -> None:
    assert size_blocks(FAST, FAST, tokens_max=8, rounds_max=1, seconds=60) == Size(8, 1)


@settings(deadline=None)
@given(st.floats(0.001, 1e4), st.floats(0, 1), st.integers(1, 4096), st.integers(1, 64), st.floats(0.1, 1e5))
def test_what_is_chosen_lies_within_what_was_asked_for(
    seconds: float, share: float, tokens: int, rounds: int, budget: float
) -> None:
    trial = Trial(tokens=8, seconds=seconds, soonest=share * seconds)
    size = size_blocks(trial, FAST, tokens_max=tokens, rounds_max=rounds, seconds=budget)
    assert min(tokens, TOKENS_MIN) <= size.tokens <= tokens
    assert 1 <= size.rounds <= rounds
    assert size.rounds % 2 == 0 or rounds == 1
