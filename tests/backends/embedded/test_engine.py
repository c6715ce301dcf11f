"""Rows are computed in batches of like length, in pieces, and every vector lands in its own row's place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.embedded.folders import SHAPE, random_weights
from tripower.backends.embedded import engine as engine_module
from tripower.backends.embedded.bert import Bert
from tripower.backends.embedded.engine import EmbeddedEngine, batches
from tripower.runtime.engine.encoder import Vectors
from tripower.runtime.kernel.errors import DeviceFailed

WEIGHTS = {name: torch.from_numpy(values) for name, values in random_weights().items()}
ROW = st.lists(st.integers(0, SHAPE.vocabulary - 1), min_size=1, max_size=SHAPE.tokens_max)


@pytest.fixture
def engine() -> EmbeddedEngine:
    return EmbeddedEngine(Bert(SHAPE, WEIGHTS), threads=1)


def encode(engine: EmbeddedEngine, rows: Sequence[Sequence[int]]) -> Vectors:
    vectors = np.full((len(rows), engine.dimensions), np.nan, np.float32)
    for _ in engine.encode(rows, vectors):
        pass
    return vectors


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 64))
def test_every_row_is_in_one_batch_and_no_batch_of_several_is_too_large(lengths: list[int], tokens_max: int) -> None:
    found = list(batches(lengths, tokens_max))
    assert sorted(place for batch in found for place in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(lengths[place] for place in batch) <= tokens_max


@given(rows=st.lists(ROW, min_size=1, max_size=12))
@settings(deadline=None)
def test_a_vector_has_unit_length_and_does_not_depend_on_its_neighbours(rows: list[list[int]]) -> None:
    engine = EmbeddedEngine(Bert(SHAPE, WEIGHTS), threads=1)
    together = encode(engine, rows)
    alone = np.concatenate([encode(engine, [row]) for row in rows])
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    assert np.all(1 - np.sum(together * alone, axis=1) <= 1e-6)


def test_padding_changes_nothing(engine: EmbeddedEngine) -> None:
    bert = Bert(SHAPE, WEIGHTS)
    plain = bert.encode(torch.tensor([[2, 4, 3]]), torch.ones(1, 3, dtype=torch.bool))
    for padding in range(SHAPE.vocabulary):
        tokens = torch.tensor([[2, 4, 3, padding, padding, padding]])
        padded = bert.encode(tokens, torch.tensor([[True] * 3 + [False] * 3]))
        assert 1 - float((plain * padded).sum()) <= 1e-6


def test_work_is_cut_into_boundaries_longest_rows_first(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "BOUNDARY_TOKENS", 8)
    rows = [[2, 4, 3], [2, 5, 5, 5, 5, 5, 3], [2, 6, 3], [2, 3]]
    vectors = np.zeros((4, engine.dimensions), np.float32)
    pieces = engine.encode(rows, vectors)
    next(pieces)
    assert [bool(vector.any()) for vector in vectors] == [False, True, False, False]  # the longest first
    next(pieces)
    assert [bool(vector.any()) for vector in vectors] == [True, True, True, False]


def test_two_requests_may_take_turns(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "BOUNDARY_TOKENS", 1)
    rows = [[2, 4, 3], [2, 5, 3]]
    one, two = np.zeros((2, 2, engine.dimensions), np.float32)
    for _ in zip(engine.encode(rows, one), engine.encode(rows[::-1], two), strict=True):
        pass
    assert np.allclose(one, two[::-1], atol=1e-6)


def test_torchs_threads_are_as_before(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    encode(engine, [[2, 4, 3]])
    assert asked == [1, 7]


def test_a_vector_that_is_not_finite_is_an_error() -> None:
    broken = WEIGHTS | {"embeddings.LayerNorm.bias": torch.full((SHAPE.width,), torch.nan)}
    with pytest.raises(DeviceFailed) as error:
        encode(EmbeddedEngine(Bert(SHAPE, broken), threads=1), [[2, 3]])
    assert error.value.code == "not_finite"


def test_the_engine_says_what_it_is(engine: EmbeddedEngine) -> None:
    info = engine.info
    assert (info.backend, info.architecture, info.context_max, info.vocabulary_size) == ("embedded", "bert", 8, 9)
    assert info.weight_bytes == 4 * info.parameters == 4 * sum(weight.numel() for weight in WEIGHTS.values())
    assert (engine.dimensions, info.threads) == (16, 1)
    engine.close()
    engine.close()
