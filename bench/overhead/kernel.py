"""What the actor kernel costs: asks and one-way messages beside bare Trio channels and Pykka.

Every block is a Trio run of its own. Introspection is on in all of ours: a task reads the kernel's statistics a hundred times a second,
ten times as often as any console would.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, assert_never

import trio

from tripower.bench.paired import Progress, alternate, summarise
from tripower.bench.schema import Cell, Target, paired_cell
from tripower.runtime.kernel import Actor, ActorSystem, Ask, Message, Ref, open_actor_system

INTROSPECTION_SECONDS = 0.01
REQUEST_SECONDS = 1000.0
CHANNEL_ROOM = 64
BURST = 16
WARM_UP = 500
MICRO = 1e6


class Pong(Message, frozen=True):
    number: int


class Ping(Ask[Pong], frozen=True):
    """Answered at once by `Pong` with the same number."""

    number: int


class Count(Message, frozen=True):
    """Counted; not answered."""


Command = Ping | Count


class Echo(Actor[Command]):
    """Does as little as an actor can."""

    inbox_max = CHANNEL_ROOM
    counted = 0

    async def on_message(self, message: Command) -> Pong | None:
        match message:
            case Ping():
                return Pong(message.number)
            case Count():
                self.counted += 1
                return None
        assert_never(message)


@asynccontextmanager
async def _echo() -> AsyncIterator[Ref[Command]]:
    """An actor under introspection, for the length of the block."""
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        ref = system.spawn(Echo, name="echo")
        nursery.start_soon(_introspect, system)
        yield ref
        nursery.cancel_scope.cancel()


async def _introspect(system: ActorSystem) -> None:
    while True:
        system.statistics()
        await trio.sleep(INTROSPECTION_SECONDS)


# Blocks. Each returns microseconds for a round trip, or messages a second.


async def ask_in_scope(count: int) -> float:
    """Asks with the deadline of the request that surrounds them."""
    async with _echo() as ref:
        deadline = trio.current_time() + REQUEST_SECONDS
        with trio.CancelScope(deadline=deadline):
            for number in range(WARM_UP):
                await ref.ask(Ping(number), deadline=deadline)
            began = time.perf_counter()
            for number in range(count):
                await ref.ask(Ping(number), deadline=deadline)
            took = time.perf_counter() - began
    return took / count * MICRO


async def ask_tighter(count: int) -> float:
    """Asks with a deadline of their own, each another and tighter than the request's."""
    async with _echo() as ref:
        deadline = trio.current_time() + REQUEST_SECONDS
        with trio.CancelScope(deadline=deadline):
            for number in range(WARM_UP):
                await ref.ask(Ping(number), deadline=deadline - 500)
            began = time.perf_counter()
            for number in range(count):
                await ref.ask(Ping(number), deadline=deadline - 500 + number * 1e-6)
            took = time.perf_counter() - began
    return took / count * MICRO


async def channel_pair(count: int) -> float:
    """The bare way to ask: two zero-capacity channels, awaited send and receive on both."""
    to_server, requests = trio.open_memory_channel[Ping](0)
    to_client, answers = trio.open_memory_channel[Pong](0)

    async def serve() -> None:
        async for request in requests:
            await to_client.send(Pong(request.number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        with trio.CancelScope(deadline=trio.current_time() + REQUEST_SECONDS):
            for number in range(WARM_UP):
                await to_server.send(Ping(number))
                await answers.receive()
            began = time.perf_counter()
            for number in range(count):
                await to_server.send(Ping(number))
                await answers.receive()
            took = time.perf_counter() - began
        to_server.close()
    return took / count * MICRO


def pykka_ask(count: int) -> float:
    """Asks of a Pykka actor, which is a thread."""
    import pykka

    class Echoing(pykka.ThreadingActor):
        def on_receive(self, message: Any) -> Any:
            return Pong(message.number)

    ref = Echoing.start()
    try:
        for number in range(WARM_UP):
            ref.ask(Ping(number))
        began = time.perf_counter()
        for number in range(count):
            ref.ask(Ping(number))
        return (time.perf_counter() - began) / count * MICRO
    finally:
        ref.stop()


async def tell_awaited(count: int) -> float:
    async with _echo() as ref:
        for _ in range(WARM_UP):
            await ref.tell(Count())
        await ref.ask(Ping(0))
        began = time.perf_counter()
        for _ in range(count):
            await ref.tell(Count())
        await ref.ask(Ping(0))  # behind all of them in the inbox: everything is handled now
        return count / (time.perf_counter() - began)


async def tell_in_bursts(count: int) -> float:
    """`tell_nowait`, with a checkpoint after each burst so that the actor can run."""
    async with _echo() as ref:
        await ref.ask(Ping(0))
        began = time.perf_counter()
        for _ in range(count // BURST):
            for _ in range(BURST):
                ref.tell_nowait(Count())
            await trio.lowlevel.checkpoint()
        await ref.ask(Ping(0))
        return count // BURST * BURST / (time.perf_counter() - began)


async def bounded_channel(count: int) -> float:
    """The bare way to tell: a bounded channel, awaited send."""
    send, receive = trio.open_memory_channel[Count](CHANNEL_ROOM)
    counted = 0

    async def consume() -> None:
        nonlocal counted
        async for _ in receive:
            counted += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        for _ in range(WARM_UP):
            await send.send(Count())
        began = time.perf_counter()
        for _ in range(count):
            await send.send(Count())
        send.close()
    return count / (time.perf_counter() - began)


def kernel_cells(*, rounds: int, count: int, progress: Progress) -> list[Cell]:
    """All cells of the kernel. `count` messages a block. Blocks."""

    def run(block: Callable[[int], Any]) -> Callable[[], float]:
        return lambda: float(trio.run(block, count))

    def cell(name: str, ours: Callable[[], float], peer: Callable[[], float], unit: str, target: Target, note: str) -> Cell:
        paired = summarise(alternate(ours, peer, rounds=rounds, label=name, progress=progress))
        return paired_cell(name, paired, unit=unit, target=target, note=note)

    pair = run(channel_pair)
    bounded = run(bounded_channel)
    cells = [
        cell("ask", run(ask_in_scope), pair, "µs", Target("ratio", "<=", 1.0), "peer: a pair of zero-capacity channels"),
        cell("ask, tighter deadline", run(ask_tighter), pair, "µs", Target("ratio", "<=", 1.5), "peer: the same pair"),
    ]
    if has_pykka():
        ask = run(ask_in_scope)
        cells.append(
            cell("ask, against Pykka", ask, lambda: pykka_ask(count), "µs", Target("ratio", "<", 1.0), "peer: ThreadingActor")
        )
    cells += [
        cell("tell", run(tell_awaited), bounded, "1/s", Target("ratio", ">=", 0.9), "peer: a channel of 64, awaited send"),
        cell(
            "tell_nowait", run(tell_in_bursts), bounded, "1/s", Target("ratio", ">=", 2.0), f"bursts of {BURST}; peer: the same"
        ),
    ]
    return cells


def has_pykka() -> bool:
    from importlib.util import find_spec

    return find_spec("pykka") is not None
