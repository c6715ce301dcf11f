"""Texts to vectors from the side of whoever asks: every check that needs no seat, the tokens, and the question to the queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import msgspec
import numpy as np
import trio

from tripower.actors.embedding_queue import Embed
from tripower.actors.generation import FindReady, follow_unloads
from tripower.actors.preparation import INLINE_CHARACTERS
from tripower.runtime.admission import ANYBODY, Caller
from tripower.runtime.engine import EngineInfo
from tripower.runtime.engine.encoder import EncoderText, LoadedEncoder, Vectors
from tripower.runtime.kernel import DeadlineExceeded, InvalidRequest

INPUTS_MAX = 2048
"""As many as OpenAI takes."""
ROW_TOKENS_MAX = 1 << 16
"""More than any encoder takes, and little enough to be looked at on the loop."""
TEXTS_PER_CALL = 64
"""Texts that the tokenizer gets at once: between two calls a caller that has left is noticed."""
WHOLE = -1
"""As `truncate`: to the longest row that the model takes."""

Input = str | tuple[int, ...]


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Vectors asked for: of one text or row of ids, or of several. Rows of ids are taken as they are, nothing is put around them."""

    model: str
    input: str | tuple[int | Input, ...]
    """A text; a row of ids; or several of these. A row is told by its first item."""
    dimensions: int | None = None
    """Cut every vector to so many values and give it unit length again; None: all."""
    truncate: int | None = None
    """Keep so many tokens of a longer input, its beginning; `WHOLE`: as many as the model takes. None: refuse what is too long."""
    caller: Caller = ANYBODY
    request_id: str = ""
    """Whatever whoever asks calls it."""

    def inputs(self) -> list[tuple[str, Input]]:
        """Each with what refusals call it. Raises `InvalidRequest` for a mixture of ids and texts on one level."""
        if isinstance(self.input, str):
            return [("input", self.input)]
        if self.input and isinstance(self.input[0], int):
            if len(self.input) > ROW_TOKENS_MAX:  # before each of them is looked at
                raise _refused(
                    f"a row has at most {ROW_TOKENS_MAX} token ids, even to be truncated: send its beginning", "input"
                )
            return [("input", tuple([_only(int, each, f"input[{index}]") for index, each in enumerate(self.input)]))]
        return [(place := f"input[{index}]", _only(str | tuple, each, place)) for index, each in enumerate(self.input)]


@attrs.frozen(eq=False)
class Embeddings:
    """The vectors, float32 [inputs, dimensions], in the order of the inputs, each of unit length."""

    model: str
    vectors: Vectors
    prompt_tokens: int
    """With the tokens that every row begins and ends with."""
    waited_seconds: float
    encode_seconds: float


async def embed(find: FindReady, request: EmbeddingRequest, deadline: float) -> Embeddings:
    """Load the model if need be, wait for a seat, encode. Blocks; cancelling it frees the seat at the next piece of work.

    Raises `InvalidRequest` naming the input, `NotFound`, `Overloaded`, `DeadlineExceeded`, `ModelRefused`, `DeviceFailed`.
    """
    check_request(request)
    return await follow_unloads(lambda: _embed(find, request, deadline))


async def _embed(find: FindReady, request: EmbeddingRequest, deadline: float) -> Embeddings:
    ready = await find(request.model, deadline)
    loaded = ready.loaded
    if not isinstance(loaded, LoadedEncoder):
        raise InvalidRequest(
            f"{request.model[:200]} generates text and makes no embeddings: name an embedding model, such as minilm",
            code="unsupported_by_model",
            param="model",
        )
    dimensions = _dimensions(request, loaded)
    rows = await _rows_in_time(request, loaded, deadline)
    vectors = np.empty((len(rows), loaded.engine.dimensions), np.float32)
    embedded = await ready.queue.ask(Embed(rows, request.caller, request.request_id), deadline=deadline, live=vectors)
    return Embeddings(
        request.model,
        cut_vectors(vectors, dimensions),
        sum(map(len, rows)),
        embedded.waited_seconds,
        embedded.encode_seconds,
    )


def check_request(request: EmbeddingRequest) -> None:
    """Raise `InvalidRequest` for what is wrong whatever the model, before one is loaded."""
    inputs = request.inputs()
    if not inputs:
        raise _refused("the list is empty", "input")
    if len(inputs) > INPUTS_MAX:
        raise _refused(f"has {len(inputs)} inputs, and one request may have {INPUTS_MAX}: send several requests", "input")
    for place, each in inputs:
        if not each:
            raise _refused("is empty: give text, or at least one token", place)
        if not isinstance(each, str):
            continue
        if "\0" in each:
            raise _refused("has a NUL character, which is no text: leave it out", place)
        try:
            each.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"{place}: half a character is no text", code="invalid_unicode", param=place) from None
    if request.dimensions is not None and request.dimensions < 1:
        raise _wrong_dimensions("is at least 1")
    if request.truncate is not None and request.truncate < 1 and request.truncate != WHOLE:
        raise InvalidRequest(
            f"truncate_prompt_tokens is a number of tokens, or {WHOLE} for the model's own limit",
            param="truncate_prompt_tokens",
        )


