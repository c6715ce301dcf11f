"""What the flight recorder costs: asks and tokens a second, recorded and not, in turn.

The kernel's list of actors is always there, so it is on in both; a task reads it a hundred times a second.
"""

from __future__ import annotations

import time
from functools import partial

import trio

from tripower.actors.dialogue import GenerationRequest
from tripower.actors.runtime import open_actors, toy_plan
from tripower.bench.overhead.kernel import INTROSPECTION_SECONDS, MICRO, REQUEST_SECONDS, WARM_UP, Echo, Ping
from tripower.bench.overhead.observed import observed_milliseconds
from tripower.bench.overhead.step import MEMBERS, STEP_MICROSECONDS, STEPS_PER_JOB
from tripower.bench.paired import Progress, Rounds, alternate, alternate_async, summarise
from tripower.bench.schema import Cell, Target, paired_cell
from tripower.runtime.introspection.recorder import Recorder
from tripower.runtime.kernel import ActorSystem, open_actor_system

TOKENS = Target("ratio", ">=", 0.98)
ASK = Target("ratio", "<=", 1.05)
MILLI = 1e3
ASKS = 1000
"""Of a block."""


def recording_cells(*, rounds: int, asks: int, steps: int, progress: Progress) -> list[Cell]:
    """`asks` times as many rounds of asks, and `steps` of a full batch. Blocks for minutes."""
    measured = trio.run(_measure_asks, rounds * asks, progress)
    cells = [
        paired_cell("ask, recorded", summarise(measured), unit="µs", target=ASK, note="peer: the same without the recorder")
    ]
    note = f"{MEMBERS} members, steps of {STEP_MICROSECONDS / 1000:g} ms; peer: the same without the recorder"
    for name, saturated in (("tokens, recorded", False), ("tokens, recorded, loop saturated", True)):
        tokens = alternate(
            partial(trio.run, _generate, steps, True, saturated),
            partial(trio.run, _generate, steps, False, saturated),
            rounds=rounds,
            label=name,
            progress=progress,
        )
        cells.append(paired_cell(name, summarise(tokens), unit="tokens/s", target=TOKENS, note=note))
    return cells


async def _measure_asks(rounds: int, progress: Progress) -> Rounds[float]:
    """Microseconds a round trip. Blocks are so short that the machine is the same in all of a round, and one system is asked in all."""
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        recorder = Recorder()
        ref = system.spawn(Echo, name="echo")
        nursery.start_soon(_read_list, system)

        async def block(recording: Recorder | None) -> float:
            system.recording = recording
            deadline = trio.current_time() + REQUEST_SECONDS
            with trio.CancelScope(deadline=deadline):
                began = time.perf_counter()
                for number in range(ASKS):
                    await ref.ask(Ping(number), deadline=deadline)
                return (time.perf_counter() - began) / ASKS * MICRO
            raise TimeoutError

        for _ in range(WARM_UP // ASKS + 1):
            await block(recorder)
        measured = await alternate_async(
            partial(block, recorder), partial(block, None), rounds=rounds, label="recorded asks", progress=progress
        )
        nursery.cancel_scope.cancel()
    return measured


async def _generate(steps: int, recorded: bool, saturated: bool) -> float:
    """Tokens a second of a full batch."""
    plan = toy_plan(members_max=MEMBERS, waiting_max=0, steps_per_job=STEPS_PER_JOB, source=f"toy:{STEP_MICROSECONDS}")
    request = GenerationRequest(model="toy", prompt="a", ignore_eos=True)
    async with open_actors(plan) as runtime, trio.open_nursery() as nursery:
        if recorded:
            runtime.system.recording = Recorder()
        nursery.start_soon(_read_list, runtime.system)
        await runtime.load("toy")
        took = await observed_milliseconds(runtime, request, members=MEMBERS, steps=steps, saturated=saturated)
        nursery.cancel_scope.cancel()
    return MEMBERS / took * MILLI


async def _read_list(system: ActorSystem) -> None:
    while True:
        system.statistics()
        await trio.sleep(INTROSPECTION_SECONDS)
