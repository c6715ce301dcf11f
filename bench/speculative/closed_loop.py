"""So many questions at a time, the next one whenever one is answered: as people who wait for their answers ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

T = TypeVar("T")


async def run_closed_loop(count: int, at_once: int, one: Callable[[int], Awaitable[T]]) -> tuple[T, ...]:
    """What `one(0)`, `one(1)`, … return, in this order, at most `at_once` of them at a time. Blocks until all have."""
    found: dict[int, T] = {}
    waiting = iter(range(count))

    async def work() -> None:
        for place in waiting:
            found[place] = await one(place)

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(work)
    return tuple(found[place] for place in range(count))
