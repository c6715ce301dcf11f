"""Strategies by their words, and bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tripower.runtime.engine.drafting import Drafter
from tripower.runtime.engine.row_costs import RowCosts
from tripower.runtime.kernel.errors import InvalidConfiguration
from tripower.runtime.speculation import (
    AdaptiveDrafter,
    FixedDrafter,
    SpeculationSettings,
    Strategy,
    make_drafter,
    read_strategy,
)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("auto", "auto AUTO"),
        ("off", "off none false False"),
        ("prompt-lookup", "prompt-lookup prompt_lookup lookup true"),
        ("ngram-context", "ngram-context ngram_context context"),
        ("draft-model", "draft-model draft_model draft"),
        ("mtp", "mtp multi-token-prediction multi_token_prediction"),
        ("dflash", "dflash DFlash"),
        ("dspark", "dspark"),
    ],
)
def test_a_strategy_is_read_from_each_of_its_words(strategy: str, words: str) -> None:
    assert {read_strategy(f"  {word} ") for word in words.split()} == {Strategy(strategy)}


@pytest.mark.parametrize("word", ["", "on", "eagle", "lookup2", "n-gram"])
def test_an_unknown_word_is_refused_with_the_known_ones(word: str) -> None:
    with pytest.raises(InvalidConfiguration, match="prompt-lookup") as refusal:
        read_strategy(word)
    assert refusal.value.param == "speculation.mode"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("draft_max", {"draft_max": 65}),
        ("draft_max", {"draft_max": -1}),
        ("draft_min", {"draft_min": 0}),
        ("draft_min", {"draft_max": 4, "draft_min": 5}),
        ("draft_min", {"draft_min": 9, "adaptive": False}),
        ("draft_p_min", {"draft_p_min": 1.5}),
        ("draft_p_min", {"draft_p_min": math.nan}),
        ("ngram_max", {"ngram_max": 17}),
        ("ngram_min", {"ngram_min": 6}),
        ("ngram_min", {"ngram_min": 0}),
    ],
)
def test_a_bound_out_of_range_is_refused_by_its_name(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration) as refusal:
        SpeculationSettings(**values)
    assert refusal.value.param == f"speculation.{field}"


@pytest.mark.parametrize(
    ("strategy", "width"),
    [("mtp", 3), ("draft-model", 4), ("dflash", 4), ("dspark", 4), ("auto", 8), ("prompt-lookup", 8), ("ngram-context", 8)],
)
def test_an_unset_length_is_the_strategys(strategy: str, width: int) -> None:
    assert SpeculationSettings(strategy=Strategy(strategy), adaptive=False).width_max == width
    assert SpeculationSettings(strategy=Strategy(strategy)).width_max == (15 if width == 8 else width)
    assert SpeculationSettings(strategy=Strategy(strategy), draft_max=6).width_max == 6


def made(strategy: str, prompt: list[int], **values: Any) -> Drafter | None:
    return make_drafter(SpeculationSettings(strategy=Strategy(strategy), **values), prompt, RowCosts((1.0, 1.0, 1.0, 1.0)))


def test_off_has_no_drafter() -> None:
    assert made("off", [1, 2]) is None


def test_auto_searches_the_output_too_and_prompt_lookup_does_not() -> None:
    guesses = []
    for strategy in ("auto", "ngram-context", "prompt-lookup"):
        drafter = made(strategy, [60, 70])
        assert isinstance(drafter, AdaptiveDrafter)
        drafter.accept([1, 2, 3, 9, 1, 2], 0)
        guesses.append(list(drafter.propose(3)))
    assert guesses == [[3, 9, 1], [3, 9, 1], []]


@pytest.mark.parametrize(
    ("strategy", "code"),
    [
        ("draft-model", "draft_missing"),
        ("mtp", "unsupported_strategy"),
        ("dflash", "unsupported_strategy"),
        ("dspark", "unsupported_strategy"),
    ],
)
def test_a_strategy_that_needs_weights_is_refused_and_not_replaced(strategy: str, code: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"speculation\.mode") as refusal:
        made(strategy, [1, 2])
    assert refusal.value.code == code


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_guess_shorter_than_the_least_length_is_dropped(adaptive: bool) -> None:
    prompt = [1, 2, 3, 4, 9, 1, 2]  # two tokens follow in what the prompt may give: 3 4 9 …
    wide = made("prompt-lookup", prompt, adaptive=adaptive, draft_min=2)
    assert wide is not None
    assert len(wide.propose(1)) == 0
    assert len(wide.propose(2)) == 2


def test_without_adaption_each_draft_is_as_long_as_there_is_room() -> None:
    drafter = made("ngram-context", [1, 2, 3, 4, 5, 6, 7, 1, 2], adaptive=False, draft_max=4)
    assert isinstance(drafter, FixedDrafter)
    assert list(drafter.propose(64)) == [3, 4, 5, 6]
    assert list(drafter.propose(3)) == [3, 4, 5]
