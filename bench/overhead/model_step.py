"""The engine-free share of a step, with a real model.

Ours is what a member of a full batch sees, as with the toy; the peer is the same engine running tables of the same size on a bare
thread, over the same positions. Both are loaded once and wait for each other without running; an engine's kernels compete with the Trio
loop for cores and caches, which the toy, that sleeps through its steps, cannot show.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import trio

from tripower.actors.dialogue import GenerationRequest, SamplingChoices
from tripower.actors.runtime import Runtime, RuntimePlan, open_actors
from tripower.bench.engines import load_model
from tripower.bench.measured_model import MeasuredModel
from tripower.bench.overhead.observed import STEPS_BEFORE, observed_milliseconds
from tripower.bench.overhead.step import IDLE_MAX, SATURATED_MAX, STEPS_PER_JOB
from tripower.bench.paired import Progress, alternate_async, summarise
from tripower.bench.schema import Cell, Target, paired_cell
from tripower.runtime.configuration import Configuration
from tripower.runtime.configuration.settings import EngineSettings, SchedulerSettings
from tripower.runtime.engine import SamplingParameters, StepEngine, StepTable

MEMBERS = 4
CONTEXT = 1024
STEPS = 128
"""Of a block; what a member asks for around them fits into the context."""
PROMPT = tuple(range(10, 26))
"""Token ids, the same for every member."""
MILLI = 1e3

P = ParamSpec("P")
Result = TypeVar("Result")


async def model_step_cells(model: MeasuredModel, threads: int, *, quick: bool, progress: Progress) -> list[Cell]:
    """Idle, saturated, and saturated with one thread less, so that a core is left to the loop. Blocks."""
    rounds, steps = (1, 4) if quick else (10, STEPS)
    whole = (State("idle", False, IDLE_MAX), State("saturated", True, SATURATED_MAX))
    cells = await _cells(model, threads, whole, rounds=rounds, steps=steps, progress=progress)
    if threads > 1:
        less = (State("saturated, one thread less", True, None),)
        cells += await _cells(model, threads - 1, less, rounds=rounds, steps=steps, progress=progress)
    return cells


class State(NamedTuple):
    """What the Trio loop does meanwhile, and how much longer a step may be for that."""

    name: str
    saturated: bool
    limit: float | None


async def _cells(
    model: MeasuredModel, threads: int, states: Sequence[State], *, rounds: int, steps: int, progress: Progress
) -> list[Cell]:
    """A cell for each state, with engines of so many threads."""
    progress("step: loading the model")
    note = f"{MEMBERS} members, {threads} thread{'s' if threads > 1 else ''}; peer: the same engine alone on a thread"
    cells = []
    with ThreadPoolExecutor(1) as lane:
        bare = await _on(lane, BareEngine, model.path, threads)
        async with open_actors(await trio.to_thread.run_sync(make_model_plan, model.path, threads)) as runtime:
            [card] = await runtime.models()
            await runtime.load(card.name)
            for state in states:
                name = f"step of {model.name}, loop {state.name}"
                measured = await alternate_async(
                    functools.partial(_through_the_runtime, runtime, card.name, steps, state.saturated),
                    functools.partial(_on, lane, bare.milliseconds, steps),
                    rounds=rounds,
                    label=name,
                    progress=progress,
                )
                target = None if state.limit is None else Target("ratio", "<=", state.limit)
                cells.append(paired_cell(name, summarise(measured), unit="ms", target=target, note=note))
        await _on(lane, bare.close)
    return cells


async def _on(lane: ThreadPoolExecutor, work: Callable[P, Result], *arguments: P.args, **named: P.kwargs) -> Result:
    """Run `work` on the one thread of `lane`, without blocking the loop."""
    return await trio.to_thread.run_sync(lambda: lane.submit(work, *arguments, **named).result())


def make_model_plan(path: Path, threads: int) -> RuntimePlan:
    """A runtime with this model only, as many seats as members, and no waiting room. Blocks for small reads."""
    from tripower.api.plan import find_source, make_plan
    from tripower.runtime.store import Store

    configuration = Configuration(
        scheduler=SchedulerSettings(batch_members=MEMBERS, waiting=0),
        engine=EngineSettings(threads=threads, context=CONTEXT),
    )
    return make_plan(configuration, [find_source(str(path), Store())])


async def _through_the_runtime(runtime: Runtime, name: str, steps: int, saturated: bool) -> float:
    request = GenerationRequest(model=name, prompt=PROMPT, ignore_eos=True, sampling=SamplingChoices(temperature=0.0))
    return await observed_milliseconds(runtime, request, members=MEMBERS, steps=steps, saturated=saturated)


class BareEngine:
    """The engine on the thread that made it, with nothing around it."""

    def __init__(self, path: Path, threads: int) -> None:
        self._engine: StepEngine = load_model(path, context=CONTEXT, sequences=MEMBERS, threads=threads).engine
        self._table = StepTable(slots_max=MEMBERS, steps_max=STEPS_PER_JOB, rows_max=256)

    def milliseconds(self, steps: int) -> float:
        """Milliseconds a step, over the positions that the members of a runtime have reached when they are timed. Blocks."""
        for sequence in range(MEMBERS):
            self._engine.open_sequence(sequence)
        pending = [list(PROMPT) for _ in range(MEMBERS)]
        pending = self._run(pending, STEPS_BEFORE)
        took, done = 0.0, 0
        while done < steps:
            began = time.perf_counter()
            pending = self._run(pending, min(STEPS_PER_JOB, steps - done))
            took += time.perf_counter() - began
            done += self._table.steps_done
        return took / done * MILLI

    def close(self) -> None:
        self._engine.close()

    def _run(self, pending: list[list[int]], steps: int) -> list[list[int]]:
        """So many steps; the last tokens drawn, which are to be evaluated next."""
        self._table.clear(steps_max=steps)
        for sequence, tokens in enumerate(pending):
            self._table.add(
                sequence=sequence,
                position=self._engine.length(sequence),
                pending=tokens,
                remaining=steps + 1,
                output_index=0,
                sampling=SamplingParameters(temperature=0.0),
                ends=frozenset(),
                history=(),
                prompt_length=len(PROMPT),
            )
        for _ in self._engine.run(self._table):
            continue
        last = self._table.drawn[self._table.steps_done - 1, :MEMBERS]
        return [[int(token)] for token in last]
