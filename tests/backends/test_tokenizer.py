"""Token ids equal llama.cpp's for both kinds of vocabulary, whatever the text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.backends.gguf.reader import open_gguf
from tripower.backends.text.bpe import BYTE_OF_CHARACTER, STRETCH_CHARACTERS
from tripower.backends.text.tokenizer import GgufTokenizer
from tripower.bench.gguf_samples import byte_level_metadata, llama_tensors, sentencepiece_metadata, write_gguf
from tripower.runtime.kernel.errors import InvalidRequest, ModelRefused

CORPUS = [json.loads(line) for line in (Path(__file__).parent / "multilingual_corpus.jsonl").read_text().split("\n") if line]


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> GgufTokenizer:
    with open_gguf(smollm2_path) as file:
        return GgufTokenizer(file.metadata)


@pytest.fixture(scope="session")
def gemma3(gemma3_path: Path) -> GgufTokenizer:
    with open_gguf(gemma3_path) as file:
        return GgufTokenizer(file.metadata)


@pytest.fixture(params=["smollm2", "gemma3"])
def model(request: pytest.FixtureRequest) -> tuple[GgufTokenizer, Path]:
    name = request.param
    return request.getfixturevalue(name), request.getfixturevalue(f"{name}_path")


def sample(folder: Path, metadata: Mapping[str, Any]) -> tuple[GgufTokenizer, Path]:
    path = folder / "model.gguf"
    path.write_bytes(write_gguf(metadata, llama_tensors(max(1, len(metadata["tokenizer.ggml.tokens"])))))
    with open_gguf(path) as file:
        return GgufTokenizer(file.metadata), path


def check(tokenizer: GgufTokenizer, expected: list[list[int]], texts: list[str], **flags: bool) -> None:
    for text, ids in zip(texts, expected, strict=True):
        assert tokenizer.tokenize(text, **{"add_special": False, **flags}) == ids, ascii(text)


@pytest.mark.parametrize("parse_special", [False, True])
@pytest.mark.parametrize("add_special", [False, True])
def test_the_corpus_has_the_ids_of_llamacpp(
    parse_special: bool, add_special: bool, model: tuple[GgufTokenizer, Path], llamacpp: Callable[..., Any]
) -> None:
    tokenizer, path = model
    texts = [text for text in CORPUS if not (add_special and parse_special and text.startswith("<bos>"))]
    flags = {"parse_special": parse_special, "add_special": add_special}
    check(tokenizer, llamacpp("tokenize", path, [{"text": text, **flags} for text in texts]), texts, **flags)


def test_every_token_of_the_vocabulary_has_the_ids_of_llamacpp(
    model: tuple[GgufTokenizer, Path], llamacpp: Callable[..., Any]
) -> None:
    """Its text as plain text: in particular none of the control texts becomes its token."""
    tokenizer, path = model
    step = max(1, len(tokenizer.vocabulary) // 10_000)
    texts = [text.replace("▁", " ") for text in tokenizer.vocabulary.tokens[::step]]
    texts += [tokenizer.vocabulary.tokens[token] for token in tokenizer.vocabulary.end_tokens]
    check(tokenizer, llamacpp("tokenize", path, [{"text": text} for text in texts]), texts)


def test_random_text_has_the_ids_of_llamacpp(model: tuple[GgufTokenizer, Path], llamacpp: Callable[..., Any]) -> None:
    """Strings are collected first, so that one child process answers for all of them."""
    tokenizer, path = model
    texts: list[str] = []
    alphabets = [
        st.characters(exclude_categories=["Cs", "Cn"]),
        st.sampled_from([" ", "\n", "\t", "\r", "a", "1", ".", "'", "\u00a0", "\u3000", "\u200d", "\u0301"]),
        st.sampled_from(["a", "b", "▁", " ", "-", "="]),
        st.sampled_from(["<|im_start|>", "<|im_end|>", "<eos>", "<end_of_turn>", "<", "|", ">", "\n\n", "  ", "</s>", "x"]),
    ]

    @settings(deadline=None, max_examples=200, database=None)
    @given(st.one_of([st.lists(alphabet, max_size=60).map("".join) for alphabet in alphabets]))
    def collect(text: str) -> None:
        texts.append(text)

    collect()
    for parse_special in (False, True):
        expected = llamacpp("tokenize", path, [{"text": text, "parse_special": parse_special} for text in texts])
        check(tokenizer, expected, texts, parse_special=parse_special)


def test_end_tokens_flags_and_pieces_are_those_of_llamacpp(
    model: tuple[GgufTokenizer, Path], llamacpp: Callable[..., Any]
) -> None:
    tokenizer, path = model
    vocabulary = tokenizer.vocabulary
    expected = llamacpp("vocabulary", path)
    assert sorted(vocabulary.end_tokens) == expected["end_tokens"]
    assert (vocabulary.bos, vocabulary.eos) == (expected["bos"], expected["eos"])
    assert (vocabulary.add_bos, vocabulary.add_eos) == (expected["add_bos"], expected["add_eos"])
    assert [tokenizer.piece(token).hex() for token in range(len(vocabulary))] == expected["pieces"]


def test_pieces_of_a_text_give_the_text_back(model: tuple[GgufTokenizer, Path]) -> None:
    tokenizer, _ = model
    tokens = tokenizer.vocabulary.ids
    lost = {byte for character, byte in BYTE_OF_CHARACTER.items() if character not in tokens and "<0x00>" not in tokens}
    for text in CORPUS:
        ids = tokenizer.tokenize(text, add_special=False)
        expected = bytes(byte for byte in text.encode() if byte not in lost)
        if "<0x00>" in tokens:
            expected = expected.replace("▁".encode(), b" ")
        assert b"".join(map(tokenizer.piece, ids)) == expected, ascii(text)


def test_a_piece_outside_the_vocabulary_is_empty(tmp_path: Path) -> None:
    tokenizer, _ = sample(tmp_path, sentencepiece_metadata())
    assert tokenizer.piece(-1) == tokenizer.piece(10**6) == b""


def test_the_begin_token_is_added_once(gemma3: GgufTokenizer) -> None:  # BB-038
    assert gemma3.tokenize("x")[:1] == [2]
    assert gemma3.tokenize("<bos>x", parse_special=True).count(2) == 1
    assert gemma3.tokenize("<bos>", parse_special=True) == [2]
    assert gemma3.tokenize("<bos>x").count(2) == 1  # plain text behind the real one


def test_the_end_token_is_added_once_where_the_file_asks_for_it(tmp_path: Path, llamacpp: Callable[..., Any]) -> None:
    tokenizer, path = sample(tmp_path, sentencepiece_metadata(more={"tokenizer.ggml.add_eos_token": True}))
    assert tokenizer.tokenize("hello") == llamacpp("tokenize", path, [{"text": "hello", "add_special": True}])[0]
    assert tokenizer.tokenize("hello</s>", parse_special=True).count(2) == 1


@pytest.mark.parametrize("space_prefix", [True, False])
def test_a_space_goes_in_front_where_the_vocabulary_wants_one(
    space_prefix: bool, tmp_path: Path, llamacpp: Callable[..., Any]
) -> None:
    tokenizer, path = sample(tmp_path, sentencepiece_metadata(more={"tokenizer.ggml.add_space_prefix": space_prefix}))
    texts = ["hello", " hello", "hello</s>hello", "</s>", "hé llo", "h\0e", "", " "]
    flags = {"parse_special": True, "add_special": True}
    check(tokenizer, llamacpp("tokenize", path, [{"text": text, **flags} for text in texts]), texts, **flags)


def test_characters_that_are_no_tokens_still_merge(tmp_path: Path, llamacpp: Callable[..., Any]) -> None:
    pieces = {"▁": -1.0, "ab": -2.0, "abc": -3.0, "cab": -4.0, "éa": -5.0}  # no single letters
    tokenizer, path = sample(tmp_path, sentencepiece_metadata(pieces))
    texts = ["abc", "cabab", "éa é a", "xaby", "cabc abcab", "aéaéab"]
    check(tokenizer, llamacpp("tokenize", path, [{"text": text} for text in texts]), texts)


@pytest.mark.parametrize("seed", range(4))
def test_any_vocabulary_with_different_scores_has_the_ids_of_llamacpp(
    seed: int, tmp_path: Path, llamacpp: Callable[..., Any]
) -> None:
    """Few letters and many pieces that overlap themselves: where an order of merges that is only nearly right would show."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("ab" if seed % 2 else "abc", k=rng.randint(1, 7))) for _ in range(60)]
    pieces = dict.fromkeys(["▁", "a", "b", "c", *words], 0.0)
    for rank, piece in enumerate(rng.sample(list(pieces), len(pieces))):
        pieces[piece] = -float(rank)
    tokenizer, path = sample(tmp_path, sentencepiece_metadata(pieces))
    texts = ["".join(rng.choices("abc ", (9, 9, 2, 1), k=rng.randint(1, 40))) for _ in range(500)]
    texts += [letters * count for letters in ("a", "ab", "aab") for count in range(30)]
    check(tokenizer, llamacpp("tokenize", path, [{"text": text} for text in texts]), texts)