def cut_vectors(vectors: Vectors, dimensions: int) -> Vectors:
    """The first values of each, float32 [rows, dimensions], with unit length again."""
    if dimensions == vectors.shape[1]:
        return vectors
    cut = vectors[:, :dimensions]
    lengths = np.linalg.norm(cut, axis=1, keepdims=True)
    shortened: Vectors = np.divide(cut, lengths, out=np.zeros_like(cut), where=lengths > 0)
    return shortened


def _dimensions(request: EmbeddingRequest, loaded: LoadedEncoder) -> int:
    most = loaded.engine.dimensions
    if request.dimensions is not None and request.dimensions > most:
        raise _wrong_dimensions(f"is at most {most} with this model")
    return request.dimensions or most


async def _rows_in_time(request: EmbeddingRequest, loaded: LoadedEncoder, deadline: float) -> tuple[tuple[int, ...], ...]:
    """The rows of all inputs. Long texts are tokenised in a worker thread, which is left behind when the caller goes."""
    inputs = request.inputs()
    size = sum(len(each) for _, each in inputs)
    if size <= INLINE_CHARACTERS:
        return tuple(
            row for part in _parts(inputs) for row in make_rows(part, loaded.engine.info, loaded.text, request.truncate)
        )
    rows: list[tuple[int, ...]] = []
    with trio.CancelScope(deadline=deadline):
        for part in _parts(inputs):
            rows += await trio.to_thread.run_sync(
                make_rows, part, loaded.engine.info, loaded.text, request.truncate, abandon_on_cancel=True
            )
        return tuple(rows)
    raise DeadlineExceeded("the deadline passed while the input was tokenised")


def _parts(inputs: Sequence[tuple[str, Input]]) -> Iterator[Sequence[tuple[str, Input]]]:
    for at in range(0, len(inputs), TEXTS_PER_CALL):
        yield inputs[at : at + TEXTS_PER_CALL]


def make_rows(
    inputs: Sequence[tuple[str, Input]], info: EngineInfo, text: EncoderText, truncate: int | None
) -> list[tuple[int, ...]]:
    """The rows of these inputs, none longer than the model takes. Raises `InvalidRequest`. Blocks for long texts."""
    limit = _limit(info, truncate)
    tokenized = iter(text.tokenize([each for _, each in inputs if isinstance(each, str)]))
    rows = []
    for place, each in inputs:
        row = next(tokenized) if isinstance(each, str) else list(each)
        if not isinstance(each, str):
            _check_ids(place, each, info)
        if len(row) > limit and truncate is None:
            raise InvalidRequest(
                f"this model's maximum context length is {limit} tokens; {place} has {len(row)}: shorten it, or send truncate: true",
                code="context_length_exceeded",
                param=place,
            )
        if isinstance(each, str) and len(row) > limit < text.tokens_min:
            raise InvalidRequest(
                f"truncate_prompt_tokens is at least {text.tokens_min} for text", param="truncate_prompt_tokens"
            )
        rows.append(tuple(text.cut(row, limit) if isinstance(each, str) else row[:limit]))
    return rows


def _limit(info: EngineInfo, truncate: int | None) -> int:
    if truncate is None or truncate == WHOLE:
        return info.context_max
    if truncate > info.context_max:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {truncate}, and this model takes {info.context_max} tokens",
            param="truncate_prompt_tokens",
        )
    return truncate


def _check_ids(place: str, row: tuple[int, ...], info: EngineInfo) -> None:
    for token in row:
        if not 0 <= token < info.vocabulary_size:
            raise _refused(f"{token} is no token of a vocabulary of {info.vocabulary_size}", place)


def _only(kind: Any, given: Any, place: str) -> Any:
    if not isinstance(given, kind):
        raise _refused("is a token id among texts, or a text among token ids", place)
    return given


def _refused(why: str, place: str) -> InvalidRequest:
    return InvalidRequest(f"{place}: {why}", code="invalid_input", param=place)


def _wrong_dimensions(why: str) -> InvalidRequest:
    return InvalidRequest(f"dimensions {why}", code="unsupported_embedding_dimensions", param="dimensions")
