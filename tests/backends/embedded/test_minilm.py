"""The real MiniLM against transformers in float32, from the same folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tripower.backends.embedded.backend import EmbeddedBackend
from tripower.runtime.engine import LoadSpecification
from tripower.runtime.engine.encoder import LoadedEncoder

transformers = pytest.importorskip("transformers")

TEXTS = [
    "hello",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "Someone in a gorilla costume is playing a set of drums.",
    "Tōkyō",
    "Tōkyō",
    "lǜ",
    "lǜ",
    "naïve café, déjà vu",
    "Über den Wolken",
    "東京は日本の首都です。",
    "Привет, мир",
    "مرحبا بالعالم",
    "emoji 🙂 👩‍👩‍👧 and more",
    "  spaces \t and\nlines  ",
    "x",
    "123 456.789 -1e-5",
    "def f(x): return x ** 2  # a comment",
    "antidisestablishmentarianism " * 3,
    "w" * 150,
    "[SEP] as a user types it [MASK]",
    "zero\u200bwidth and\u00a0hard space",
    "A long text about nothing in particular, which goes on and on. " * 12,
    "word " * 400,
]


@pytest.fixture(scope="module")
def minilm(minilm_path: Path) -> LoadedEncoder:
    specification = LoadSpecification(
        name="minilm", source=str(minilm_path), context=0, sequences_max=1, state_bytes_max=0, threads=1, prefill_chunk=1
    )
    loaded = list(EmbeddedBackend().load(specification, lambda stage, fraction: None))[-1]
    assert loaded is not None
    return loaded


@pytest.fixture(scope="module")
def reference(minilm_path: Path) -> tuple[Any, Any]:
    transformers.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(minilm_path))
    return tokenizer, transformers.AutoModel.from_pretrained(str(minilm_path), dtype=torch.float32).eval()


def rows_of(minilm: LoadedEncoder, texts: Sequence[str]) -> list[list[int]]:
    return [minilm.text.cut(row, minilm.engine.info.context_max) for row in minilm.text.tokenize(texts)]


def encode(minilm: LoadedEncoder, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    vectors = np.empty((len(rows), minilm.engine.dimensions), np.float32)
    for _ in minilm.engine.encode(rows, vectors):
        pass
    return vectors


def cosines(one: NDArray[np.float32], two: NDArray[np.float32]) -> NDArray[np.float64]:
    a, b = one.astype(np.float64), two.astype(np.float64)
    return np.asarray(np.sum(a * b, axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))


def test_ids_and_vectors_are_those_of_transformers(minilm: LoadedEncoder, reference: tuple[Any, Any]) -> None:  # BB-011
    """Marks over letters, composed and decomposed, are among them."""
    tokenizer, model = reference
    rows = rows_of(minilm, TEXTS)
    expected = []
    for text, row in zip(TEXTS, rows, strict=True):
        given = tokenizer([text], return_tensors="pt", truncation=True, max_length=256)
        assert given["input_ids"][0].tolist() == row, text
        with torch.inference_mode():
            expected.append(torch.nn.functional.normalize(model(**given).last_hidden_state.mean(1)).numpy()[0])
    found = encode(minilm, rows)
    assert found.shape == (len(TEXTS), 384)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert cosines(found, np.stack(expected)).min() >= 0.9999


def test_a_mark_is_the_same_composed_and_decomposed(minilm: LoadedEncoder) -> None:  # BB-011
    rows = rows_of(minilm, ["T\u014dky\u014d", "To\u0304kyo\u0304", "l\u01dc", "lu\u0308\u0300"])
    assert rows[0] == rows[1]
    assert rows[2] == rows[3]


def test_neither_padding_nor_order_changes_a_vector(minilm: LoadedEncoder) -> None:
    rows = rows_of(minilm, TEXTS)
    together, backwards = encode(minilm, rows), encode(minilm, rows[::-1])[::-1]
    alone = np.concatenate([encode(minilm, [row]) for row in rows])
    assert (1 - cosines(together, alone)).max() <= 1e-6
    assert (1 - cosines(together, backwards)).max() <= 1e-6


def test_what_means_the_same_is_near(minilm: LoadedEncoder) -> None:
    asked, near, far = encode(
        minilm, rows_of(minilm, ["A man is eating food.", "Somebody has a meal.", "Stocks fell sharply."])
    )
    assert asked @ near > asked @ far + 0.2
