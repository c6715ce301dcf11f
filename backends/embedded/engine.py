"""An encoder as the lane runs it: rows of like length together, little enough at a time that nobody waits long behind it.

Rows are taken in the order of their length, so that little is padded, and each vector is written to its row's own place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from tripower.backends.embedded.bert import Bert
from tripower.backends.embedded.weights import FLOAT_BYTES, elements
from tripower.runtime.engine import EngineInfo
from tripower.runtime.engine.encoder import Vectors
from tripower.runtime.kernel.errors import DeviceFailed

BOUNDARY_TOKENS = 256
"""Tokens between two boundaries, padding included: enough to keep the cores busy, a few hundredths of a second for MiniLM."""


ALONE_TOKENS = 64
"""A batch with fewer tokens is computed by one thread: its products are so small that threads cost more by waiting for each other."""


class EmbeddedEngine:
    """An `EncoderEngine` around a BERT. Two calls of `encode` may take turns: they share the weights and nothing else."""

    def __init__(self, bert: Bert, *, threads: int = 0) -> None:
        """`threads` of one batch; 0 for what torch has."""
        shape = bert.shape
        self._bert: Bert | None = bert
        self._threads = threads or torch.get_num_threads()
        self.dimensions = shape.width
        self.info = EngineInfo(
            backend="embedded",
            architecture="bert",
            context_max=shape.tokens_max,
            vocabulary_size=shape.vocabulary,
            sequences_max=0,
            parameters=elements(shape),
            weight_bytes=elements(shape) * FLOAT_BYTES,
            threads=self._threads,
            kernels="torch float32",
        )

    def encode(self, rows: Sequence[Sequence[int]], vectors: Vectors) -> Iterator[None]:
        """See `EncoderEngine`."""
        for places in batches([len(row) for row in rows], BOUNDARY_TOKENS):
            vectors[places] = self._encode([rows[place] for place in places])
            yield

    def close(self) -> None:
        self._bert = None

    def _encode(self, rows: Sequence[Sequence[int]]) -> Vectors:
        bert = self._bert
        assert bert is not None, "the engine was closed"
        length = max(map(len, rows))
        tokens = np.zeros((len(rows), length), np.int64)
        real = np.zeros(tokens.shape, np.bool_)
        for place, row in enumerate(rows):
            tokens[place, : len(row)] = row
            real[place, : len(row)] = True
        with torch.inference_mode(), _threads(1 if tokens.size < ALONE_TOKENS else self._threads):
            found: Vectors = bert.encode(torch.from_numpy(tokens), torch.from_numpy(real)).numpy()
        if not np.isfinite(found).all():
            raise DeviceFailed("a vector is not finite", code="not_finite")
        return found


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """So many threads for torch's kernels, which torch cannot take per call. The setting is the calling thread's, the lane's."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def batches(lengths: Sequence[int], tokens_max: int) -> Iterator[list[int]]:
    """Places of rows that are computed together, longest first: at most `tokens_max` tokens with their padding, at least one row."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    at = 0
    while at < len(order):
        count = max(1, tokens_max // lengths[order[at]])
        yield order[at : at + count]
        at += count