def test_a_merge_never_makes_a_control_token(tmp_path: Path) -> None:
    pieces = {"<": -1.0, "s": -2.0, ">": -3.0, "s>": -4.0, "/": -5.0}
    tokenizer, _ = sample(tmp_path, sentencepiece_metadata(pieces))
    assert 1 not in tokenizer.tokenize("<s>", add_special=False)
    assert tokenizer.tokenize("<s>", add_special=False, parse_special=True) == [1]


@pytest.mark.parametrize("size", [10**6, pytest.param(10**7, marks=pytest.mark.long)])
def test_long_text_is_encoded_in_stretches_without_changing_an_id(size: int, smollm2: GgufTokenizer) -> None:
    sentence = "The lazy dog, at 12:30, said: don't! "
    repeats = size // len(sentence)
    once = smollm2.tokenize(sentence * 2, add_special=False)[: len(smollm2.tokenize(sentence, add_special=False))]
    ids = smollm2.tokenize(sentence * repeats, add_special=False)
    assert len(ids) >= repeats * (len(once) - 1)
    assert b"".join(map(smollm2.piece, ids)).decode() == sentence * repeats


def test_stretches_have_the_ids_of_llamacpp(model: tuple[GgufTokenizer, Path], llamacpp: Callable[..., Any]) -> None:
    tokenizer, path = model
    words = " ".join(CORPUS)
    texts = [words[: 2 * STRETCH_CHARACTERS] * 3, "wörd  \n\n " * (STRETCH_CHARACTERS // 4), "a" * 2 * STRETCH_CHARACTERS]
    check(tokenizer, llamacpp("tokenize", path, [{"text": text} for text in texts]), texts)


def test_half_a_surrogate_pair_is_the_requests_fault(model: tuple[GgufTokenizer, Path]) -> None:  # BB-010
    with pytest.raises(InvalidRequest):
        model[0].tokenize("x \ud83d y")


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no tokens": ({"tokenizer.ggml.tokens": []}, "bad_value", "tokens"),
    "tokens of a wrong type": ({"tokenizer.ggml.tokens": [1, 2]}, "bad_type", "tokens"),
    "two equal tokens": ({"tokenizer.ggml.tokens": ["a", "a"]}, "duplicate", "tokens"),
    "kinds for another vocabulary": ({"tokenizer.ggml.token_type": [1, 2]}, "bad_value", "token_type"),
    "begin token outside": ({"tokenizer.ggml.bos_token_id": 10**6}, "bad_value", "bos_token_id"),
    "end token of a wrong type": ({"tokenizer.ggml.eos_token_id": "2"}, "bad_type", "eos_token_id"),
    "unknown model": ({"tokenizer.ggml.model": "t5"}, "unsupported_tokenizer", "model"),
    "model of a wrong type": ({"tokenizer.ggml.model": 1}, "bad_type", "model"),
}
REFUSED_BYTE_LEVEL: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown pre-tokeniser": ({"tokenizer.ggml.pre": "gpt-3"}, "unsupported_tokenizer", "pre"),
    "merge of one part": ({"tokenizer.ggml.merges": ["he"]}, "bad_value", "merges[0]"),
    "merge of unknown parts": ({"tokenizer.ggml.merges": ["h e", "zz y"]}, "bad_value", "merges[1]"),
}
REFUSED_SENTENCEPIECE: dict[str, tuple[dict[str, Any], str, str]] = {
    "too few scores": ({"tokenizer.ggml.scores": [1.0]}, "bad_value", "scores"),
    "pieces that split in too many ways": (
        {
            "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *BYTES, *("a" * length for length in range(1, 1400))],
            "tokenizer.ggml.scores": [float(-number) for number in range(1658)],
            "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 1399,
        },
        "limit_exceeded",
        "tokens",
    ),
    "scores that order nothing": ({"tokenizer.ggml.scores": [0.0] * 268}, "unsupported_tokenizer", "scores"),
    "score that is no number": ({"tokenizer.ggml.scores": [float("nan")] * 268}, "bad_value", "scores"),
    "no byte tokens": (
        {"tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a"], "tokenizer.ggml.token_type": [2, 3, 3, 1]},
        "unsupported_tokenizer",
        "tokens",
    ),
}


