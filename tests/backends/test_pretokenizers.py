"""Where byte-level vocabularies cut text, against llama.cpp.

The vocabulary joins every pair of bytes in a random order, so that a cut at a wrong place changes the ids. Characters that were
added to Unicode after version 14 are left out: the two libraries know different versions.
"""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tripower.backends.gguf.reader import open_gguf
from tripower.backends.text import bpe
from tripower.backends.text.pretokenizers import PRE_TOKENIZERS, pre_tokenizer
from tripower.backends.text.tokenizer import GgufTokenizer
from tripower.bench.gguf_samples import byte_level_metadata, every_pair_of_bytes, write_gguf
from tripower.runtime.kernel.errors import ModelRefused

CORPUS = [json.loads(line) for line in (Path(__file__).parent / "multilingual_corpus.jsonl").read_text().split("\n") if line]
MERGES = every_pair_of_bytes()
DISTINCT = list({rules: name for name, rules in reversed(PRE_TOKENIZERS.items())}.values())
ASSIGNED = [chr(code) for code in range(0x30000) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]
EDGES = [" ", "  ", "\n", "\r\n", "\t", "a", "Z", "é", "中", "ß", "1", "23", "4567", "½", ".", "'s", "'LL", "'re", "!?", "€", "\u00a0",
         "\u3000", "\u0301", "\u200d", "😀", "/", "_", "x\u0308", "ǅ", "\0", "\x7f"]  # fmt: skip


@pytest.fixture(scope="module", params=DISTINCT)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def compare(name: str, texts: list[str], folder: Path, llamacpp: Callable[..., Any]) -> None:
    path = folder / "model.gguf"
    path.write_bytes(write_gguf(byte_level_metadata(name, MERGES)))
    with open_gguf(path) as file:
        tokenizer = GgufTokenizer(file.metadata)
    expected = llamacpp("tokenize", path, [{"text": text, "add_special": True} for text in texts])
    for text, ids in zip(texts, expected, strict=True):
        assert tokenizer.tokenize(text) == ids, ascii(text)


def random_texts(count: int) -> list[str]:
    rng = random.Random(7)
    edges = ["".join(rng.choices(EDGES, k=rng.randint(1, 20))) for _ in range(count)]
    return edges + ["".join(rng.choices(ASSIGNED, k=rng.randint(1, 20))) for _ in range(count)]


def test_words_are_cut_where_llamacpp_cuts_them(name: str, tmp_path: Path, llamacpp: Callable[..., Any]) -> None:
    compare(name, [text[:500] for text in CORPUS] + random_texts(300), tmp_path, llamacpp)


@pytest.mark.long
def test_every_character_is_cut_where_llamacpp_cuts_it(name: str, tmp_path: Path, llamacpp: Callable[..., Any]) -> None:
    around = [f"a{character}b {character} 1{character}2 !{character}?\n{character} " for character in ASSIGNED[::5]]
    compare(name, around, tmp_path, llamacpp)


@pytest.mark.long
@pytest.mark.parametrize("alias", sorted(set(PRE_TOKENIZERS) - set(DISTINCT)))
def test_names_with_the_same_rules_cut_as_llamacpp_does(alias: str, tmp_path: Path, llamacpp: Callable[..., Any]) -> None:
    compare(alias, random_texts(100), tmp_path, llamacpp)


def test_stretches_of_one_word_have_the_ids_of_the_whole_text(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(write_gguf(byte_level_metadata(name, MERGES)))
    with open_gguf(path) as file:
        tokenizer = GgufTokenizer(file.metadata)
    ends = [*EDGES, ",", "-", "(", "，", "。", "“", "\u2028", "word", "don't", "語", "<s>"]
    rng = random.Random(11)
    texts = [*CORPUS, *("".join(rng.choices(ends, k=60)) for _ in range(300))]
    whole = [tokenizer.tokenize(text, parse_special=True) for text in texts]
    monkeypatch.setattr(bpe, "STRETCH_CHARACTERS", 1)
    assert sum(len(list(bpe._stretches(text, bpe._WORD_END))) for text in texts) > 3 * len(texts), "they are cut"
    for text, ids in zip(texts, whole, strict=True):
        assert tokenizer.tokenize(text, parse_special=True) == ids, ascii(text)


def test_an_unknown_name_is_refused_by_it() -> None:
    with pytest.raises(ModelRefused, match="gpt-17") as refusal:
        pre_tokenizer("gpt-17")
    assert (refusal.value.code, refusal.value.param) == ("unsupported_tokenizer", "tokenizer.ggml.pre")
