"""Text to tokens for a `tokenizer.json`: ids equal to those of `transformers` for the same folder.

The library finds a model's added tokens in any text. Here control tokens are found by us, where a template may write them, and
the library is told to leave them alone, so that what a user typed is plain text. Should its merges make a control token out of
plain text all the same, that stretch is taken character by character.

A stretch behind a control token is not the beginning of the text, and some tokenizers begin a text with a space. So it is given
to the library behind a *fence*: an added token of our own with a random text, whose id is dropped again.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from tokenizers import AddedToken

from tripower.backends.safetensors.documents import refuse
from tripower.backends.text.special_tokens import SpecialTokens
from tripower.backends.text.tokenizer_json.library import FILE, encode, encode_with_places, load_tokenizer
from tripower.backends.text.tokenizer_json.settings import TokenizerSettings
from tripower.backends.text.tokenizer_json.vocabulary import JsonVocabulary
from tripower.runtime.kernel.errors import InvalidRequest

_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACES = "".join(chr(code) for code in range(0x3001) if chr(code).isspace() and not 0x1C <= code <= 0x1F)
"""What Unicode calls white space, as the library does; Python counts four separators among the control characters too."""


class JsonTokenizer:
    """Synchronous, safe to use from any thread. Building it takes a second or two for large vocabularies.

    `size` is the number of rows of the embedding: no id beyond is ever answered. Raises `ModelRefused`: `bad_value`,
    `limit_exceeded`, `unsupported_tokenizer`.
    """

    def __init__(self, data: bytes, settings: TokenizerSettings, *, size: int, stated_ends: frozenset[int]) -> None:
        self._tokenizer = load_tokenizer(data)
        vocabulary = self.vocabulary = JsonVocabulary(self._tokenizer, settings, size=size, stated_ends=stated_ends)
        self.control_texts = SpecialTokens({vocabulary.texts[token]: token for token in vocabulary.control})
        self._strips_left, self._strips_right = vocabulary.flagged("lstrip"), vocabulary.flagged("rstrip")
        self._fence, self._fence_id = self._prepare()
        self._forbidden = self._find_forbidden()
        self._begin, self._end = self._find_edges()

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids; control tokens are recognised in the text only with `parse_special`.

        `add_special` adds what the tokenizer asks for at either end, unless it is there. Raises `InvalidRequest` for text with
        half of a surrogate pair, and `tokenizer_failed`.
        """
        ids = self.tokenize_parts(self.control_texts.split(text) if parse_special else [text])
        if not add_special:
            return ids
        ids = self.add_begin(ids)
        return ids if ids[len(ids) - len(self._end) :] == self._end else ids + self._end

    def tokenize_parts(self, parts: Iterable[str | int]) -> list[int]:
        """Ids of plain stretches, in which no control token is recognised, and of tokens between them.

        Some control tokens take the white space beside them along.
        """
        row = list(parts)
        ids: list[int] = []
        for index, part in enumerate(row):
            if isinstance(part, int):
                ids.append(part)
                continue
            if index and row[index - 1] in self._strips_right:
                part = part.lstrip(_SPACES)
            if index + 1 < len(row) and row[index + 1] in self._strips_left:
                part = part.rstrip(_SPACES)
            ids += self._plain(part, first=not index)
        return ids

    def add_begin(self, ids: list[int]) -> list[int]:
        """Put in front what the tokenizer puts there, unless it is there."""
        return ids if ids[: len(self._begin)] == self._begin else self._begin + ids

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for: none for control tokens and for an id without a token."""
        return self.vocabulary.piece(token)

    def control_text(self, token: int) -> str:
        """The text of a token that stands for no bytes; empty for an id without a token."""
        return self.vocabulary.texts.get(token, "")

    def _plain(self, text: str, *, first: bool) -> list[int]:
        if not text:
            return []
        if _SURROGATE.search(text):
            raise InvalidRequest("the text has half of a surrogate pair", code="invalid_value")
        whole, skip = (text, 0) if first else (self._fence + text, 1)
        ids = encode(self._tokenizer, whole)[skip:]
        return ids if self._forbidden.isdisjoint(ids) else self._without_forbidden(whole, skip)

    def _without_forbidden(self, whole: str, skip: int) -> list[int]:
        """The same, with every stretch that became a forbidden token taken character by character."""
        ids: list[int] = []
        for token, (start, end) in encode_with_places(self._tokenizer, whole)[skip:]:
            if token not in self._forbidden:
                ids.append(token)
                continue
            for character in whole[start:end]:
                found = encode(self._tokenizer, self._fence + character)[1:]
                ids += [each for each in found if each not in self._forbidden]
        return ids

    def _prepare(self) -> tuple[str, int]:
        """Tell the library what the control tokens are and to leave them alone. Returns the fence and its id."""
        fence = f"\U000f0000{secrets.token_hex(16)}\U000f0000"
        texts = (self.vocabulary.texts[token] for token in sorted(self.vocabulary.control))
        self._tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in texts])
        self._tokenizer.add_tokens([AddedToken(fence, normalized=False, special=False)])
        self._tokenizer.encode_special_tokens = True
        token = self._tokenizer.token_to_id(fence)
        assert token is not None, "it was added"
        return fence, token

    def _find_forbidden(self) -> frozenset[int]:
        """What plain text must not become. The token for unknown characters may, if it is nothing else."""
        vocabulary = self.vocabulary
        harmless = {vocabulary.unknown} - vocabulary.end_tokens
        every = self._tokenizer.get_added_tokens_decoder()  # the fence is one of them
        return frozenset((vocabulary.control - harmless) | (every.keys() - vocabulary.texts.keys()))

    def _find_edges(self) -> tuple[list[int], list[int]]:
        """What the tokenizer's post-processor puts in front of and behind a text."""
        try:
            ids = encode(self._tokenizer, self._fence, add_special=True)
        except InvalidRequest as error:
            raise refuse("bad_value", f"{FILE} post_processor", error.message) from error
        if ids.count(self._fence_id) != 1:
            raise refuse("bad_value", f"{FILE} post_processor", "does not keep a text once")
        middle = ids.index(self._fence_id)
        begin, end = ids[:middle], ids[middle + 1 :]
        if any(token not in self.vocabulary.texts for token in (*begin, *end)):
            raise refuse("bad_value", f"{FILE} post_processor", "adds an id that the vocabulary does not have")
        return begin, end
