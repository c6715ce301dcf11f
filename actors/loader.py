"""Getting one model into memory and out again, whoever runs it: an engine on a device's lane, or a delegate.

Nothing is decided here and nothing is remembered; the registry does both.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import trio

from tripower.actors.device import LoadEngine, LoadOrder, UnloadEngine
from tripower.actors.models import LoadLimits, ModelSource
from tripower.runtime.engine import (
    Backend,
    DelegateBackend,
    LoadedDelegate,
    LoadedModel,
    LoadSpecification,
    Progress,
    StepEngine,
)
from tripower.runtime.engine.encoder import EncoderEngine, LaneModel
from tripower.runtime.kernel import DeviceFailed, ModelRefused, NotFound, Ref, TripowerError, Unavailable

log = logging.getLogger("tripower.registry")

DEVICE_RETRY_SECONDS = 0.05
"""Between two tries to unload while the device restarts."""


class Loader:
    """Loads and frees models on one device, within the limits of one runtime."""

    def __init__(self, device: Ref[Any], backends: Mapping[str, Backend | DelegateBackend], limits: LoadLimits) -> None:
        self._device = device
        self._backends = backends
        self._limits = limits

    async def load(self, source: ModelSource, listeners: Sequence[Progress]) -> LaneModel | LoadedDelegate:
        """Blocks until the model can be used; whoever is in `listeners` at that time hears of progress, on the lane's thread.

        Raises a `TripowerError`; nothing is left behind then, nor when it is cancelled.
        """
        backend = self._backends.get(source.backend)
        if backend is None:
            raise NotFound(f"there is no backend {source.backend!r}", code="backend_not_found")
        specification = LoadSpecification(
            name=source.name,
            source=source.source,
            context=self._limits.context,
            sequences_max=self._limits.queue.members_max,
            state_bytes_max=self._limits.state_bytes_max,
            threads=self._limits.threads,
            prefill_chunk=self._limits.queue.rows_max,
            draft=self._limits.draft,
        )

        def progress(stage: str, fraction: float) -> None:
            for listener in list(listeners):
                try:
                    listener(stage, fraction)
                except Exception:  # one listener's fault must not cost the others their load
                    log.exception("a listener to the load of %s failed", source.name)

        if isinstance(backend, DelegateBackend):
            if specification.draft is not None:
                raise _no_draft(source)
            return await _open_delegate(backend, specification, progress)
        loaded: LaneModel = await self._device.ask(LoadEngine(specification), live=LoadOrder(backend, progress))
        if specification.draft is not None and isinstance(loaded, LoadedModel) and loaded.draft is None:
            self.drop(source.name, loaded)
            raise _no_draft(source)
        return loaded

    async def free(self, name: str, loaded: LaneModel | LoadedDelegate) -> TripowerError | None:
        """Free a model. Blocks; what went wrong is returned, since it must not keep the other models loaded."""
        if isinstance(loaded, LaneModel):
            return await self._free_engine(name, loaded.engine)
        try:
            await loaded.engine.close()
        except Exception as error:  # the one seam where a delegate's exceptions become ours
            log.exception("%s could not be closed", name)
            return DeviceFailed(f"{name} could not be closed: {type(error).__name__}", code="unload_failed")
        return None

    async def _free_engine(self, name: str, engine: StepEngine | EncoderEngine) -> TripowerError | None:
        """Free a model on its lane. A device that crashed still ends its steps and comes back: nothing is freed under it."""
        while not self._device.ended:
            try:
                await self._device.ask(UnloadEngine(name), live=engine)
                return None
            except Unavailable:
                await trio.sleep(DEVICE_RETRY_SECONDS)
            except TripowerError as error:
                log.error("%s could not be unloaded: %s", name, error)
                return error
        engine.close()  # the device has gone for good, and its lane with it: nobody else can use the engine
        return None

    def drop(self, name: str, loaded: LaneModel | LoadedDelegate) -> None:
        """Free a model that nobody took. Synchronous. A delegate that has not streamed holds nothing."""
        if isinstance(loaded, LaneModel) and not self._device.control(UnloadEngine(name), live=loaded.engine):
            loaded.engine.close()


def _no_draft(source: ModelSource) -> ModelRefused:
    return ModelRefused(
        f"no model can guess for {source.name} on {source.backend}: set speculation.mode to auto or off, or run it on picolm",
        code="no_draft_here",
        param="speculation.draft_model",
    )


async def _open_delegate(backend: DelegateBackend, specification: LoadSpecification, progress: Progress) -> LoadedDelegate:
    """A delegate is no work for a lane: it has threads of its own, or is elsewhere."""
    try:
        return await backend.open_delegate(specification, progress)
    except TripowerError:
        raise
    except Exception as error:  # the one seam where a delegate's exceptions become ours
        log.exception("the backend %s failed to load %s", backend.name, specification.name)
        raise ModelRefused(f"the backend {backend.name} failed: {type(error).__name__}") from error
