"""A runtime as its users see it: the HTTP service, the command line and a program that embeds it all ask here.

It owns no state of its own beyond whether it drains: what is loaded, queued or running is asked of the actors, or read from the
kernel's list.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import attrs
import msgspec
import trio

from tripower.actors.device import DeviceActor
from tripower.actors.dialogue import GenerationRequest
from tripower.actors.embedding import EmbeddingRequest, Embeddings, embed
from tripower.actors.generation import Generation
from tripower.actors.model_registry import ModelRegistryActor
from tripower.actors.models import (
    EngineReport,
    EnsureLoaded,
    FindModel,
    ListModels,
    LoadLimits,
    ModelCard,
    ModelSource,
    ReadyModel,
    RegistryStatistics,
    UnloadModel,
)
from tripower.actors.queueing import QueueLimits, QueueStatistics, SettleQueue
from tripower.actors.system import ROOT_SUPERVISION, LocateParts, Parts, SystemActor
from tripower.actors.watchdog import Watchdog, stalled
from tripower.runtime.engine import Backend, DelegateBackend, Progress
from tripower.runtime.introspection.recorder import Recorder
from tripower.runtime.introspection.stalls import StallWatch
from tripower.runtime.kernel import (
    NEVER,
    Actor,
    ActorGone,
    ActorStatistics,
    ActorSystem,
    Overloaded,
    Port,
    Supervision,
    open_actor_system,
    open_port,
)
from tripower.runtime.prefix_cache import PrefixSettings
from tripower.runtime.speculation import SpeculationSettings


class Health(msgspec.Struct, frozen=True):
    """`ok`, `loading`, `draining` or `failing`, and why."""

    status: str
    reasons: tuple[str, ...] = ()
    engines: tuple[EngineReport, ...] = ()
    """Of the loaded models: how they compute, and the certificate of those that are exact."""


@attrs.frozen(kw_only=True)
class RuntimePlan:
    """Everything that makes a runtime: who can load, what, and within which limits."""

    backends: Mapping[str, Backend | DelegateBackend]
    sources: tuple[ModelSource, ...] = ()
    limits: LoadLimits
    find_model: FindModel | None = None
    device: str = "cpu0"
    """The name of the lane, for people: the processor's, or the accelerator's that models are loaded on."""
    open_port: Callable[[], Port] = attrs.Factory(lambda plan: partial(open_port, plan.device), takes_self=True)
    stall_seconds: float = 120.0
    """A lane or a queue that works and has no step for so long makes health red."""
    hold_seconds: float = 0.0
    """Whoever holds the loop for longer is noted; 0: nobody looks. See `Runtime.stalls`."""
    supervision: Supervision | None = None
    recorder_entries: int = 0
    """Messages that a flight recorder remembers; 0: there is none."""
    on_instance: Callable[[str, Actor[Any]], None] = lambda name, actor: None
    """Sees each actor before its first message. See `ActorSystem`."""


class Runtime:
    """Made by `open_actors`. All methods are for the Trio loop that made it."""

    def __init__(self, system: ActorSystem, parts: Parts, *, stall_seconds: float = math.inf) -> None:
        self.system = system
        self.stalls = StallWatch()
        """Who holds the loop, while it is turned on; turned off when the runtime ends."""
        self._parts = parts
        self._stall_seconds = stall_seconds
        self._draining = False
        self.started_at = trio.current_time()
        """On Trio's clock."""
        self._ready: dict[str, ReadyModel] = {}
        """Addresses that were handed out; each is good for as long as its queue lives."""

    def generate(self, request: GenerationRequest, *, deadline: float = NEVER, like: Generation | None = None) -> Generation:
        """One answer, as an async context manager; nothing happens before it is entered. `like` is another choice of the request."""
        return Generation(self.ready, request, deadline, like=like)

    async def embed(self, request: EmbeddingRequest, *, deadline: float = NEVER) -> Embeddings:
        """The vectors of some texts. Blocks; see `actors.embedding.embed` for what it raises."""
        return await embed(self.ready, request, deadline)

    async def ready(self, name: str, deadline: float = NEVER) -> ReadyModel:
        """A model for a request: loaded on demand. Raises `Overloaded` (`draining`) while the server shuts down; else like `load`."""
        if self._draining:
            raise Overloaded("the server is shutting down", code="draining", retry_after=5.0)
        ready = self._ready.get(name)
        if ready is None or ready.queue.ended or ready.standing.leaving:
            ready = self._ready[name] = await self._parts.registry.ask(EnsureLoaded(name), deadline=deadline)
        return ready

    async def load(self, name: str, *, deadline: float = NEVER, progress: Progress | None = None) -> ReadyModel:
        """Wait until a model is resident; single flight. `progress` is called on the lane's thread."""
        ready: ReadyModel = await self._parts.registry.ask(EnsureLoaded(name), deadline=deadline, live=progress)
        return ready

    async def unload(self, name: str, *, deadline: float = NEVER) -> None:
        """Wait until a model's memory is free: whoever uses it is waited for, whoever comes later gets it loaded again.

        The model is unloaded whether the caller waits or not. Raises `NotFound`, `DeadlineExceeded`, `DeviceFailed`.
        """
        self._ready.pop(name, None)
        await self._parts.registry.ask(UnloadModel(name), deadline=deadline)

    async def settle(self) -> None:
        """Wait until whoever has left a queue by now holds no seat any more. A queue that has ended has no seats."""
        for ready in list(self._ready.values()):
            with suppress(ActorGone):
                await ready.queue.ask(SettleQueue())

    async def models(self) -> Sequence[ModelCard]:
        """What can be asked for."""
        return (await self._parts.registry.ask(ListModels())).models

    def begin_drain(self) -> None:
        """Refuse new work from now on (`draining`); what runs goes on. Synchronous, idempotent."""
        self._draining = True

    @property
    def draining(self) -> bool:
        return self._draining

    def active(self) -> int:
        """Generations that wait or run."""
        return sum(actor.details.live for actor in self.statistics() if isinstance(actor.details, QueueStatistics))

    def health(self) -> Health:
        """What the kernel's list says. Synchronous."""
        loading, engines = False, tuple[EngineReport, ...]()
        statistics = self.statistics()
        reasons = stalled(statistics, self._stall_seconds)
        for actor in statistics:
            if actor.vital and actor.state in ("failed", "restarting"):
                reasons.append(f"{actor.name} is {actor.state}")
            if isinstance(actor.details, RegistryStatistics):
                loading = loading or actor.details.loading > 0
                engines = actor.details.engines
        if reasons:
            return Health("failing", tuple(reasons), engines)
        return Health("draining" if self._draining else "loading" if loading else "ok", (), engines)

    def statistics(self) -> list[ActorStatistics]:
        """Every actor, parents before children."""
        return self.system.statistics()


