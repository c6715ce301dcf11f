"""The registry owns what exists and what is loaded: one load at a time for each model, whoever asks.

Its entries go `unloaded` → `loading` → `loaded`, or back to `unloaded` with the error of the last try. Everybody who waits for one
load gets its result; who gives up does not disturb the rest, and when the last has given up the load is stopped.

On request they go `loaded` → `unloading` → `unloaded`: the queue takes no more, its requests come to their ends, then the memory is freed.
Who asks for the model meanwhile gets the next load. A load that is on its way is stopped instead.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, assert_never

import attrs
import trio

from tripower.actors.delegate_queue import DelegateQueueActor
from tripower.actors.device import LoadEngine, LoadOrder, UnloadEngine
from tripower.actors.embedding_queue import EmbeddingQueueActor
from tripower.actors.model_queue import ModelQueueActor
from tripower.actors.models import (
    EngineReport,
    EnsureLoaded,
    FindModel,
    ListModels,
    LoadEnded,
    LoadLimits,
    ModelCard,
    ModelList,
    ModelSource,
    ModelUnloaded,
    ReadyModel,
    RegistryStatistics,
    UnloadEnded,
    UnloadModel,
)
from tripower.actors.queueing import DrainQueue
from tripower.runtime.engine import (
    Backend,
    DelegateBackend,
    LoadedDelegate,
    LoadedModel,
    LoadSpecification,
    Progress,
    StepEngine,
)
from tripower.runtime.engine.encoder import EncoderEngine, LaneModel, LoadedEncoder
from tripower.runtime.kernel import (
    LATER,
    Actor,
    ActorGone,
    DeviceFailed,
    Envelope,
    ModelRefused,
    NotFound,
    Ref,
    TripowerError,
    Unavailable,
    run_blocking,
)

log = logging.getLogger("tripower.registry")

DEVICE_RETRY_SECONDS = 0.05
"""Between two tries to unload while the device restarts."""

Command = EnsureLoaded | UnloadModel | ListModels | LoadEnded | UnloadEnded


@attrs.define(eq=False)
class _Entry:
    source: ModelSource
    created: int
    state: str = "unloaded"
    error: str = ""
    waiters: list[Envelope] = attrs.Factory(list)
    progress: list[Progress] = attrs.Factory(list)
    scope: trio.CancelScope | None = None
    unloaders: list[Envelope] = attrs.Factory(list)
    """Who wants it unloaded, and waits."""
    loaded: LaneModel | LoadedDelegate | None = None
    queue: Ref[Any] | None = None
    tickets: Iterator[int] = attrs.Factory(itertools.count)
    sequences: Iterator[int] = attrs.Factory(itertools.count)


class ModelRegistryActor(Actor[Command]):
    """See the module."""

    end_seconds = 30.0

    def __init__(
        self,
        device: Ref[Any],
        backends: Mapping[str, Backend | DelegateBackend],
        sources: tuple[ModelSource, ...],
        limits: LoadLimits,
        find_model: FindModel | None = None,
    ) -> None:
        self._device = device
        self._backends = backends
        self._limits = limits
        self._find_model = find_model
        now = int(time.time())
        self._entries = {source.name: _Entry(source, now) for source in sources}
        self._loads_ok = self._loads_failed = 0
        self._load_seconds = 0.0

    async def on_message(self, message: Command) -> Any:
        match message:
            case EnsureLoaded():
                return await self._ensure_loaded(message)
            case UnloadModel():
                return self._begin_unload(message)
            case ListModels():
                return ModelList(tuple(self._card(entry) for entry in self._entries.values()))
            case LoadEnded():
                return self._end_load(message)
            case UnloadEnded():
                return self._end_unload(message)
        assert_never(message)

    async def on_end(self) -> None:
        for entry in self._entries.values():
            if entry.queue is not None:
                await entry.queue.stop()
            if entry.loaded is not None:
                await self._unload(entry.source.name, entry.loaded)

    async def _unload(self, name: str, loaded: LaneModel | LoadedDelegate) -> TripowerError | None:
        """Free a model, whoever runs it; what went wrong is returned, since it must not keep the other models loaded."""
        if isinstance(loaded, LaneModel):
            return await self._unload_engine(name, loaded.engine)
        try:
            await loaded.engine.close()
        except Exception as error:  # the one seam where a delegate's exceptions become ours
            log.exception("%s could not be closed", name)
            return DeviceFailed(f"{name} could not be closed: {type(error).__name__}", code="unload_failed")
        return None

    async def _unload_engine(self, name: str, engine: StepEngine | EncoderEngine) -> TripowerError | None:
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

    async def _entry(self, name: str) -> _Entry:
        """What is known of a model. The first time a name is asked for, its file's header is read, on a worker thread."""
        entry = self._entries.get(name)
        if entry is None:
            try:
                source = await self._look_for(name)
            except TripowerError:
                raise
            except Exception as error:  # a store that cannot be read must not cost the loaded models their registry
                log.exception("looking for the model %r failed", name)
                raise Unavailable(f"looking for the model {name!r} failed", code="model_lookup_failed") from error
            if source is None:
                raise self._not_found(name)
            entry = self._entries[name] = _Entry(source, int(time.time()))
        return entry

    async def _look_for(self, name: str) -> ModelSource | None:
        find = self._find_model
        return None if find is None else await run_blocking(lambda: find(name))

    def _not_found(self, name: str) -> NotFound:
        known = ", ".join(sorted(self._entries)) or "none"
        return NotFound(f"there is no model {name[:200]!r}; known: {known}", param="model")

    async def _ensure_loaded(self, message: EnsureLoaded) -> Any:
        entry = await self._entry(message.name)
        if entry.state == "loaded" and entry.loaded is not None and entry.queue is not None:
            return ReadyModel(message.name, entry.queue, entry.loaded)
        envelope = self.envelope
        entry.waiters.append(envelope)
        if envelope.live is not None:
            entry.progress.append(envelope.live)
        envelope.on_abandon = lambda: self._lose_interest(entry, envelope)
        if entry.state == "unloaded":
            self._begin_load(entry)
        return LATER

    def _begin_load(self, entry: _Entry) -> None:
        entry.state = "loading"
        entry.scope = trio.CancelScope()
        self.start_soon(self._load, entry, entry.scope, name=f"load {entry.source.name}")

    def _lose_interest(self, entry: _Entry, envelope: Envelope) -> None:
        """Who gave up stops the load if nobody else waits. Who ran out of time does not: a second try then finds it further."""
        if envelope in entry.waiters:
            entry.waiters.remove(envelope)
        if envelope.live in entry.progress:
            entry.progress.remove(envelope.live)
        if not entry.waiters and entry.scope is not None and envelope.deadline > trio.current_time():
            entry.scope.cancel(reason="nobody waits for this load any more")

    async def _load(self, entry: _Entry, scope: trio.CancelScope) -> None:
        """One load, in a task of its own, since a handler must not wait that long."""
        source = entry.source
        specification = LoadSpecification(
            name=source.name,
            source=source.source,
            context=self._limits.context,
            sequences_max=self._limits.queue.members_max,
            state_bytes_max=self._limits.state_bytes_max,
            threads=self._limits.threads,
            prefill_chunk=self._limits.queue.rows_max,
        )

        def progress(stage: str, fraction: float) -> None:
            for listener in list(entry.progress):
                try:
                    listener(stage, fraction)
                except Exception:  # one listener's fault must not cost the others their load
                    log.exception("a listener to the load of %s failed", source.name)

        began = trio.current_time()
        outcome: LaneModel | LoadedDelegate | TripowerError = TripowerError(
            "the load was given up", code="load_stopped", status=503
        )
        with scope:
            try:
                backend = self._backends.get(source.backend)
                if backend is None:
                    raise NotFound(f"there is no backend {source.backend!r}", code="backend_not_found")
                if isinstance(backend, DelegateBackend):
                    outcome = await self._open_delegate(backend, specification, progress)
                else:
                    outcome = await self._device.ask(LoadEngine(specification), live=LoadOrder(backend, progress))
                self._load_seconds = trio.current_time() - began
            except TripowerError as error:
                outcome = error
        device, loaded = self._device, outcome

        def give_back() -> None:
            """The registry ended in between: the model is nobody's. A delegate that has not streamed holds nothing."""
            if isinstance(loaded, LaneModel) and not device.control(UnloadEngine(source.name), live=loaded.engine):
                loaded.engine.close()

        if not self.ref.control(LoadEnded(source.name), live=outcome, on_dropped=give_back):
            give_back()

    async def _open_delegate(
        self, backend: DelegateBackend, specification: LoadSpecification, progress: Progress
    ) -> LoadedDelegate:
        """A delegate is no work for a lane: it has threads of its own, or is elsewhere."""
        try:
            return await backend.open_delegate(specification, progress)
        except TripowerError:
            raise
        except Exception as error:  # the one seam where a delegate's exceptions become ours
            log.exception("the backend %s failed to load %s", backend.name, specification.name)
            raise ModelRefused(f"the backend {backend.name} failed: {type(error).__name__}") from error

    def _end_load(self, message: LoadEnded) -> None:
        entry, outcome = self._entries[message.name], self.envelope.live
        given_up = entry.scope is not None and entry.scope.cancel_called
        if isinstance(outcome, TripowerError):
            self._answer_unloaders(entry)
            if given_up and entry.waiters:
                self._begin_load(entry)  # for those who came after the last one had given up
                return
        elif entry.unloaders:  # it was complete before the lane heard so; who came since then waits for the next load
            entry.scope, entry.loaded, entry.queue = None, outcome, self._spawn_queue(entry, outcome)
            self._start_unload(entry)
            return
        waiters, entry.waiters = entry.waiters, []
        entry.scope = None
        entry.progress.clear()
        if isinstance(outcome, TripowerError):
            self._loads_failed += 1
            entry.state, entry.error = "unloaded", outcome.message
            for envelope in waiters:
                envelope.refuse(outcome)
            return
        self._loads_ok += 1
        entry.state, entry.error, entry.loaded = "loaded", "", outcome
        entry.queue = self._spawn_queue(entry, outcome)
        for envelope in waiters:
            envelope.answer(ReadyModel(message.name, entry.queue, outcome))

    def _begin_unload(self, message: UnloadModel) -> Any:
        entry = self._entries.get(message.name)
        if entry is None:
            raise self._not_found(message.name)
        if entry.state == "unloaded":
            return ModelUnloaded(message.name)
        entry.unloaders.append(self.envelope)
        if entry.state == "loading" and entry.scope is not None:
            stopped = Unavailable(f"{message.name} was unloaded while it was loading", code="load_stopped")
            for envelope in entry.waiters:
                envelope.refuse(stopped)
            entry.waiters.clear()
            entry.scope.cancel(reason="the model is not wanted any more")
        elif entry.state == "loaded":
            self._start_unload(entry)
        return LATER

    def _start_unload(self, entry: _Entry) -> None:
        entry.state = "unloading"
        self.start_soon(self._unload_used, entry, name=f"unload {entry.source.name}")

    async def _unload_used(self, entry: _Entry) -> None:
        """One unload, in a task of its own. Whoever is in the queue is waited for."""
        name, queue, loaded = entry.source.name, entry.queue, entry.loaded
        assert queue is not None, "a loaded model has a queue"
        assert loaded is not None, "a loaded model is there"
        with suppress(ActorGone):  # then nobody is left in it either
            await queue.ask(DrainQueue())
        await queue.stop()
        error = await self._unload(name, loaded)
        self.ref.control(UnloadEnded(name), live=error)

    def _end_unload(self, message: UnloadEnded) -> None:
        entry, error = self._entries[message.name], self.envelope.live
        entry.state, entry.loaded, entry.queue = "unloaded", None, None
        entry.error = error.message if error else ""
        self._answer_unloaders(entry, error)
        if entry.waiters:
            self._begin_load(entry)

    def _answer_unloaders(self, entry: _Entry, error: TripowerError | None = None) -> None:
        unloaders, entry.unloaders = entry.unloaders, []
        for envelope in unloaders:
            if error is None:
                envelope.answer(ModelUnloaded(entry.source.name))
            else:
                envelope.refuse(error)

    def _spawn_queue(self, entry: _Entry, loaded: LaneModel | LoadedDelegate) -> Ref[Any]:
        name, device, limits = entry.source.name, self._device, self._limits.queue
        if isinstance(loaded, LoadedModel):
            return self.spawn(
                lambda: ModelQueueActor(name, loaded, device, limits, tickets=entry.tickets, sequences=entry.sequences),
                name=f"queue:{name}",
            )
        if isinstance(loaded, LoadedEncoder):
            return self.spawn(
                lambda: EmbeddingQueueActor(name, loaded, device, limits, tickets=entry.tickets), name=f"queue:{name}"
            )
        return self.spawn(lambda: DelegateQueueActor(name, loaded, limits, tickets=entry.tickets), name=f"queue:{name}")

    def _card(self, entry: _Entry) -> ModelCard:
        info = entry.loaded.engine.info if entry.loaded else None
        return ModelCard(
            name=entry.source.name,
            source=entry.source.source,
            state=entry.state,
            backend=entry.source.backend,
            created=entry.created,
            context=info.context_max if info else 0,
            parameters=info.parameters if info else 0,
            size_bytes=info.weight_bytes if info else 0,
            threads=info.threads if info else 0,
            error=entry.error,
        )

    def statistics(self) -> RegistryStatistics:
        states = [entry.state for entry in self._entries.values()]
        return RegistryStatistics(
            models=len(states),
            loaded=states.count("loaded"),
            loading=states.count("loading"),
            loads_ok=self._loads_ok,
            loads_failed=self._loads_failed,
            load_seconds=self._load_seconds,
            names=tuple((name, entry.state) for name, entry in self._entries.items()),
            engines=tuple(_report(name, entry.loaded) for name, entry in self._entries.items() if entry.loaded is not None),
        )


def _report(name: str, loaded: LaneModel | LoadedDelegate) -> EngineReport:
    info = loaded.engine.info
    return EngineReport(name, info.backend, info.kernels, info.determinism, info.certificate)
