"""Merging of plain text into tokens, by the `tokenizers` library, for the two kinds of vocabulary.

**Byte-level BPE** (`gpt2`): text is cut into words, each byte becomes a printable character, and pairs merge by rank.
**SentencePiece** (`llama`): spaces become U+2581 and pairs merge by the score of what they make, over the whole text; characters
that no token holds become byte tokens. The library knows ranks only, so each split of each token into two tokens becomes a merge,
ranked by the token's score. That is exact as long as tokens have different scores, as trained vocabularies do: over random ones no
text was found whose ids differ. Where two merges tie, SentencePiece takes the left one and the library the one that is ranked
first, so a vocabulary whose scores do not order its tokens is refused; a few equal ones (added tokens) do no harm.

Control tokens are left out of both, so that no merge can produce one from plain text.
Long texts go through the library in stretches that end between two words, so that they take turns with each other; a text without
such an end goes through it whole. The interpreter lock is not held for either (see `unlocked`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from tripower.backends.gguf.metadata import Metadata, require_floats, require_ints, require_strings
from tripower.backends.text.pretokenizers import PreTokenizer
from tripower.backends.text.unlocked import ids_of
from tripower.backends.text.vocabulary import PREFIX, SPACE, TokenKind, Vocabulary
from tripower.runtime.kernel.errors import InvalidRequest, ModelRefused

STRETCH_CHARACTERS = 16_384
"""About ten milliseconds of work."""
MERGES_MAX = 2**20
TOKEN_CHARACTERS_MAX = 2**24
"""Of all tokens of a SentencePiece vocabulary together; Gemma's 262,144 have two million."""
MERGE_COST, MERGE_COST_MAX = 16, 2**25
"""Of the merges made from scores: each costs its characters and this, Gemma's cost twelve million."""
DIFFERENT_SCORES_MIN = 0.9
"""Of the tokens with more than one character."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORD_END = re.compile(r"[^\W\d_](?=[\s!-/:-@\[-`{-~\u2000-\u206f\u3001-\u3003\uff01-\uff0f\uff1a-\uff20])")
"""A letter before white space or punctuation: every pattern of `pretokenizers` cuts there, and no lookahead of one sees past it."""
_SPACED_WORD_END = re.compile(r"[^\W\d_](?=[ \u2581])")
"""The same before a space. A SentencePiece vocabulary, which has no patterns, is cut there if none of its tokens reaches across."""

Replacements = dict[int, tuple[int, ...]]
"""Ids that stand in for text without a token of its own, and what the tokenizer answers for them."""


class Merger(Protocol):
    """Plain text to tokens, bytes of a token."""

    def encode(self, text: str, *, first: bool) -> list[int]:
        """`first`: nothing or a special token precedes, where some vocabularies put a space."""

    def decode(self, token: int) -> bytes:
        """Bytes of a normal token."""


class ByteLevelBpe:
    """Merges of a `gpt2` vocabulary."""

    def __init__(self, vocabulary: Vocabulary, metadata: Metadata, rules: PreTokenizer) -> None:
        ids = _mergeable(vocabulary)
        key = PREFIX + "merges"
        merges = _known_merges(require_strings(metadata, key), ids, vocabulary.ids)
        self._lone = _add_lone_bytes(ids, len(vocabulary))
        self._tokenizer = _build(ids, merges, key, ignore_merges=rules.ignore_merges)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rules.patterns]
            + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        self._tokens = vocabulary.tokens

    def encode(self, text: str, *, first: bool) -> list[int]:
        return _replace(_encode(self._tokenizer, text, _WORD_END), self._lone)

    def decode(self, token: int) -> bytes:
        text = self._tokens[token]
        try:
            return bytes([BYTE_OF_CHARACTER[character] for character in text])
        except KeyError:  # a token that is not in the byte alphabet stands for its own text
            return text.encode()


class SentencePieceBpe:
    """Merges of a `llama` vocabulary."""

    def __init__(self, vocabulary: Vocabulary, metadata: Metadata, *, space_prefix: bool) -> None:
        missing = next((byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary.ids), None)
        if missing is not None:
            raise ModelRefused(
                f"{PREFIX}tokens has no byte token <0x{missing:02X}>", code="unsupported_tokenizer", param=PREFIX + "tokens"
            )
        ids = _mergeable(vocabulary)
        merges = list(_merges_by_score(vocabulary, _scores(metadata, len(vocabulary)), ids))
        self._lone = _add_lone_characters(ids, merges, vocabulary.ids)
        self._tokenizer = _build(ids, merges, PREFIX + "scores", byte_fallback=True)
        self._space_prefix = space_prefix
        self._word_end = None if any(_SPACED_WORD_END.search(text) for text in ids) else _SPACED_WORD_END
        self._tokens = vocabulary.tokens

    def encode(self, text: str, *, first: bool) -> list[int]:
        text = text.replace(" ", SPACE)
        if first and self._space_prefix:
            text = SPACE + text
        return _replace(_encode(self._tokenizer, text, self._word_end), self._lone)

    def decode(self, token: int) -> bytes:
        return self._tokens[token].replace(SPACE, " ").encode()


def _mergeable(vocabulary: Vocabulary) -> dict[str, int]:
    forbidden = (TokenKind.CONTROL, TokenKind.UNKNOWN)
    return {text: token for token, text in enumerate(vocabulary.tokens) if vocabulary.kind(token) not in forbidden}


def _known_merges(lines: tuple[str, ...], ids: dict[str, int], known: dict[str, int]) -> list[tuple[str, str]]:
    """Pairs in order of rank, each once, without those that make or use a control token."""
    if len(lines) > MERGES_MAX:
        key = PREFIX + "merges"
        raise ModelRefused(f"{key} has {len(lines)} items, more than {MERGES_MAX}", code="limit_exceeded", param=key)
    merges: dict[tuple[str, str], None] = {}
    for index, line in enumerate(lines):
        middle = line.find(" ", 1)
        left, right = line[:middle], line[middle + 1 :]
        parts = (left, right, left + right)
        if middle < 0 or not all(part in known for part in parts):
            raise ModelRefused(
                f"{PREFIX}merges[{index}] is {line[:80]!r}, which does not join two tokens into a third",
                code="bad_value",
                param=f"{PREFIX}merges[{index}]",
            )
        if all(part in ids for part in parts):
            merges.setdefault((left, right))
    return list(merges)


def _scores(metadata: Metadata, count: int) -> list[float]:
    key = PREFIX + "scores"
    try:
        return [float(score) for score in require_floats(metadata, key, length=count)]
    except ModelRefused as error:
        if error.code != "bad_type":
            raise
        return [float(score) for score in require_ints(metadata, key, -(2**31), length=count)]


def _check_order(vocabulary: Vocabulary, scores: list[float]) -> None:
    words = [token for token in vocabulary.of_kind(TokenKind.NORMAL) if len(vocabulary.tokens[token]) > 1]
    different = len({scores[token] for token in words})
    if different < DIFFERENT_SCORES_MIN * len(words):
        raise ModelRefused(
            f"{PREFIX}scores has {different} different values for {len(words)} tokens: they cannot be put in order",
            code="unsupported_tokenizer",
            param=PREFIX + "scores",
        )


def _merges_by_score(vocabulary: Vocabulary, scores: list[float], ids: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Every way to join two tokens (or single characters) into a third, best score first."""
    key = PREFIX + "tokens"
    if sum(map(len, vocabulary.tokens)) > TOKEN_CHARACTERS_MAX:
        raise ModelRefused(f"{key} has more than {TOKEN_CHARACTERS_MAX} characters", code="limit_exceeded", param=key)
    _check_order(vocabulary, scores)
    kinds = (TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.UNUSED)
    cost = 0
    for token in sorted(vocabulary.of_kind(*kinds), key=lambda token: -scores[token]):
        text = vocabulary.tokens[token]
        for left, right in _splits(text, ids):
            cost += MERGE_COST + len(text)
            yield left, right
        if cost > MERGE_COST_MAX:
            raise ModelRefused(f"{key} can be split in too many ways", code="limit_exceeded", param=key)