@asynccontextmanager
async def open_actors(plan: RuntimePlan) -> AsyncIterator[Runtime]:
    """Start the actors of a runtime; leaving the block ends them in order, models last. Opens no socket, handles no signal."""
    async with open_actor_system(plan.on_instance) as system:
        if plan.recorder_entries:
            system.recording = Recorder(plan.recorder_entries)
        root = system.spawn(
            lambda: SystemActor(
                lambda: DeviceActor(plan.device, plan.open_port, stall_seconds=plan.stall_seconds),
                lambda device: ModelRegistryActor(device, plan.backends, plan.sources, plan.limits, plan.find_model),
                supervision=plan.supervision,
                device=plan.device,
                watch=Watchdog(system, plan.stall_seconds).run,
            ),
            name="system",
            supervision=ROOT_SUPERVISION,
        )
        runtime = Runtime(system, await root.ask(LocateParts()), stall_seconds=plan.stall_seconds)
        if plan.hold_seconds:
            runtime.stalls.turn_on(plan.hold_seconds)
        try:
            yield runtime
        finally:
            runtime.stalls.turn_off()
            with trio.CancelScope(shield=True):
                await root.stop()


def toy_plan(
    *,
    members_max: int = 16,
    waiting_max: int = 64,
    steps_per_job: int = 256,
    source: str = "toy",
    prefix: PrefixSettings | None = None,
    speculation: SpeculationSettings | None = None,
    **changes: Any,
) -> RuntimePlan:
    """A plan with the toy as its only model, called `toy`: for tests and for benches of everything but the engine.

    Nothing is kept of prompts, unless `prefix` says how much, and nothing is guessed, unless `speculation` says how.
    """
    from tripower.backends.toy import ToyBackend

    queue = QueueLimits(
        members_max=members_max,
        waiting_max=waiting_max,
        steps_per_job=steps_per_job,
        rows_max=256,
        prefix=prefix,
        speculation=speculation,
    )
    plan = RuntimePlan(
        backends={"toy": ToyBackend()},
        sources=(ModelSource(name="toy", source=source, backend="toy"),),
        limits=LoadLimits(context=0, state_bytes_max=1 << 30, threads=1, queue=queue),
    )
    return attrs.evolve(plan, **changes)


__all__ = ["GenerationRequest", "Health", "Runtime", "RuntimePlan", "open_actors", "toy_plan"]
