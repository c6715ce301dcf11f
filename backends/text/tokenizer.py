"""Text to tokens and back, for one vocabulary: ids equal to llama.cpp's for the same file and flags.

One difference is wanted: `add_special` adds the begin token at most once, where llama.cpp warns and adds a second one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tripower.backends.gguf.metadata import Metadata, get_flag, get_string
from tripower.backends.text.bpe import ByteLevelBpe, Merger, SentencePieceBpe
from tripower.backends.text.pretokenizers import pre_tokenizer
from tripower.backends.text.special_tokens import SpecialTokens
from tripower.backends.text.vocabulary import PREFIX, TokenKind, Vocabulary, tokenizer_model
from tripower.runtime.kernel.errors import ModelRefused

_BPE_IDS = {"bos_token_id": 11, "eos_token_id": 11}
_SENTENCEPIECE_IDS = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
"""Ids that the two families had before files named them."""
_BYTE_TEXT = re.compile(r"<0x[0-9A-F]{2}>")


class GgufTokenizer:
    """Synchronous, safe to use from any thread. Building it takes a second or two for large SentencePiece vocabularies.

    Raises `ModelRefused`: `missing_key`, `bad_type`, `bad_value`, `duplicate`, `limit_exceeded`, `unsupported_tokenizer`.
    """

    def __init__(self, metadata: Metadata) -> None:
        self.vocabulary, self._merger = _build(metadata)
        vocabulary = self.vocabulary
        _check_byte_tokens(vocabulary)
        plain = {vocabulary.tokens[token]: token for token in vocabulary.of_kind(TokenKind.USER_DEFINED)}
        control = {vocabulary.tokens[token]: token for token in vocabulary.of_kind(TokenKind.CONTROL, TokenKind.UNKNOWN)}
        self._plain = SpecialTokens(plain)
        self._all = SpecialTokens(plain | control)
        self.control_texts = SpecialTokens(control)

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids; control tokens are recognised in the text only with `parse_special`. Linear in the length of the text.

        Raises `InvalidRequest` for text with half of a surrogate pair.
        """
        ids = self.tokenize_parts(self._all.split(text) if parse_special else [text] if text else [])
        return self.add_special(ids) if add_special else ids

    def tokenize_parts(self, parts: Iterable[str | int]) -> list[int]:
        """Ids of plain stretches, in which no control token is recognised, and of tokens between them."""
        ids: list[int] = []
        first = True
        for part in parts:
            for piece in self._plain.split(part) if isinstance(part, str) else (part,):
                if isinstance(piece, int):
                    ids.append(piece)
                else:
                    ids += self._merger.encode(piece, first=first)
                first = isinstance(piece, int)
        return ids

    def add_begin(self, ids: list[int]) -> list[int]:
        """Put the begin token in front where the vocabulary asks for it, unless it is there."""
        vocabulary = self.vocabulary
        if vocabulary.add_bos and vocabulary.bos is not None and ids[:1] != [vocabulary.bos]:
            return [vocabulary.bos, *ids]
        return ids

    def add_special(self, ids: list[int]) -> list[int]:
        """The same with the end token behind, where the vocabulary asks for one."""
        vocabulary = self.vocabulary
        ids = self.add_begin(ids)
        if vocabulary.add_eos and vocabulary.eos is not None and ids[-1:] != [vocabulary.eos]:
            ids = [*ids, vocabulary.eos]
        return ids

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for: none for control and unused tokens, and for an id outside the vocabulary."""
        vocabulary = self.vocabulary
        if not 0 <= token < len(vocabulary):
            return b""
        match vocabulary.kind(token):
            case TokenKind.NORMAL:
                return self._merger.decode(token)
            case TokenKind.USER_DEFINED:
                return vocabulary.tokens[token].encode()
            case TokenKind.BYTE:
                return bytes([int(vocabulary.tokens[token][3:5], 16)])
        return b""

    def control_text(self, token: int) -> str:
        """The text of a token that stands for no bytes; empty for an id outside the vocabulary."""
        return self.vocabulary.tokens[token] if 0 <= token < len(self.vocabulary) else ""


def _build(metadata: Metadata) -> tuple[Vocabulary, Merger]:
    match model := tokenizer_model(metadata):
        case "gpt2":
            rules = pre_tokenizer(get_string(metadata, PREFIX + "pre", "default"))
            vocabulary = Vocabulary(metadata, add_bos_default=rules.add_bos, default_ids=_BPE_IDS)
            return vocabulary, ByteLevelBpe(vocabulary, metadata, rules)
        case "llama":
            vocabulary = Vocabulary(metadata, add_bos_default=True, default_ids=_SENTENCEPIECE_IDS)
            space_prefix = get_flag(metadata, PREFIX + "add_space_prefix", True)
            return vocabulary, SentencePieceBpe(vocabulary, metadata, space_prefix=space_prefix)
    raise ModelRefused(
        f"{PREFIX}model is {model[:80]!r}; supported are gpt2 and llama", code="unsupported_tokenizer", param=PREFIX + "model"
    )


def _check_byte_tokens(vocabulary: Vocabulary) -> None:
    for token in vocabulary.of_kind(TokenKind.BYTE):
        if not _BYTE_TEXT.fullmatch(vocabulary.tokens[token]):
            name = f"{PREFIX}tokens[{token}]"
            raise ModelRefused(
                f"{name} is a byte token with the text {vocabulary.tokens[token][:80]!r}", code="bad_value", param=name
            )
