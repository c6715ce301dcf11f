"""What is said about models: the registry's messages, and what a model is before, while and after it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import msgspec

from tripower.actors.queueing import QueueLimits
from tripower.actors.residency import Residency
from tripower.runtime.engine import (
    Certificate,
    DraftSpecification,
    EngineInfo,
    LoadedDelegate,
    LoadedModel,
    SamplingParameters,
)
from tripower.runtime.engine.encoder import LaneModel, LoadedEncoder
from tripower.runtime.kernel import (
    Ask,
    Message,
    Ref,
)
from tripower.runtime.speculation import SpeculationSettings


@attrs.define(eq=False)
class Standing:
    """Whether a loaded model takes requests. The registry changes it; whoever holds the model looks."""

    leaving: bool = False
    """It is being unloaded: whoever wants it asks the registry anew, and gets the next load."""


@attrs.frozen
class ReadyModel:
    """A loaded model as its users see it: live things, handed over by the registry."""

    name: str
    queue: Ref[Any]
    loaded: LaneModel | LoadedDelegate
    standing: Standing = attrs.field(factory=Standing, eq=False)
    speculation: SpeculationSettings | None = None
    """How its tokens are guessed."""

    @property
    def info(self) -> EngineInfo:
        return self.loaded.engine.info

    @property
    def recommended(self) -> SamplingParameters | None:
        """What the model file recommends; None where the engine sees to that itself, and where nothing is drawn."""
        return self.loaded.text.recommended if isinstance(self.loaded, LoadedModel) else None

    @property
    def has_chat_template(self) -> bool:
        """Whether it can be asked a conversation."""
        loaded = self.loaded
        if isinstance(loaded, LoadedEncoder):
            return False
        return loaded.text.has_chat_template if isinstance(loaded, LoadedModel) else loaded.engine.abilities.chat

    @property
    def embeds(self) -> bool:
        """Whether it turns texts into vectors, and generates nothing."""
        return isinstance(self.loaded, LoadedEncoder)


class EnsureLoaded(Ask[ReadyModel], frozen=True):
    """Load a model unless it is there. The envelope may carry a `Progress`. Answered when it can be used."""

    name: str


class UnloadModel(Ask["ModelUnloaded"], frozen=True):
    """Free a model when nobody uses it any more; it is loaded again for whoever asks next. Giving up does not keep it loaded."""

    name: str


class ModelUnloaded(Message, frozen=True):
    """Its memory is free, or it was not loaded."""

    name: str


class ListModels(Ask["ModelList"], frozen=True):
    """What can be asked for."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One model as clients see it."""

    name: str
    source: str
    state: str
    backend: str
    created: int
    """Unix seconds at which the registry learnt of it."""
    context: int = 0
    parameters: int = 0
    size_bytes: int = 0
    threads: int = 0
    pinned: bool = False
    """Whether it was named at the start."""
    error: str = ""


class ModelList(Message, frozen=True):
    """Every model that was named at the start, or found in the store since."""

    models: tuple[ModelCard, ...]


class ReviewResidency(Message, frozen=True):
    """From the registry to itself: see which model has been idle for long enough to go, and whether one that waits has a place."""


class LoadEnded(Message, frozen=True):
    """From the registry's own load task. The envelope carries what was loaded, or the error."""

    name: str


class UnloadEnded(Message, frozen=True):
    """From the registry's own unload task. The envelope carries None, or the error."""

    name: str


@attrs.frozen(kw_only=True)
class ModelSource:
    """Where a model comes from and who runs it."""

    name: str
    source: str
    backend: str
    reason: str = attrs.field(default="", eq=False)
    """Why this backend, for people."""
    pinned: bool = attrs.field(default=False, eq=False)
    """Whether it stays in memory, once loaded, until somebody unloads it."""


@attrs.frozen(kw_only=True)
class LoadLimits:
    """What every load of this runtime is told. See `LoadSpecification` and `QueueLimits`."""

    context: int
    state_bytes_max: int
    threads: int
    queue: QueueLimits
    residency: Residency = attrs.field(factory=Residency)
    draft: DraftSpecification | None = None
    """What guesses for each model that generates; None: no model does."""


FindModel = Callable[[str], ModelSource | None]
"""Looks for a model that was not named at the start, in a store. Quick and synchronous."""


class EngineReport(msgspec.Struct, frozen=True):
    """What a loaded model's engine says of itself: how it computes, and whether its answers depend on load."""

    model: str
    backend: str
    kernels: str
    determinism: str
    certificate: Certificate | None


class RegistryStatistics(msgspec.Struct, frozen=True):
    models: int
    loaded: int
    loading: int
    loads_ok: int
    loads_failed: int
    load_seconds: float
    names: tuple[tuple[str, str], ...]
    """Name and state of each."""
    engines: tuple[EngineReport, ...] = ()
    """Of the models that are loaded."""
