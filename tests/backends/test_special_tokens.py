"""Cutting text at special tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tripower.backends.text.special_tokens import LENGTH_MAX, SpecialTokens
from tripower.runtime.kernel.errors import ModelRefused

RUNS = {"\n" * length: length for length in range(1, 32)}

CUTS: list[tuple[dict[str, int], str, list[str | int]]] = [
    ({}, "abc", ["abc"]),
    ({}, "", []),
    ({"<a>": 1}, "<a>", [1]),
    ({"<a>": 1}, "x<a>y<a><a>", ["x", 1, "y", 1, 1]),
    ({"<a>": 1}, "<a<a>>", ["<a", 1, ">"]),
    ({"<a>": 1, "<a>b": 2}, "<a>b<a>c", [2, 1, "c"]),
    ({"x": 1, "xy": 2}, "xxyx", [1, 2, 1]),
    ({"]": 1, "^-": 2, "\\": 3, "[a": 4}, "a]^-\\[ab^", ["a", 1, 2, 3, 4, "b^"]),
    (RUNS, "a" + "\n" * 70 + "b", ["a", 31, 31, 8, "b"]),
    ({"é😀": 1}, "xé😀y", ["x", 1, "y"]),
]


@pytest.mark.parametrize(("ids", "text", "expected"), CUTS)
def test_the_longest_text_counts_and_nothing_overlaps(ids: dict[str, int], text: str, expected: list[str | int]) -> None:
    assert list(SpecialTokens(ids).split(text)) == expected


@given(st.sets(st.text("ab<>", min_size=1, max_size=4), max_size=6), st.text("ab<>", max_size=30))
def test_the_parts_together_are_the_text_and_plain_parts_hold_nothing_special(texts: set[str], text: str) -> None:
    names = sorted(texts)
    parts = list(SpecialTokens({name: index for index, name in enumerate(names)}).split(text))
    assert "".join(part if isinstance(part, str) else names[part] for part in parts) == text
    assert not any(name in part for part in parts if isinstance(part, str) for name in names)


@given(st.sets(st.text("ab<>", min_size=1, max_size=4), max_size=6), st.text("ab<>", max_size=30))
def test_found_spans_are_the_special_parts(texts: set[str], text: str) -> None:
    special = SpecialTokens({name: index for index, name in enumerate(sorted(texts))})
    found = [text[start:end] for start, end in special.find(text)]
    assert found == [sorted(texts)[part] for part in special.split(text) if isinstance(part, int)]


def test_a_text_of_many_special_tokens_is_cut_in_one_pass() -> None:
    ids = {f"<unused{number}>": number for number in range(6_000)}
    text = "".join(ids) * 5
    assert list(SpecialTokens(ids).split(text)) == list(range(6_000)) * 5


def test_special_texts_with_many_first_characters_are_found() -> None:
    ids = {chr(0x4E00 + number) + "]": number for number in range(2_000)}
    assert list(SpecialTokens(ids).split("一" + "".join(ids) + "a]")) == ["一", *range(2_000), "a]"]


def test_an_endless_special_text_is_refused() -> None:
    with pytest.raises(ModelRefused, match="more than"):
        SpecialTokens({"x" * (LENGTH_MAX + 1): 1})