@pytest.mark.parametrize("kind", ["byte-level", "SentencePiece"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_vocabulary_is_refused_by_its_key(kind: str, case: str, tmp_path: Path) -> None:
    changes, code, key = REFUSED[case]
    metadata = byte_level_metadata(more=changes) if kind == "byte-level" else sentencepiece_metadata(more=changes)
    refused(tmp_path, metadata, code, key)


@pytest.mark.parametrize("case", REFUSED_BYTE_LEVEL)
def test_bad_merges_are_refused_by_their_key(case: str, tmp_path: Path) -> None:
    changes, code, key = REFUSED_BYTE_LEVEL[case]
    refused(tmp_path, byte_level_metadata(more=changes), code, key)


@pytest.mark.parametrize("case", REFUSED_SENTENCEPIECE)
def test_bad_scores_are_refused_by_their_key(case: str, tmp_path: Path) -> None:
    changes, code, key = REFUSED_SENTENCEPIECE[case]
    refused(tmp_path, sentencepiece_metadata(more=changes), code, key)


def refused(folder: Path, metadata: dict[str, object], code: str, key: str) -> None:
    with pytest.raises(ModelRefused) as refusal:
        sample(folder, metadata)
    assert (refusal.value.code, refusal.value.param) == (code, f"tokenizer.ggml.{key}")
