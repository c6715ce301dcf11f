"""The body of `POST /v1/embeddings`, as OpenAI has it, with the two ways in which other servers let long input be cut."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tripower.actors.embedding import WHOLE, EmbeddingRequest, Input
from tripower.api.http.decoding import RequestDecoder
from tripower.runtime.kernel import InvalidRequest

FORMATS = ("float", "base64")
TOKEN_MAX = 2**31 - 1


class EmbeddingsIn(msgspec.Struct, frozen=True, kw_only=True):
    """`truncate` is a switch, as in text-embeddings-inference; `truncate_prompt_tokens` a number of tokens or -1, as in vLLM."""

    model: str
    input: str | list[Any]
    encoding_format: str | None = None
    dimensions: int | None = None
    truncate: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=TOKEN_MAX)] | None = None
    user: Any = None

    def embedding(self) -> EmbeddingRequest:
        """What the runtime is asked. Raises `InvalidRequest` naming the field."""
        return EmbeddingRequest(
            model=self.model, input=_inputs(self.input), dimensions=self.dimensions, truncate=self._truncation()
        )

    def as_base64(self) -> bool:
        """Whether vectors are answered as text. Raises `InvalidRequest` for a format that nobody knows."""
        if self.encoding_format is not None and self.encoding_format not in FORMATS:
            raise InvalidRequest(
                f"encoding_format is {' or '.join(FORMATS)}, not {self.encoding_format[:40]!r}",
                code="unsupported_encoding_format",
                param="encoding_format",
            )
        return self.encoding_format == "base64"

    def _truncation(self) -> int | None:
        if self.truncate_prompt_tokens is None:
            return WHOLE if self.truncate else None
        if self.truncate is False:
            raise InvalidRequest(
                "truncate: false and truncate_prompt_tokens contradict each other; give one of them",
                param="truncate_prompt_tokens",
            )
        return self.truncate_prompt_tokens


class ExactEmbeddings(EmbeddingsIn, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same, and nothing else."""


EMBEDDINGS = RequestDecoder[EmbeddingsIn](EmbeddingsIn, ExactEmbeddings)


def _inputs(given: str | list[Any]) -> str | tuple[int | Input, ...]:
    """A text, a row of token ids, or a list of these."""
    if isinstance(given, str):
        return given
    if given and type(given[0]) is int:
        return _row(given, "input")
    return tuple(_input(each, f"input[{index}]") for index, each in enumerate(given))


def _input(given: Any, place: str) -> Input:
    if isinstance(given, str):
        return given
    if isinstance(given, list):
        return _row(given, place)
    raise _wrong_type(place, "expected text or a list of token ids")


def _row(given: list[Any], place: str) -> tuple[int, ...]:
    for index, token in enumerate(given):
        if type(token) is not int or not 0 <= token <= TOKEN_MAX:
            raise _wrong_type(f"{place}[{index}]", "expected a token id")
    return tuple(given)


def _wrong_type(place: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{place}: {why}", code="invalid_input", param=place)
