"""Text to word pieces, with the ids that transformers gives for the same `tokenizer.json`.

Lower-casing, accents and the pieces themselves are the file's own rules. What a user typed as `[SEP]` is that token here too, as in the
reference: an encoder has no turns that a text could break out of.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tripower.backends.safetensors.documents import read_document, refuse
from tripower.backends.text.tokenizer_json.library import FILE, encode, foreign_errors, load_tokenizer, tokenizer_failed
from tripower.runtime.kernel.errors import InvalidRequest, ModelRefused

MODEL = "WordPiece"
PROBE = "a"


class WordPieces:
    """An `EncoderText`. Building it takes a fraction of a second. Raises `ModelRefused` (`bad_value`, `unsupported_tokenizer`).

    `vocabulary` is the number of rows of the embedding: no id beyond is ever answered.
    """

    def __init__(self, data: bytes, vocabulary: int) -> None:
        self._tokenizer = load_tokenizer(data, MODEL)
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if largest >= vocabulary:
            raise refuse("bad_value", FILE, f"has the id {largest}, and the model has {vocabulary} rows for ids")
        self._tail = self._count_tail()

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """A row for each text, with the tokens that the post-processor puts at either end. Blocks."""
        with foreign_errors(tokenizer_failed):
            return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]

    def cut(self, row: Sequence[int], length: int) -> list[int]:
        """The beginning of the text; the tokens behind it stay."""
        if len(row) <= length:
            return list(row)
        return [*row[: length - self._tail], *row[len(row) - self._tail :]]

    def _count_tail(self) -> int:
        try:
            bare, whole = encode(self._tokenizer, PROBE), encode(self._tokenizer, PROBE, add_special=True)
        except InvalidRequest as error:
            raise refuse("bad_value", FILE, error.message) from error
        places = [at for at in range(len(whole) - len(bare) + 1) if whole[at : at + len(bare)] == bare]
        if not bare or not places:
            raise refuse("bad_value", f"{FILE} post_processor", "does not keep a text once")
        self.tokens_min = len(whole) - len(bare) + 1
        return len(whole) - places[0] - len(bare)


def read_tokenizer(folder: Path, vocabulary: int) -> WordPieces:
    """The tokenizer of a folder. Blocks. Raises `ModelRefused`, `missing_file` too."""
    data = read_document(folder, FILE)
    if data is None:
        raise ModelRefused(f"{folder} has no {FILE}", code="missing_file", param=FILE)
    return WordPieces(data, vocabulary)
