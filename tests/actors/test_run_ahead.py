"""A native loop under the real queue, device and lane: who is let in, who is heard, and how long a prompt holds up the others.

On the real clock, and nothing depends on how fast it goes: streams are long enough to run while all the rest happens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.actors.rigs import Listener, queue_figures, request
from tests.backends.conftest import specification_for, write_tiny
from tripower.actors.dialogue import TokenChunk
from tripower.actors.generation import Generation
from tripower.actors.models import LoadLimits, ModelSource
from tripower.actors.queueing import QueueLimits
from tripower.actors.runtime import Runtime, open_actors, toy_plan
from tripower.backends.gguf.reader import open_gguf
from tripower.backends.picolm.backend import load_engine, plan_load
from tripower.backends.toy import ToyText
from tripower.runtime.engine import LoadedModel, LoadSpecification, Progress, StepTable
from tripower.runtime.engine.step_table import NOT_DRAWN

VOCABULARY = 257
CONTEXT, STREAM_TOKENS, LONG_PROMPT = 8192, 6000, 1500
MEMBERS, ROWS, MIXED_ROWS = 4, 64, 8
STEPS_PER_JOB = STREAM_TOKENS
"""A job could run until a stream's end, so whoever is served before that was let in."""
HANG_SECONDS = 60
"""Only to end a test that hangs."""


class NativeBackend:
    """Tiny models in generated code, with a byte for a token; remembers the steps of each job."""

    name = "toy"

    def __init__(self) -> None:
        self.engines: list[Any] = []
        self.jobs: list[list[tuple[list[int], list[int]]]] = []
        """Of each job's steps, rows evaluated and tokens drawn."""

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        settings = specification_for(Path(specification.source), context=CONTEXT, sequences_max=MEMBERS, prefill_chunk=ROWS)
        with open_gguf(settings.source) as file:
            engine = yield from load_engine(file, plan_load(file, settings, "native"), settings, progress)
        run = engine.run

        def recorded(table: StepTable) -> Iterator[None]:
            try:
                yield from run(table)
            finally:
                done, slots = table.steps_done, table.slots
                self.jobs.append(
                    list(zip(table.evaluated[:done, :slots].tolist(), table.drawn[:done, :slots].tolist(), strict=True))
                )

        engine.run = recorded  # type: ignore[method-assign]
        self.engines.append(engine)
        yield LoadedModel(engine, ToyText())

    @property
    def steps(self) -> list[tuple[list[int], list[int]]]:
        return [step for job in self.jobs for step in job]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "bytes.gguf"
    write_tiny(path, "llama", vocabulary=VOCABULARY, context=CONTEXT, layers=4)
    return path


@asynccontextmanager
async def open_native(model: Path) -> AsyncIterator[tuple[Runtime, NativeBackend]]:
    """A runtime on a real lane with two models, `toy` and `second`, of which the first is loaded."""
    backend = NativeBackend()
    queue = QueueLimits(members_max=MEMBERS, waiting_max=8, steps_per_job=STEPS_PER_JOB, rows_max=ROWS, mixed_rows=MIXED_ROWS)
    sources = tuple(ModelSource(name=name, source=str(model), backend="toy") for name in ("toy", "second"))
    plan = toy_plan(
        backends={"toy": backend},
        sources=sources,
        limits=LoadLimits(context=CONTEXT, state_bytes_max=1 << 30, threads=1, queue=queue),
    )
    with trio.fail_after(HANG_SECONDS):
        async with open_actors(plan) as runtime:
            await runtime.load("toy")
            yield runtime, backend


class Stream(Listener):
    """A long stream. `running` is set with its first token; `scope` ends it."""

    def __init__(self, runtime: Runtime, nursery: trio.Nursery) -> None:
        super().__init__()
        self.scope, self.running, self.ended = trio.CancelScope(), trio.Event(), trio.Event()
        nursery.start_soon(self.run, runtime.generate(request("s", STREAM_TOKENS)), self.scope)

    async def run(self, generation: Generation, scope: trio.CancelScope | None = None) -> None:
        await super().run(generation, scope)
        self.ended.set()

    async def listen(self, generation: Generation) -> None:
        async for event in generation:
            if isinstance(event, TokenChunk):
                self.tokens.append(event.token)
                self.times.append(trio.current_time())
                self.running.set()


async def test_a_long_prompt_is_taken_in_small_pieces_while_others_stream(model: Path) -> None:
    async with open_native(model) as (runtime, backend), trio.open_nursery() as nursery:
        streams = [Stream(runtime, nursery) for _ in range(2)]
        for stream in streams:
            await stream.running.wait()
        late = Listener()
        await late.run(runtime.generate(request("long " * (LONG_PROMPT // 5), 3)))
        assert late.error is None and len(late.tokens) == 3
        assert not any(stream.ended.is_set() for stream in streams)
        for stream in streams:
            stream.scope.cancel()
    together = [(rows, drawn) for rows, drawn in backend.steps if len(rows) == 3 and rows[2]]
    end = next(index for index, (_, drawn) in enumerate(together) if drawn[2] != NOT_DRAWN) + 1
    pieces = [rows[2] for rows, _ in together[:end]]
    assert sum(pieces) == LONG_PROMPT and max(pieces) == MIXED_ROWS + 1
    assert pieces == [*sorted(pieces[:-1], reverse=True), pieces[-1]]  # smaller ones the further back a row looks
    assert all(rows[:2] == [1, 1] for rows, _ in together)


async def test_a_newcomer_and_one_that_leaves_end_the_job_ahead_of_its_time(model: Path) -> None:
    async with open_native(model) as (runtime, backend), trio.open_nursery() as nursery:
        stream = Stream(runtime, nursery)
        await stream.running.wait()
        newcomer = Listener()
        await newcomer.run(runtime.generate(request("hello", 4)))
        assert newcomer.error is None and len(newcomer.tokens) == 4
        assert not stream.ended.is_set()
        stream.scope.cancel()
        await stream.ended.wait()
        alone = Listener()
        await alone.run(runtime.generate(request("hello", 4)))
        assert alone.tokens == newcomer.tokens
        assert queue_figures(runtime).batch.steps < STREAM_TOKENS
    assert len(backend.steps[-1][0]) == 1, "the stream that left takes no part any more"


async def test_the_load_of_another_model_does_not_wait_for_a_job_to_end(model: Path) -> None:
    async with open_native(model) as (runtime, backend), trio.open_nursery() as nursery:
        stream = Stream(runtime, nursery)
        await stream.running.wait()
        await runtime.load("second")
        assert len(backend.engines) == 2 and not stream.ended.is_set()
        other = Listener()
        await other.run(runtime.generate(request("hello", 4, model="second")))
        assert other.error is None and len(other.tokens) == 4
        assert not stream.ended.is_set()
        stream.scope.cancel()


async def test_tokens_arrive_while_the_job_runs_and_are_those_of_the_table(model: Path) -> None:
    async with open_native(model) as (runtime, backend), trio.open_nursery() as nursery:
        stream = Stream(runtime, nursery)
        await stream.running.wait()
        assert not any(backend.steps), "the job has not ended"
        await stream.ended.wait()
    assert stream.error is None and len(stream.tokens) == STREAM_TOKENS
    assert [drawn[0] for _, drawn in backend.steps] == stream.tokens
