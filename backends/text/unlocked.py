"""Calls of the `tokenizers` library that let other threads run meanwhile.

Its call for one text holds the interpreter lock until it is done: a megabyte of digits, in whatever thread, keeps the loop waiting for
seconds. Its call for several texts gives the lock back while it works, and so a long text goes through that one. It has the library's
own threads do the work and waits for one of them to be free, behind the long texts of others; so short texts, which the loop tokenises
by itself, stay with the other call.
"""

from __future__ import annotations

from tokenizers import Encoding, Tokenizer

LOCKED_CHARACTERS_MAX = 8192
"""Of text for which the lock is held: a few milliseconds, and some twenty-five of digits under the patterns that cut each one off."""


def ids_of(tokenizer: Tokenizer, text: str, *, add_special: bool = False) -> list[int]:
    """Ids of a text. Blocks. Raises what the library raises."""
    if len(text) <= LOCKED_CHARACTERS_MAX:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=add_special).ids
    else:
        ids = tokenizer.encode_batch_fast([text], add_special_tokens=add_special)[0].ids
    return ids


def encoding_of(tokenizer: Tokenizer, text: str) -> Encoding:
    """The same with the place of each token. Nothing is put at either end."""
    if len(text) <= LOCKED_CHARACTERS_MAX:
        return tokenizer.encode(text, add_special_tokens=False)
    return tokenizer.encode_batch([text], add_special_tokens=False)[0]
