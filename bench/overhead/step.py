"""The engine-free share of a step: what the runtime adds to the time that the engine itself needs.

The engine is the toy with a native loop that sleeps through its steps, so its time is known and it takes no processor from anybody.
Ours is the time between the steps that a member of the batch sees, through queue, device, lane and outlet; the peer is the same
engine running tables of the same size on a bare thread. The loop is either idle beside that, or saturated by requests which are refused
because every seat is taken and nobody may wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import trio

from tripower.actors.dialogue import GenerationRequest
from tripower.actors.runtime import open_actors, toy_plan
from tripower.backends.toy import ToyEngine
from tripower.bench.overhead.observed import observed_milliseconds
from tripower.bench.paired import Progress, alternate, summarise
from tripower.bench.schema import Cell, Target, paired_cell
from tripower.runtime.configuration import SchedulerSettings
from tripower.runtime.engine import SamplingParameters, StepTable

MEMBERS = 8
STEP_MICROSECONDS = 8000
STEPS_PER_JOB = SchedulerSettings().steps_per_job
IDLE_MAX, SATURATED_MAX = 1.03, 1.05
"""How much longer a step may be than the engine alone needs."""
MILLI = 1e3


def engine_alone(steps: int) -> float:
    """Milliseconds a step of the bare engine on a thread of its own. Blocks."""
    took: list[float] = []
    thread = threading.Thread(target=lambda: took.append(_run_tables(steps)))
    thread.start()
    thread.join()
    return took[0]


def _run_tables(steps: int) -> float:
    engine = ToyEngine(native=True, step_microseconds=STEP_MICROSECONDS)
    table = StepTable(slots_max=MEMBERS, steps_max=STEPS_PER_JOB, rows_max=256)
    for sequence in range(MEMBERS):
        engine.open_sequence(sequence)
    took, done = 0.0, 0
    while done < steps:
        _fill(table, position=done)
        began = time.perf_counter()
        for _ in engine.run(table):
            pass
        took += time.perf_counter() - began
        done += table.steps_done
    return took / done * MILLI


def _fill(table: StepTable, *, position: int) -> None:
    table.clear(steps_max=STEPS_PER_JOB)
    for sequence in range(MEMBERS):
        table.add(
            sequence=sequence,
            position=position,
            pending=[97],
            remaining=STEPS_PER_JOB + 1,
            output_index=position,
            sampling=SamplingParameters(temperature=0.0),
            ends=frozenset(),
            history=(),
            prompt_length=1,
        )


def through_the_runtime(steps: int, *, saturated: bool) -> float:
    """Milliseconds a step as a member of a full batch sees it. Blocks."""
    return trio.run(_through_the_runtime, steps, saturated)


async def _through_the_runtime(steps: int, saturated: bool) -> float:
    plan = toy_plan(members_max=MEMBERS, waiting_max=0, steps_per_job=STEPS_PER_JOB, source=f"toy:{STEP_MICROSECONDS}")
    request = GenerationRequest(model="toy", prompt="a", ignore_eos=True)
    async with open_actors(plan) as runtime:
        await runtime.load("toy")
        return await observed_milliseconds(runtime, request, members=MEMBERS, steps=steps, saturated=saturated)


def step_cells(*, rounds: int, steps: int, progress: Progress) -> list[Cell]:
    """Both cells; `steps` a block. Blocks."""

    def cell(name: str, ours: Callable[[], float], limit: float) -> Cell:
        paired = summarise(alternate(ours, lambda: engine_alone(steps), rounds=rounds, label=name, progress=progress))
        note = f"{MEMBERS} members, {STEPS_PER_JOB} steps a job; peer: the engine alone on a thread"
        return paired_cell(name, paired, unit="ms", target=Target("ratio", "<=", limit), note=note)

    return [
        cell("step, loop idle", lambda: through_the_runtime(steps, saturated=False), IDLE_MAX),
        cell("step, loop saturated", lambda: through_the_runtime(steps, saturated=True), SATURATED_MAX),
    ]
