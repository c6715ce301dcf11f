"""The time between steps as a member of a full batch sees it: through queue, device, lane and outlet."""

from __future__ import annotations

import time

import msgspec
import trio

from tripower.actors.dialogue import GenerationRequest, TokenChunk
from tripower.actors.generation import Generation
from tripower.actors.runtime import Runtime
from tripower.runtime.kernel import Overloaded, Unavailable

STEPS_BEFORE = 24
"""Steps that pass before the clock starts: by then every member has its seat."""
LONGER = 4
"""How many times more tokens a member asks for than are timed, so that no seat is free before the end."""
REFUSED_CALLERS = 4
MILLI = 1e3


async def observed_milliseconds(
    runtime: Runtime, request: GenerationRequest, *, members: int, steps: int, saturated: bool
) -> float:
    """Milliseconds a step while `members` requests like this one take every seat; nobody may wait.

    `saturated`: four tasks ask without a pause for a place that there is not. At the end every seat is free again.
    """
    request = msgspec.structs.replace(request, max_tokens=tokens_wanted(steps))
    async with trio.open_nursery() as nursery:
        for _ in range(members - 1):
            await nursery.start(_hold_a_seat, runtime, request)
        async with runtime.generate(request) as observed:
            if saturated:
                for _ in range(REFUSED_CALLERS):
                    nursery.start_soon(_be_refused, runtime, request)
            took = await _time_steps(observed, steps)
            nursery.cancel_scope.cancel()
    return took / steps * MILLI


def tokens_wanted(steps: int) -> int:
    """What each member asks for, where so many steps are timed."""
    return LONGER * (STEPS_BEFORE + steps)


async def _hold_a_seat(runtime: Runtime, request: GenerationRequest, task_status: trio.TaskStatus[None]) -> None:
    """Take part in the batch for longer than anybody looks."""
    async with runtime.generate(request) as generation:
        task_status.started()
        while not generation.ended:
            await generation.receive()


async def _be_refused(runtime: Runtime, request: GenerationRequest) -> None:
    """Ask without end, and without a pause, for a place that there is not."""
    short = msgspec.structs.replace(request, max_tokens=1)
    while True:
        try:
            async with runtime.generate(short):
                raise AssertionError("every seat was taken")
        except Overloaded:
            continue


async def _time_steps(generation: Generation, steps: int) -> float:
    """Seconds from the step that ends the warm-up to the one that is `steps` further."""
    tokens, began = 0, 0.0
    first, last = 0, 0
    while not generation.ended:
        for event in await generation.receive():
            tokens += isinstance(event, TokenChunk)
        if not began and tokens >= STEPS_BEFORE:
            began, first = time.perf_counter(), tokens
        if tokens >= first + steps and began:
            break
    last = tokens
    if last == first:
        raise Unavailable("the steps are too short to be seen one after the other")
    return (time.perf_counter() - began) * steps / (last - first)
