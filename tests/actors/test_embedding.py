"""What is refused before a seat is asked for, how rows are cut, and what becomes of the vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.actors.encoders import BEGIN, CONTEXT, DIMENSIONS, END, asking, open_telling, telling
from tripower.actors import embedding
from tripower.actors.embedding import INPUTS_MAX, WHOLE, EmbeddingRequest, cut_vectors
from tripower.runtime.kernel import DeadlineExceeded, InvalidRequest

LONG = "abcdefghijkl"


def of(input: Any, **changes: Any) -> EmbeddingRequest:
    return EmbeddingRequest(model="vectors", input=input, **changes)


@pytest.mark.parametrize(
    ("asked", "code", "param"),
    [
        (of(()), "invalid_input", "input"),
        (of(""), "invalid_input", "input"),
        (of(("a", "")), "invalid_input", "input[1]"),
        (of(((),)), "invalid_input", "input[0]"),
        (of("a\0b"), "invalid_input", "input"),
        (of(("a", "\0")), "invalid_input", "input[1]"),
        (of(("a", "\ud800")), "invalid_unicode", "input[1]"),
        (of((1, "a")), "invalid_input", "input[1]"),
        (of(("a", 1)), "invalid_input", "input[1]"),
        (of(("a",) * (INPUTS_MAX + 1)), "invalid_input", "input"),
        (of((1, 256)), "invalid_input", "input"),
        (of(("a", (1, -1))), "invalid_input", "input[1]"),
        (of(LONG), "context_length_exceeded", "input"),
        (of(("a", LONG)), "context_length_exceeded", "input[1]"),
        (of(("a", (5,) * 9)), "context_length_exceeded", "input[1]"),
        (of("a", dimensions=0), "unsupported_embedding_dimensions", "dimensions"),
        (of("a", dimensions=DIMENSIONS + 1), "unsupported_embedding_dimensions", "dimensions"),
        (of("a", truncate=0), "invalid_value", "truncate_prompt_tokens"),
        (of("a", truncate=-2), "invalid_value", "truncate_prompt_tokens"),
        (of("a", truncate=CONTEXT + 1), "invalid_value", "truncate_prompt_tokens"),
        (of("abc", truncate=2), "invalid_value", "truncate_prompt_tokens"),
    ],
)
async def test_one_refusal_names_the_field(asked: EmbeddingRequest, code: str, param: str, autojump_clock: object) -> None:
    async with open_telling() as (runtime, backend):
        with pytest.raises(InvalidRequest) as refused:
            await runtime.embed(asked)
        assert (refused.value.code, refused.value.param, refused.value.status) == (code, param, 400)
        assert backend.engine.encoded == []


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        (of("ab"), [(BEGIN, 97, 98, END)]),
        (of((97, 98)), [(97, 98)]),
        (of(((97,), "a", (98, 99))), [(97,), (BEGIN, 97, END), (98, 99)]),
        (of(LONG, truncate=WHOLE), [(BEGIN, *b"abcdef", END)]),
        (of((LONG,), truncate=WHOLE), [(BEGIN, *b"abcdef", END)]),
        (of((5,) * 9, truncate=WHOLE), [(5,) * 8]),
        (of(("abc", "a", (5, 6, 7, 8)), truncate=3), [(BEGIN, 97, END), (BEGIN, 97, END), (5, 6, 7)]),
        (of(((5, 6, 7),), truncate=1), [(5,)]),
        (of(" "), [(BEGIN, 32, END)]),
    ],
)
async def test_rows_are_what_was_asked_for(
    asked: EmbeddingRequest, rows: list[tuple[int, ...]], autojump_clock: object
) -> None:
    """A single text and a list of one are cut alike: public report text-embeddings-inference #52."""
    async with open_telling() as (runtime, backend):
        found = await runtime.embed(asked)
        assert backend.engine.encoded == rows
        assert np.array_equal(found.vectors, [telling(row) for row in rows])
        assert found.prompt_tokens == sum(map(len, rows))


@given(
    arrays.arrays(np.float32, (3, 6), elements=st.floats(-1, 1, width=32)),
    st.integers(1, 6),
)
def test_cut_vectors_have_unit_length_again_and_the_same_direction(vectors: np.ndarray, dimensions: int) -> None:
    cut = cut_vectors(vectors, dimensions)
    assert cut.shape == (3, dimensions)
    assert cut.dtype == np.float32
    if dimensions == 6:
        assert np.array_equal(cut, vectors)
        return
    for whole, short in zip(vectors[:, :dimensions].astype(np.float64), cut, strict=True):
        length = np.linalg.norm(whole)
        if length > 1e-6:
            assert np.allclose(short, whole / length, atol=1e-5)
        assert np.isfinite(short).all()


async def test_long_texts_are_tokenised_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []
    make_rows = embedding.make_rows

    def noting(*arguments: Any) -> Any:
        threads.append(trio.lowlevel.in_trio_task())
        return make_rows(*arguments)

    monkeypatch.setattr(embedding, "make_rows", noting)
    async with open_telling(pace=lambda job: 0.0) as (runtime, _):
        monkeypatch.setattr(embedding, "INLINE_CHARACTERS", 200)
        found = await runtime.embed(asking(*["abc"] * 100))
        assert threads == [False, False]  # two calls for a hundred texts
        assert len(found.vectors) == 100
        threads.clear()
        await runtime.embed(asking("abc"))
        assert threads == [True]
        with pytest.raises(DeadlineExceeded):
            await runtime.embed(asking(*["abc"] * 100), deadline=trio.current_time())


def test_a_row_of_very_many_ids_is_refused_by_their_number_before_each_is_looked_at() -> None:
    with pytest.raises(InvalidRequest, match="at most 65536") as refusal:
        EmbeddingRequest(model="m", input=(1, *(["no id"] * embedding.ROW_TOKENS_MAX))).inputs()
    assert refusal.value.param == "input"
