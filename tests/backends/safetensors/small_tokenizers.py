"""Small tokenizers of every kind that our families have, trained on the multilingual corpus."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    json.loads(line) for line in (Path(__file__).parents[1] / "multilingual_corpus.jsonl").read_text().split("\n") if line
]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
SPACE = "\u2581"
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def training_text() -> Iterator[str]:
    """The corpus without lone surrogates, several times so that merges are worth it."""
    for _ in range(3):
        yield from (text.encode(errors="replace").decode() for text in CORPUS)


def byte_level() -> Tokenizer:
    """As Llama 3 and Qwen: words by a pattern, whole words first, a begin token by the post-processor."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(training_text(), _trainer(special_tokens=SPECIAL, initial_alphabet=alphabet))
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), _begin(tokenizer)])
    return tokenizer


def gemma() -> Tokenizer:
    """Spaces become a character of their own, no word is cut, unknown characters become bytes."""
    tokenizer = _sentence_piece_bpe(normalizers.Replace(" ", SPACE))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def llama2() -> Tokenizer:
    """The same with a space in front of every stretch of text."""
    tokenizer = _sentence_piece_bpe(normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    """A space in front of the first stretch only, as Mistral's newer ones."""
    tokenizer = _sentence_piece_bpe(None)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "gemma": gemma,
    "llama 2": llama2,
    "metaspace": metaspace,
}


def add_odd_tokens(tokenizer: Tokenizer) -> None:
    """Added tokens of other sorts: one that users may write, and control tokens that swallow white space."""
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("ordinary")])
    tokenizer.add_special_tokens(
        [AddedToken("<right>", rstrip=True, normalized=False), AddedToken("<left>", lstrip=True, normalized=False)]
    )


def _sentence_piece_bpe(normalizer: Any) -> Tokenizer:
    """BPE over whole texts, with byte tokens. Merges are learnt from words, with the space as part of them."""
    teacher = Tokenizer(models.BPE())
    teacher.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="never")
    teacher.train_from_iterator(training_text(), _trainer(special_tokens=SPECIAL + BYTES))
    learnt = json.loads(teacher.to_str())["model"]
    merges = [tuple(merge) for merge in learnt["merges"]]
    tokenizer = Tokenizer(models.BPE(learnt["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens(SPECIAL)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.post_processor = _begin(tokenizer)
    return tokenizer


def _trainer(**options: Any) -> Any:
    return trainers.BpeTrainer(vocab_size=1_000, show_progress=False, **options)


def _begin(tokenizer: Tokenizer) -> Any:
    return processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
