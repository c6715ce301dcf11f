"""The `tokenizers` library, at arm's length: what it is given is untrusted, and what it raises is not ours.

A damaged file makes the library raise plain `Exception`; a hostile one (a pattern that backtracks without end) makes it panic,
which arrives as a `BaseException` of its own. Its regular expressions give up after ten million steps, so that a pattern costs
a fraction of a second before it is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tokenizers import Tokenizer

from tripower.backends.safetensors.documents import refuse
from tripower.backends.text.unlocked import encoding_of, ids_of
from tripower.runtime.kernel.errors import InvalidRequest, ModelRefused, TripowerError

FILE = "tokenizer.json"
REASON_CHARACTERS_MAX = 200
MODEL = "BPE"
"""Every family of decoders here has it; encoders have word pieces, and a unigram tokenizer belongs to other models."""


def load_tokenizer(data: bytes, wanted: str = MODEL) -> Tokenizer:
    """The tokenizer in a `tokenizer.json`, without truncation and padding. Blocks for a second where it is large.

    Raises `ModelRefused`: `bad_value` for what is none, `unsupported_tokenizer` for another kind than the wanted one.
    """
    with foreign_errors(lambda reason: refuse("bad_value", FILE, f"cannot be used as a tokenizer ({reason})")):
        tokenizer = Tokenizer.from_buffer(data)
        tokenizer.no_truncation()
        tokenizer.no_padding()
    kind = type(tokenizer.model).__name__
    if kind != wanted:
        raise refuse("unsupported_tokenizer", f"{FILE} model", f"is a {kind}; supported is {wanted}")
    if getattr(tokenizer.model, "dropout", None):
        raise refuse("unsupported_tokenizer", f"{FILE} model", "draws lots (dropout): the same text would get different ids")
    return tokenizer


def encode(tokenizer: Tokenizer, text: str, *, add_special: bool = False) -> list[int]:
    """Ids of a text. Raises `InvalidRequest` (`tokenizer_failed`) where the model's own rules fail on it. Blocks."""
    with foreign_errors(tokenizer_failed):
        return ids_of(tokenizer, text, add_special=add_special)


def encode_with_places(tokenizer: Tokenizer, text: str) -> list[tuple[int, tuple[int, int]]]:
    """Ids of a text, each with the characters that it stands for, as begin and end."""
    with foreign_errors(tokenizer_failed):
        encoding = encoding_of(tokenizer, text)
        return list(zip(encoding.ids, encoding.offsets, strict=True))


def tokenizer_failed(reason: str) -> InvalidRequest:
    """The error for a text on which the tokenizer of the model fails."""
    return InvalidRequest(f"the model's tokenizer fails on this text ({reason})", code="tokenizer_failed")


@contextmanager
def foreign_errors(make: Callable[[str], TripowerError | ModelRefused]) -> Iterator[None]:
    """Map whatever the library raises, and nothing else: a cancellation or an interrupt passes."""
    try:
        yield
    except Exception as error:
        raise make(str(error)[:REASON_CHARACTERS_MAX]) from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise make(str(error)[:REASON_CHARACTERS_MAX]) from error


def is_panic(error: BaseException) -> bool:
    """Whether native code panicked; the type cannot be imported."""
    return type(error).__name__ == "PanicException"
