"""Bytes of a token, by the decoder that a `tokenizer.json` names.

The two decoders of our families are told apart by their parts: byte-level (each character of a token is a byte), and
SentencePiece (one character stands for a space, and some tokens are single bytes). What a decoder does to a whole text, such as
removing the first space, is no business of a single token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tokenizers import Tokenizer

from tripower.backends.safetensors.documents import refuse
from tripower.backends.text.bpe import BYTE_OF_CHARACTER
from tripower.backends.text.tokenizer_json.library import FILE

_BYTE_TEXT = re.compile(r"<0x([0-9A-F]{2})>")

Piece = Callable[[str], bytes]
"""From a token's text to its bytes."""


def find_piece(tokenizer: Tokenizer) -> Piece:
    """How tokens of the vocabulary are spelled. Raises `ModelRefused` (`unsupported_tokenizer`)."""
    parts = list(_parts(tokenizer))
    kinds = [part.get("type") for part in parts]
    if "ByteLevel" in kinds:
        return _byte_level
    space = next((found for part in parts if (found := _space(part))), None)
    if space is None:
        raise refuse("unsupported_tokenizer", f"{FILE} decoder", f"is {kinds}, neither byte-level nor SentencePiece")
    return _sentence_piece(space, byte_tokens="ByteFallback" in kinds)


def _parts(tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    if tokenizer.decoder is None:
        return
    whole = json.loads(tokenizer.decoder.__getstate__())
    yield from whole.get("decoders", [whole])


def _space(part: dict[str, Any]) -> str | None:
    """The character that stands for a space, if this part of the decoder replaces one."""
    if part.get("type") == "Metaspace":
        return str(part.get("replacement", ""))
    if part.get("type") == "Replace" and part.get("content") == " ":
        return str(part.get("pattern", {}).get("String", ""))
    return None


def _byte_level(text: str) -> bytes:
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in text])
    except KeyError:  # a token that is not in the byte alphabet stands for its own text
        return text.encode()


def _sentence_piece(space: str, *, byte_tokens: bool) -> Piece:
    def piece(text: str) -> bytes:
        if byte_tokens and (found := _BYTE_TEXT.fullmatch(text)):
            return bytes([int(found[1], 16)])
        return text.replace(space, " ").encode()

    return piece
