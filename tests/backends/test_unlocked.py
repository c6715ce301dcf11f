"""Long texts go through the call of the library that lets other threads run, with the same ids."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models

from tripower.backends.gguf.reader import open_gguf
from tripower.backends.text.tokenizer import GgufTokenizer
from tripower.backends.text.tokenizer_json.library import encode, encode_with_places
from tripower.backends.text.unlocked import LOCKED_CHARACTERS_MAX, encoding_of, ids_of

LONG = LOCKED_CHARACTERS_MAX + 1


class Watched:
    """A tokenizer that keeps the lengths of the texts for which it holds the lock."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.locked: list[int] = []

    def encode(self, text: str, **options: Any) -> Any:
        self.locked.append(len(text))
        return self._tokenizer.encode(text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@pytest.fixture
def watched() -> Any:
    return Watched(Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])))


@pytest.mark.parametrize("call", [ids_of, encoding_of, encode, encode_with_places])
def test_the_lock_is_held_for_short_texts_only(call: Any, watched: Any) -> None:
    call(watched, "ab" * LONG)
    call(watched, "ab")
    assert watched.locked == [2]


def test_both_calls_find_the_same(watched: Any) -> None:
    text = "abba" * LONG
    assert ids_of(watched, text) == watched.encode(text).ids == encoding_of(watched, text).ids


@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_no_tokenizer_holds_the_lock_for_a_long_text(model: str, request: pytest.FixtureRequest) -> None:
    with open_gguf(request.getfixturevalue(model)) as file:
        tokenizer = GgufTokenizer(file.metadata)
    merger: Any = tokenizer._merger
    merger._tokenizer = watched = Watched(merger._tokenizer)
    for text in ("1234567890", "\U0001f600", "漢", "a", " ", "<|im_end|", "word "):
        tokenizer.tokenize(text * LONG, parse_special=True)
    assert max(watched.locked, default=0) <= LOCKED_CHARACTERS_MAX
