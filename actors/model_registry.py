"""The registry owns what exists and what is loaded: one load at a time for each model, whoever asks.

Its entries go `unloaded` → `loading` → `loaded`, or back to `unloaded` with the error of the last try. Everybody who waits for one
load gets its result; who gives up does not disturb the rest, and when the last has given up the load is stopped.

On request they go `loaded` → `unloading` → `unloaded`: the queue takes no more, its requests come to their ends, then the memory is freed.
Who asks for the model meanwhile gets the next load. A load that is on its way is stopped instead.

They go the same way unasked when they have been idle for long enough, or when another model needs their place: see `residency`. A model
for which there is no place yet is `waiting`.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, assert_never

import attrs
import trio

from tripower.actors.delegate_queue import DelegateQueueActor
from tripower.actors.embedding_queue import EmbeddingQueueActor
from tripower.actors.loader import Loader
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
    ReviewResidency,
    Standing,
    UnloadEnded,
    UnloadModel,
)
from tripower.actors.queueing import DrainQueue, QueueStatistics
from tripower.actors.residency import Use
from tripower.runtime.engine import (
    Backend,
    DelegateBackend,
    LoadedDelegate,
    LoadedModel,
    Progress,
)
from tripower.runtime.engine.encoder import LaneModel, LoadedEncoder
from tripower.runtime.kernel import (
    LATER,
    Actor,
    ActorGone,
    Envelope,
    NotFound,
    Ref,
    TripowerError,
    Unavailable,
    run_blocking,
)

log = logging.getLogger("tripower.registry")


FRESH_SECONDS = 1.0
"""A model that was loaded for somebody does not make room before its first request has come, or has had so long to come."""
EXPIRY_SECONDS_MIN = 0.01
"""Between two looks at a model that should have gone by now."""

Command = EnsureLoaded | UnloadModel | ListModels | ReviewResidency | LoadEnded | UnloadEnded


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
    standing: Standing = attrs.Factory(Standing)
    wanted: int = 0
    """Turn of the longest waiting among all that wait."""
    loaded_at: float = 0.0
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
        self._loader = Loader(device, backends, limits)
        self._limits = limits
        self._find_model = find_model
        now = int(time.time())
        self._entries = {source.name: _Entry(source, now) for source in sources}
        self._loads_ok = self._loads_failed = 0
        self._load_seconds = 0.0
        self._turns = itertools.count()

    async def on_message(self, message: Command) -> Any:
        match message:
            case EnsureLoaded():
                return await self._ensure_loaded(message)
            case UnloadModel():
                return self._begin_unload(message)
            case ListModels():
                return ModelList(tuple(self._card(entry) for entry in self._entries.values()))
            case ReviewResidency():
                return self._review()
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
                await self._loader.free(entry.source.name, entry.loaded)

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
            return ReadyModel(message.name, entry.queue, entry.loaded, entry.standing, self._limits.queue.speculation)
        envelope = self.envelope
        if not entry.waiters:
            entry.wanted = next(self._turns)
        entry.waiters.append(envelope)
        if envelope.live is not None:
            entry.progress.append(envelope.live)
        envelope.on_abandon = lambda: self._lose_interest(entry, envelope)
        if entry.state == "unloaded":
            entry.state = "waiting"
            self.ref.control(ReviewResidency())
        return LATER

    # Who is in memory.

    def _fill_places(self) -> None:
        """Load whoever waits and has a place; let somebody go for the others, one at a time."""
        waiting = [entry for entry in self._entries.values() if entry.state == "waiting"]
        for entry in sorted(waiting, key=lambda entry: entry.wanted):
            resident = [each.state for each in self._entries.values() if each.state in ("loading", "loaded", "unloading")]
            if not self._limits.residency.full(len(resident)):
                self._begin_load(entry)
            elif "unloading" in resident or not self._make_room("loading" in resident, entry):
                return

    def _make_room(self, others_load: bool, entry: _Entry) -> bool:
        """Let one loaded model go. False when somebody has to be waited for; who waits for a place that never comes is refused."""
        uses = {each.source.name: self._use(each) for each in self._entries.values() if each.queue}
        name = self._limits.residency.victim(uses)
        if name is not None:
            self._start_unload(self._entries[name])
        elif not others_load and not any(use.fresh and not use.pinned for use in uses.values()):
            places = self._limits.residency.models_max
            self._refuse_waiters(
                entry,
                Unavailable(
                    f"all {places} places are taken by models that stay loaded: unload one, or raise engine.models_max",
                    code="model_slots_busy",
                ),
            )
            return True
        return False

    def _refuse_waiters(self, entry: _Entry, error: TripowerError) -> None:
        """Nothing is loaded for those who wait."""
        entry.state = "unloaded"
        waiters, entry.waiters = entry.waiters, []
        entry.progress.clear()
        for envelope in waiters:
            envelope.refuse(error)

    def _use(self, entry: _Entry) -> Use:
        figures = entry.queue.details if entry.queue is not None else None
        fresh = trio.current_time() < entry.loaded_at + FRESH_SECONDS
        if not isinstance(figures, QueueStatistics):  # it starts, or starts again
            return Use(entry.source.pinned, True, entry.loaded_at, fresh)
        fresh = fresh and not figures.arrivals
        return Use(entry.source.pinned, figures.live > 0, max(figures.ended_at, entry.loaded_at), fresh)

    async def _keep(self, entry: _Entry, queue: Ref[Any]) -> None:
        """Ask for the model's end when it has been idle for long enough. In a task of its own, as long as it is loaded."""
        while entry.queue is queue and entry.state == "loaded":
            now = trio.current_time()
            due = self._limits.residency.due(self._use(entry), now)
            await trio.sleep_until(max(due, now + EXPIRY_SECONDS_MIN))
            self.ref.control(ReviewResidency())

    def _review(self) -> None:
        now = trio.current_time()
        for name, entry in self._entries.items():
            if entry.state == "loaded" and self._limits.residency.expired(self._use(entry), now):
                log.info("%s has been idle for %g s: unloading it", name, self._limits.residency.keep_alive_seconds)
                self._start_unload(entry)
        self._fill_places()

    async def _look_again(self) -> None:
        """A fresh model is not fresh any more: whoever waits for its place may have it."""
        await trio.sleep(FRESH_SECONDS)
        self.ref.control(ReviewResidency())

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
        if entry.waiters:
            return
        if entry.state == "waiting":
            entry.state = "unloaded"
        elif entry.scope is not None and envelope.deadline > trio.current_time():
            entry.scope.cancel(reason="nobody waits for this load any more")

    async def _load(self, entry: _Entry, scope: trio.CancelScope) -> None:
        """One load, in a task of its own, since a handler must not wait that long."""
        name, loader = entry.source.name, self._loader
        began = trio.current_time()
        outcome: LaneModel | LoadedDelegate | TripowerError = TripowerError(
            "the load was given up", code="load_stopped", status=503
        )
        with scope:
            try:
                outcome = await loader.load(entry.source, entry.progress)
                self._load_seconds = trio.current_time() - began
            except TripowerError as error:
                outcome = error
        loaded = outcome

        def give_back() -> None:
            """The registry ended in between: the model is nobody's."""
            if not isinstance(loaded, TripowerError):
                loader.drop(name, loaded)

        if not self.ref.control(LoadEnded(name), live=outcome, on_dropped=give_back):
            give_back()

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
            self._fill_places()
            return
        self._loads_ok += 1
        entry.state, entry.error, entry.loaded = "loaded", "", outcome
        entry.loaded_at, entry.standing = trio.current_time(), Standing()
        entry.queue = self._spawn_queue(entry, outcome)
        for envelope in waiters:
            envelope.answer(ReadyModel(message.name, entry.queue, outcome, entry.standing, self._limits.queue.speculation))
        if not entry.source.pinned and self._limits.residency.keep_alive_seconds < math.inf:
            self.start_soon(self._keep, entry, entry.queue, name=f"keep {message.name}")
        if self._limits.residency.models_max and not entry.source.pinned:
            self.start_soon(self._look_again, name=f"fresh {message.name}")
        self._fill_places()

    def _begin_unload(self, message: UnloadModel) -> Any:
        entry = self._entries.get(message.name)
        if entry is None:
            raise self._not_found(message.name)
        if entry.state == "waiting":
            self._refuse_waiters(entry, Unavailable(f"{message.name} was unloaded before it was loaded", code="load_stopped"))
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
        entry.state, entry.standing.leaving = "unloading", True
        self.start_soon(self._unload_used, entry, name=f"unload {entry.source.name}")

    async def _unload_used(self, entry: _Entry) -> None:
        """One unload, in a task of its own. Whoever is in the queue is waited for."""
        name, queue, loaded = entry.source.name, entry.queue, entry.loaded
        assert queue is not None, "a loaded model has a queue"
        assert loaded is not None, "a loaded model is there"
        with suppress(ActorGone):  # then nobody is left in it either
            await queue.ask(DrainQueue())
        await queue.stop()
        error = await self._loader.free(name, loaded)
        self.ref.control(UnloadEnded(name), live=error)

    def _end_unload(self, message: UnloadEnded) -> None:
        entry, error = self._entries[message.name], self.envelope.live
        entry.state, entry.loaded, entry.queue = "unloaded", None, None
        entry.error = error.message if error else ""
        self._answer_unloaders(entry, error)
        if entry.waiters:
            entry.state = "waiting"
        self._fill_places()

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
            state="loading" if entry.state == "waiting" else entry.state,
            backend=entry.source.backend,
            created=entry.created,
            context=info.context_max if info else 0,
            parameters=info.parameters if info else 0,
            size_bytes=info.weight_bytes if info else 0,
            threads=info.threads if info else 0,
            pinned=entry.source.pinned,
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
