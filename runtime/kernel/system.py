"""Where actors live: the root nursery and the one list of who is there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from tripower.runtime.kernel.actor import Actor, Ref
from tripower.runtime.kernel.cell import Cell
from tripower.runtime.kernel.handoff import HandOff
from tripower.runtime.kernel.recording import Recording
from tripower.runtime.kernel.statistics import ActorStatistics
from tripower.runtime.kernel.supervision import Supervision


class ActorSystem:
    """All actors of one runtime. Nothing here is global: two systems in one process know nothing of each other."""

    def __init__(
        self, nursery: trio.Nursery, on_instance: Callable[[str, Actor[Any]], None] = lambda name, actor: None
    ) -> None:
        self._nursery = nursery
        self.on_instance = on_instance
        """Called with each new instance before it gets a message: where the simulation puts its faults."""
        self._cells: dict[str, Cell] = {}
        self._recording: Recording | None = None

    def spawn(self, factory: Callable[[], Actor[Any]], *, name: str, supervision: Supervision | None = None) -> Ref[Any]:
        """Start a root actor. Raises `ValueError` when the name is taken. Synchronous."""
        return self.place(factory, name=name, parent="", supervision=supervision, nursery=self._nursery)

    def place(
        self,
        factory: Callable[[], Actor[Any]],
        *,
        name: str,
        parent: str,
        supervision: Supervision | None,
        nursery: trio.Nursery,
    ) -> Ref[Any]:
        """Start an actor in its supervisor's nursery. Used through `spawn`."""
        if name in self._cells and self._cells[name].state != "failed":
            raise ValueError(f"an actor named {name} is already there")
        cell = Cell(factory, name=name, parent=parent, supervision=supervision or Supervision(), system=self)
        cell.recording = self._recording
        cell.prepare()
        nursery.start_soon(cell.run, name=f"actor:{name}")
        self._cells[name] = cell
        return Ref(cell)

    def close(self) -> None:
        """Cancel every actor. Synchronous."""
        self._nursery.cancel_scope.cancel(reason="the actor system was closed")

    def forget(self, cell: Cell) -> None:
        """An actor has ended. One that failed stays visible until its name is used again or the system ends."""
        if cell.state != "failed":
            self._cells.pop(cell.name, None)

    @property
    def recording(self) -> Recording | None:
        """What listens to the messages of all actors, if anything does. Setting it acts at once. Synchronous."""
        return self._recording

    @recording.setter
    def recording(self, recording: Recording | None) -> None:
        self._recording = recording
        for cell in self._cells.values():
            cell.recording = recording

    def find(self, name: str) -> Ref[Any] | None:
        """The address of an actor by name, or None."""
        cell = self._cells.get(name)
        return Ref(cell) if cell else None

    def cells(self) -> list[Cell]:
        """Everyone's place, parents before children: for introspection, which looks and does not touch. Synchronous."""
        return list(self._cells.values())

    def statistics(self, *, details: bool = True) -> list[ActorStatistics]:
        """Everyone who is there, parents before children. Synchronous; costs a few microseconds an actor, and what its `details` do."""
        return [cell.statistics(details=details) for cell in self._cells.values()]


@asynccontextmanager
async def open_actor_system(
    on_instance: Callable[[str, Actor[Any]], None] = lambda name, actor: None,
) -> AsyncIterator[ActorSystem]:
    """A system for the length of the block; leaving it cancels every actor and waits for their `on_end`.

    A cancellation from outside reaches the block only, not the actors: whoever opened the system can still end them in order.
    An actor that escalates at the root ends the block with `ActorFailed` in an exception group.
    """
    async with trio.open_nursery() as nursery:
        opened: HandOff[ActorSystem] = HandOff()
        nursery.start_soon(_host, on_instance, opened)
        with trio.CancelScope(shield=True):  # one turn
            system = await opened.take()
        try:
            yield system
        finally:
            system.close()


async def _host(on_instance: Callable[[str, Actor[Any]], None], opened: HandOff[ActorSystem]) -> None:
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            opened.give(ActorSystem(nursery, on_instance))
            await trio.sleep_forever()
