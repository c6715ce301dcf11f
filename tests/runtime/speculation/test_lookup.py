"""Suffix lookups: the specification's cases, and any text against a search that reads all of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.runtime.speculation import Lookup
from tripower.runtime.speculation.suffix_index import SuffixIndex

FEW_TOKENS = st.lists(st.integers(0, 3), max_size=60)


def search(tokens: Sequence[int], shortest: int, longest: int, known: int) -> tuple[int, int]:
    """What the index promises, by reading everything: only what begins and ends within the first `known` tokens is found."""
    for length in range(min(longest, len(tokens)), shortest - 1, -1):
        suffix = list(tokens[len(tokens) - length :])
        for behind in range(known - 1, length - 1, -1):
            if list(tokens[behind - length : behind]) == suffix:
                return behind, length
    return -1, 0


@pytest.mark.parametrize(
    ("prompt", "emitted", "most", "guess"),
    [
        pytest.param([1, 2, 3, 4, 1, 2, 5], [1, 2], 1, [5], id="the most recent occurrence"),
        pytest.param([1, 2, 3, 4, 5, 1, 2, 3, 6, 7], [1, 2, 3], 8, [6, 7], id="up to the prompt's end"),
        pytest.param([9, 8, 1, 2], [], 4, [], id="a suffix does not find itself"),
        pytest.param([1, 2], [1, 2], 4, [], id="nothing of the prompt follows"),
        pytest.param([1], [], 4, [], id="history too short"),
        pytest.param([], [], 4, [], id="no prompt"),
        pytest.param([7, 8], [1, 2, 3, 9, 1, 2], 4, [], id="output is not searched"),
        pytest.param([1, 2, 3, 4, 1, 2, 5], [1, 2], 0, [], id="no room"),
    ],
)
def test_prompt_lookup_finds_what_followed_in_the_prompt(
    prompt: list[int], emitted: list[int], most: int, guess: list[int]
) -> None:
    source = Lookup(prompt, grows=False)
    for token in emitted:
        source.push(token)
    assert source.guess(most) == guess


@pytest.mark.parametrize(
    ("emitted", "most", "guess"),
    [
        ([1, 2, 3, 9, 1, 2], 4, [3, 9, 1, 2]),
        ([1, 2, 3, 9, 1, 2], 2, [3, 9]),
        ([1, 2, 3, 9, 1, 2], 7, [3, 9, 1, 2, 3, 9, 1]),
        ([5, 5, 5], 5, [5, 5, 5, 5, 5]),
        ([1, 2, 3], 4, []),
    ],
)
def test_ngram_context_finds_what_followed_in_the_output_and_runs_on(emitted: list[int], most: int, guess: list[int]) -> None:
    source = Lookup([70, 80, 90], grows=True)
    for token in emitted:
        source.push(token)
    assert source.guess(most) == guess


def test_output_comes_before_the_prompt_at_the_same_length() -> None:
    source = Lookup([1, 2, 7, 7], grows=True)
    for token in [1, 2, 8, 1, 2]:
        source.push(token)
    assert source.guess(1) == [8]


def test_a_longer_match_in_the_prompt_comes_before_a_shorter_one_in_the_output() -> None:
    source = Lookup([4, 1, 2, 7], grows=True)
    for token in [1, 2, 8, 4, 1, 2]:
        source.push(token)
    assert source.guess(1) == [7]


def test_lengths_outside_the_bounds_are_not_looked_up() -> None:
    assert SuffixIndex([1, 2, 3, 1, 2], shortest=3, longest=5).find() == (-1, 0)
    assert SuffixIndex([1, 2, 9, 2, 5, 1, 2], shortest=1, longest=1).find() == (4, 1)


@settings(deadline=None, max_examples=60)
@given(prompt=FEW_TOKENS, output=FEW_TOKENS, shortest=st.integers(1, 3), more=st.integers(0, 4))
def test_the_index_finds_what_a_search_of_the_whole_text_finds(
    prompt: list[int], output: list[int], shortest: int, more: int
) -> None:
    longest = shortest + more
    growing = SuffixIndex(prompt, shortest=shortest, longest=longest)
    frozen = SuffixIndex(prompt, shortest=shortest, longest=longest)
    for count in range(len(output) + 1):
        text = prompt + output[:count]
        assert growing.find() == search(text, shortest, longest, len(text))
        assert frozen.find() == search(text, shortest, longest, len(prompt))
        if count < len(output):
            growing.push(output[count])
            frozen.push(output[count], index=False)


def test_a_copy_stays_where_it_is_while_it_goes_right() -> None:
    """Both places agree in five tokens; only the first one agrees in more."""
    prompt = [*range(10, 20), 50, 99, *range(13, 20), 60]
    source = Lookup(prompt, grows=False)
    for token in range(10, 20):
        source.push(token)
    assert source.guess(1) == [50]
    assert source.matched > 5


def test_a_copy_goes_on_behind_a_token_that_was_replaced() -> None:
    source = Lookup([10, 11, 12, 13, 14, 15, 16], grows=False)
    for token in [10, 11, 12, 77]:
        source.push(token)
    assert source.guess(2) == [14, 15]
    assert source.matched == 0
    source.push(14)
    assert source.guess(2) == [15, 16]
    assert source.matched == 1


def test_guessing_changes_nothing() -> None:
    source = Lookup([1, 2, 3, 1, 2], grows=True)
    assert source.guess(6) == source.guess(6)
    assert source.guess(1) == [3]


def test_tokens_whose_hashes_collide_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tripower.runtime.speculation.suffix_index.MASK", 0)  # all hashes alike
    index = SuffixIndex([1, 2, 3, 4, 5, 6], shortest=2, longest=3)
    assert index.find() == (-1, 0)
    for token in [5, 6]:
        index.push(token)
        behind, length = index.find()
        assert behind == -1 or index.tokens[behind - length : behind] == index.tokens[-length:]
