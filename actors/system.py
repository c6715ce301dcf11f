"""The system is the root supervisor of one runtime: it starts the device and the registry, and ends with them.

A device or a registry that crashes is restarted within its budget; beyond that the system gives up, and the runtime with it, rather
than serve from a broken state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from tripower.actors.device import DeviceActor
from tripower.actors.model_registry import ModelRegistryActor
from tripower.runtime.kernel import Actor, Ask, Ref, Strategy, Supervision


@attrs.frozen
class Parts:
    """The actors that a runtime talks to."""

    device: Ref[Any]
    registry: Ref[Any]


class LocateParts(Ask[Parts], frozen=True):
    """Where the device and the registry are."""


Command = LocateParts

ROOT_SUPERVISION = Supervision(strategy=Strategy.ESCALATE)


class SystemActor(Actor[Command]):
    """See the module. `make_device` and `make_registry` build fresh instances, also after a crash. `watch` runs beside them."""

    end_seconds = 60.0

    def __init__(
        self,
        make_device: Callable[[], DeviceActor],
        make_registry: Callable[[Ref[Any]], ModelRegistryActor],
        *,
        supervision: Supervision | None = None,
        device: str = "cpu0",
        watch: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._device = device
        self._make_device = make_device
        self._make_registry = make_registry
        self._supervision = supervision
        self._watch = watch
        self._started: list[Ref[Any]] = []

    async def on_start(self) -> None:
        device = self.spawn(self._make_device, name=f"device:{self._device}", supervision=self._supervision)
        self._started.append(device)
        registry = self.spawn(lambda: self._make_registry(device), name="registry", supervision=self._supervision)
        self._started.append(registry)
        self._parts = Parts(device, registry)
        if self._watch is not None:
            self.start_soon(self._watch, name="watchdog")

    async def on_message(self, message: Command) -> Parts:
        return self._parts

    async def on_end(self) -> None:
        """Users before what they use: the registry unloads through the device."""
        for part in reversed(self._started):
            await part.stop()
