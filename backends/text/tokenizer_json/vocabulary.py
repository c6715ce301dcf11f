"""The tokens of a `tokenizer.json`: texts, which of them are control tokens, and which end an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from tripower.backends.safetensors.documents import refuse
from tripower.backends.text.special_tokens import LENGTH_MAX
from tripower.backends.text.tokenizer_json.library import FILE
from tripower.backends.text.tokenizer_json.pieces import find_piece
from tripower.backends.text.tokenizer_json.settings import TokenizerSettings
from tripower.backends.text.vocabulary import TOKENS_MAX, well_known_ends


class JsonVocabulary:
    """Raises `ModelRefused`: `bad_value`, `limit_exceeded`, `unsupported_tokenizer`.

    `size` is the number of rows of the embedding. Ids beyond it do not exist here, whatever the file says: text-only models
    keep the added tokens for images of their larger relatives.
    """

    def __init__(self, tokenizer: Tokenizer, settings: TokenizerSettings, *, size: int, stated_ends: frozenset[int]) -> None:
        self.texts = _texts(tokenizer, size)
        self.ids = {text: token for token, text in self.texts.items()}
        self.added: Mapping[int, Any] = {
            token: each for token, each in tokenizer.get_added_tokens_decoder().items() if token in self.texts
        }
        """Tokens that the library finds in a text before anything else is done with it."""
        self.named = {name: self.ids[text] for name, text in settings.named.items() if text in self.ids}
        self.unknown: int | None = self.ids.get(tokenizer.model.unk_token or "")
        self.end_tokens = self._find_ends(stated_ends)
        self.control = self._find_control(settings)
        self._spell = find_piece(tokenizer)

    def text(self, name: str) -> str:
        """The text of a named token, `bos_token` and the like; empty if there is none."""
        return self.texts[self.named[name]] if name in self.named else ""

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for: none for control tokens and for an id without a token."""
        if token in self.control or token not in self.texts:
            return b""
        text = self.texts[token]
        return text.encode() if token in self.added else self._spell(text)

    def flagged(self, flag: str) -> frozenset[int]:
        """Control tokens with a flag of the library: `lstrip`, `rstrip`, `single_word`."""
        return frozenset(token for token in self.control if token in self.added and getattr(self.added[token], flag))

    def _find_ends(self, stated: frozenset[int]) -> frozenset[int]:
        """Ids that are stated, the end token, and added tokens with texts that are known to end an answer."""
        known = well_known_ends({self.texts[token] for token in self.added})
        eos = {self.named["eos_token"]} if "eos_token" in self.named else set()
        return stated | {self.ids[text] for text in known} | eos

    def _find_control(self, settings: TokenizerSettings) -> frozenset[int]:
        """Tokens that are marked as special, have a special name or end an answer."""
        special = {token for token, each in self.added.items() if each.special}
        others = {self.ids[text] for text in settings.others if text in self.ids}
        control = frozenset(special | others | set(self.named.values()) | (self.end_tokens & self.texts.keys()))
        for token in control:
            text = self.texts[token]
            if not 0 < len(text) <= LENGTH_MAX:
                raise refuse("bad_value", f"{FILE} control token {token}", f"has {len(text)} characters, not 1 to {LENGTH_MAX}")
            if token in self.added and self.added[token].single_word:
                reason = f"{text!r} counts between words only, which is not supported"
                raise refuse("unsupported_tokenizer", f"{FILE} control token {token}", reason)
        return control


def _texts(tokenizer: Tokenizer, size: int) -> dict[int, str]:
    """Texts by id. Only added tokens may have ids beyond `size`, and those are left out."""
    count = tokenizer.get_vocab_size(with_added_tokens=True)
    if count > TOKENS_MAX:
        raise refuse("limit_exceeded", f"{FILE} vocabulary", f"has {count} tokens, more than {TOKENS_MAX}")
    base: dict[str, int] = tokenizer.get_vocab(with_added_tokens=False)
    if not base:
        raise refuse("bad_value", f"{FILE} vocabulary", "is empty")
    if max(base.values()) >= size:
        raise refuse("bad_value", f"{FILE} vocabulary", f"has the id {max(base.values())} where the embedding has {size} rows")
    whole: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return {token: text for text, token in whole.items() if token < size}
