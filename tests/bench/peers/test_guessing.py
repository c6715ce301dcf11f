"""How llama.cpp's server is told to guess."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tripower.bench.peers.guessing import KINDS, NONE, TRIED, parse_guessing, set_guessing
from tripower.bench.peers.registry import peer_command


def test_a_kind_may_have_settings() -> None:
    assert parse_guessing("ngram-simple") == ("ngram-simple", {})
    assert parse_guessing("ngram-mod:n_match=8,n_max=16") == ("ngram-mod", {"n_match": 8, "n_max": 16})


@pytest.mark.parametrize("word", ["ngram", "", "ngram-simple:size_n=", "ngram-simple:size_n"])
def test_what_is_no_kind_is_refused(word: str) -> None:
    with pytest.raises(ValueError):
        parse_guessing(word)


def test_every_kind_is_tried_and_none_too() -> None:
    assert {parse_guessing(word)[0] for word in TRIED} == {NONE, *KINDS}


def test_the_child_is_told_and_other_benches_tell_nothing() -> None:
    told = peer_command("llamacpp", Path("m"), threads=1, parallel=1, context=1, guesses="ngram-mod")
    assert told[-2:] == ["--guesses", "ngram-mod"]
    assert "--guesses" not in peer_command("llamacpp", Path("m"), threads=1, parallel=1, context=1)


def test_the_words_become_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = SimpleNamespace(COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K=7)
    monkeypatch.setitem(sys.modules, "xllamacpp", SimpleNamespace(common_speculative_type=kinds))
    speculative = SimpleNamespace(types=[0], ngram_map_k=SimpleNamespace(size_n=12, size_m=48))
    parameters = SimpleNamespace(speculative=speculative)
    set_guessing(parameters, NONE)
    assert speculative.types == [0]
    set_guessing(parameters, "ngram-map-k:size_n=4")
    assert speculative.types == [7] and vars(speculative.ngram_map_k) == {"size_n": 4, "size_m": 48}


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed")
@pytest.mark.parametrize("word", TRIED)
def test_the_pinned_wheel_has_what_is_tried(word: str) -> None:
    import xllamacpp

    parameters: Any = xllamacpp.CommonParams()
    set_guessing(parameters, word)
    kind, settings = parse_guessing(word)
    if kind != NONE:
        assert [int(each) for each in parameters.speculative.types] != [0]
        chosen = getattr(parameters.speculative, kind.replace("-", "_"))
        assert {name: getattr(chosen, name) for name in settings} == settings