def _splits(text: str, ids: dict[str, int]) -> Iterator[tuple[str, str]]:
    for middle in range(1, len(text)):
        left = text[:middle]
        if left in ids or middle == 1:
            right = text[middle:]
            if right in ids or middle == len(text) - 1:
                yield left, right


def _add_lone_bytes(ids: dict[str, int], size: int) -> Replacements:
    """Give ids past the vocabulary to bytes that have no token: they keep their neighbours from merging, then vanish."""
    missing = [character for character in BYTE_OF_CHARACTER if character not in ids]
    ids.update((character, size + index) for index, character in enumerate(missing))
    return {ids[character]: () for character in missing}


def _add_lone_characters(ids: dict[str, int], merges: list[tuple[str, str]], known: dict[str, int]) -> Replacements:
    """Give ids past the vocabulary to characters that are parts of tokens but no tokens; they become byte tokens."""
    size = len(known)
    lone: Replacements = {}
    for pair in merges:
        for part in pair:
            if part not in ids:
                ids[part] = size + len(lone)
                lone[ids[part]] = tuple(known[f"<0x{byte:02X}>"] for byte in part.encode())
    return lone


def _build(ids: dict[str, int], merges: list[tuple[str, str]], key: str, **options: bool) -> Tokenizer:
    try:
        return Tokenizer(models.BPE(ids, merges, **options))
    except Exception as error:  # the library raises plain Exception
        raise ModelRefused(f"{key} does not fit the vocabulary: {error}", code="bad_value", param=key) from error


def _replace(tokens: list[int], replacements: Replacements) -> list[int]:
    if not replacements:
        return tokens
    return [token for found in tokens for token in replacements.get(found, (found,))]


def _encode(tokenizer: Tokenizer, text: str, word_end: re.Pattern[str] | None) -> list[int]:
    """`word_end`: where a long text may be cut; None: nowhere."""
    if _SURROGATE.search(text):
        raise InvalidRequest("the text has half of a surrogate pair", code="invalid_value")
    parts = (text,) if word_end is None or len(text) <= STRETCH_CHARACTERS else _stretches(text, word_end)
    return [token for part in parts for token in ids_of(tokenizer, part)]


def _stretches(text: str, word_end: re.Pattern[str]) -> Iterator[str]:
    start = 0
    while found := word_end.search(text, start + STRETCH_CHARACTERS):
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]


def _byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies, as GPT-2 chose them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(rest)}


BYTE_OF_CHARACTER = _byte_alphabet()
