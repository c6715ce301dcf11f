"""Encoders for tests: vectors that tell their row, a piece of work for each row, on virtual time; and a plan that serves one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from tripower.actors.embedding import EmbeddingRequest
from tripower.actors.models import ModelSource
from tripower.actors.queueing import QueueStatistics
from tripower.actors.runtime import Runtime, RuntimePlan, open_actors, toy_plan
from tripower.backends.toy import ToyBackend
from tripower.runtime.engine import EngineInfo, LoadSpecification, Progress
from tripower.runtime.engine.encoder import LoadedEncoder, Vectors
from tripower.runtime.kernel import InlineLane, LaneJob

ROW_SECONDS = 1.0
DIMENSIONS, CONTEXT = 4, 8
BEGIN, END = 1, 2


def encodings_only(job: LaneJob) -> float:
    return ROW_SECONDS if job.name.startswith("encode") else 0.0


class PlainText:
    """A token for each character, between `BEGIN` and `END`."""

    tokens_min = 3

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return [[BEGIN, *text.encode(), END] for text in texts]

    def cut(self, row: Sequence[int], length: int) -> list[int]:
        return list(row) if len(row) <= length else [*row[: length - 1], END]


class TellingEncoder:
    """A row's vector is `telling(row)`. The next rows fail as `failures` say."""

    def __init__(self) -> None:
        self.info = EngineInfo(
            backend="telling", architecture="bert", context_max=CONTEXT, vocabulary_size=256, sequences_max=0, parameters=1
        )
        self.dimensions = DIMENSIONS
        self.failures: list[BaseException] = []
        self.encoded: list[tuple[int, ...]] = []
        self.closed = False
        self.before_row: Callable[[], object] = lambda: None

    def encode(self, rows: Sequence[Sequence[int]], vectors: Vectors) -> Iterator[None]:
        for place, row in enumerate(rows):
            assert not self.closed
            self.before_row()
            if self.failures:
                raise self.failures.pop(0)
            self.encoded.append(tuple(row))
            vectors[place] = telling(row)
            yield

    def close(self) -> None:
        self.closed = True


def telling(row: Sequence[int]) -> Vectors:
    """A vector of unit length that no other short row has."""
    vector = np.array([len(row), row[0], row[-1], sum(place * token for place, token in enumerate(row))], np.float32)
    return vector / np.linalg.norm(vector)


class TellingBackend:
    """Loads telling encoders and keeps them."""

    name = "telling"

    def __init__(self) -> None:
        self.engines: list[TellingEncoder] = []

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedEncoder | None]:
        yield None
        self.engines.append(TellingEncoder())
        yield LoadedEncoder(self.engines[-1], PlainText())

    @property
    def engine(self) -> TellingEncoder:
        """The newest."""
        return self.engines[-1]


def telling_plan(backend: TellingBackend, **changes: Any) -> RuntimePlan:
    """A plan with the encoder `vectors` beside the toy."""
    sources = (
        ModelSource(name="vectors", source="vectors", backend="telling"),
        ModelSource(name="toy", source="toy", backend="toy"),
    )
    return toy_plan(backends={"telling": backend, "toy": ToyBackend()}, sources=sources, **changes)


@asynccontextmanager
async def open_telling(
    *, pace: Callable[[LaneJob], float] = encodings_only, **changes: Any
) -> AsyncIterator[tuple[Runtime, TellingBackend]]:
    """A runtime with an encoder on an inline lane, loaded. At its end every engine must be closed."""
    backend = TellingBackend()
    async with open_actors(telling_plan(backend, open_port=lambda: InlineLane(pace), **changes)) as runtime:
        await runtime.load("vectors")
        yield runtime, backend
    assert runtime.statistics() == []
    assert all(engine.closed for engine in backend.engines)


def asking(*texts: str, **changes: Any) -> EmbeddingRequest:
    """A request for these texts."""
    return EmbeddingRequest(model=changes.pop("model", "vectors"), input=texts, **changes)


def queue_of(runtime: Runtime) -> QueueStatistics:
    (found,) = (actor.details for actor in runtime.statistics() if actor.name == "queue:vectors")
    assert isinstance(found, QueueStatistics)
    return found
