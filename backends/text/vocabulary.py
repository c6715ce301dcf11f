"""The tokens of a model: texts, kinds, special ids and the end-of-generation set, from GGUF metadata.

The rules are those of llama.cpp's vocabulary loader, since model files are made for it, with three differences for safety: an id
outside the vocabulary is refused instead of ignored, so are two tokens with one text, and a control token can never be reached
from plain text (see `special_tokens` and `bpe`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from enum import IntEnum

import numpy as np

from tripower.backends.gguf.metadata import Metadata, get_flag, get_int, require_ints, require_string, require_strings
from tripower.runtime.kernel.errors import ModelRefused

PREFIX = "tokenizer.ggml."
SPACE = "\u2581"
"""What SentencePiece writes for a space."""
TOKENS_MAX = 2**20

END_TEXTS = frozenset(
    {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>",
        "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
        "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
    }
)  # fmt: skip
"""Tokens with these texts end a generation whatever the metadata says of them."""

FILL_END_TEXTS: dict[str, tuple[str, ...]] = {
    "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep_token_id": ("<|file_sep|>",),
}
"""Separators of fill-in-the-middle training, which end a generation too: by id, or else the first text that exists."""


class TokenKind(IntEnum):
    """Types as GGUF numbers them."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary:
    """Raises `ModelRefused` naming the key. Holds no reference to the file."""

    def __init__(self, metadata: Metadata, *, add_bos_default: bool, default_ids: dict[str, int]) -> None:
        self.tokens = _texts(metadata)
        self.ids: dict[str, int] = {text: token for token, text in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            raise _refuse("duplicate", "tokens", f"has two tokens with the text {_duplicate(self.tokens)!r}")
        self._kinds = _kinds(metadata, len(self.tokens))
        self.bos = self._special_id(metadata, "bos_token_id", default_ids)
        self.eos = self._special_id(metadata, "eos_token_id", default_ids)
        self.unknown = self._special_id(metadata, "unknown_token_id", default_ids)
        self.padding = self._special_id(metadata, "padding_token_id", default_ids)
        self.add_bos = get_flag(metadata, PREFIX + "add_bos_token", add_bos_default)
        self.add_eos = get_flag(metadata, PREFIX + "add_eos_token", False)
        if self.add_bos and self.bos is None:
            raise _refuse("missing_key", "bos_token_id", "is missing, yet the vocabulary adds it")
        if self.add_eos and self.eos is None:
            raise _refuse("missing_key", "eos_token_id", "is missing, yet the vocabulary adds it")
        self.end_tokens = self._end_tokens(metadata)

    def __len__(self) -> int:
        return len(self.tokens)

    def kind(self, token: int) -> int:
        """One of `TokenKind`."""
        return self._kinds[token]

    def of_kind(self, *kinds: TokenKind) -> Iterable[int]:
        return (token for token, kind in enumerate(self._kinds) if kind in kinds)

    def text(self, token: int | None) -> str:
        """A token's text; empty for None."""
        return "" if token is None else self.tokens[token]

    def _special_id(self, metadata: Metadata, name: str, defaults: dict[str, int]) -> int | None:
        key = PREFIX + name
        if key in metadata:
            return get_int(metadata, key, 0, 0, len(self.tokens) - 1)
        default = defaults.get(name)
        return default if default is not None and default < len(self.tokens) else None

    def _end_tokens(self, metadata: Metadata) -> frozenset[int]:
        """Ids given as ends, and well-known texts, which count as control tokens from here on."""
        ends = {self.ids[text] for text in END_TEXTS if text in self.ids}
        for name, texts in FILL_END_TEXTS.items():
            token = self._special_id(metadata, name, {})
            if token is None:
                token = next((self.ids[text] for text in texts if text in self.ids), None)
            if token is not None:
                ends.add(token)
        for token in ends:
            self._kinds[token] = TokenKind.CONTROL
        given = (self._special_id(metadata, name, {}) for name in ("eot_token_id", "eom_token_id"))
        ends.update(token for token in (self.eos, *given) if token is not None)
        return frozenset(ends - {self.ids[text] for text in _not_ends({self.tokens[token] for token in ends})})


def well_known_ends(texts: Collection[str]) -> set[str]:
    """Those of the texts that end a generation by what they are, in a vocabulary that has them all as special tokens."""
    ends = set(texts) & END_TEXTS
    for candidates in FILL_END_TEXTS.values():
        ends |= set([text for text in candidates if text in texts][:1])
    return ends - _not_ends(ends)


def _not_ends(ends: AbstractSet[str]) -> set[str]:
    """Two families use an end-looking text inside an answer."""
    wrong = set()
    if {"<|return|>", "<|call|>"} <= ends or ("<|flush|>" in ends and ends & {"<|call|>", "<|calls|>"}):
        wrong.add("<|end|>")
    if "<|tool_response>" in ends:
        wrong.add("</s>")
    return wrong & set(ends)


def _texts(metadata: Metadata) -> tuple[str, ...]:
    texts = require_strings(metadata, PREFIX + "tokens")
    if not texts:
        raise _refuse("bad_value", "tokens", "is empty")
    if len(texts) > TOKENS_MAX:
        raise _refuse("limit_exceeded", "tokens", f"has {len(texts)} items, more than {TOKENS_MAX}")
    if "" in texts:
        return tuple(text or f"[EMPTY_{token}]" for token, text in enumerate(texts))
    return texts


def _kinds(metadata: Metadata, count: int) -> bytearray:
    key = PREFIX + "token_type"
    if key not in metadata:
        return bytearray([TokenKind.NORMAL]) * count
    kinds = require_ints(metadata, key, -(2**31), length=count)
    known = (kinds >= 0) & (kinds <= max(TokenKind))
    return bytearray(np.where(known, kinds, TokenKind.UNDEFINED).astype(np.uint8).tobytes())


def _duplicate(texts: tuple[str, ...]) -> str:
    [(text, _)] = Counter(texts).most_common(1)
    return text[:80]


def tokenizer_model(metadata: Metadata) -> str:
    """`gpt2` (byte-level BPE) or `llama` (SentencePiece), as the file names them."""
    return require_string(metadata, PREFIX + "model")


def _refuse(code: str, name: str, reason: str) -> ModelRefused:
    return ModelRefused(f"{PREFIX}{name} {reason}", code=code, param=PREFIX + name)
