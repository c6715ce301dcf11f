"""From what a user asks for to a plan that a runtime can be opened with. `serve`, `run`, `chat` and `open_runtime` all pass here.

A *reference* is what a person writes (`smollm2`, `chat=/models/x.gguf`, `toy:500`); a `ModelSource` is what the registry needs (a name,
a file, a backend). Nothing is fetched and nothing is loaded here. Limits follow from the host, the settings and the headers of the
model files. Everything blocks for small reads, and the first look into a model file imports torch: call it in a worker thread.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import attrs
import msgspec

from tripower.actors.models import FindModel, LoadLimits, ModelSource
from tripower.actors.queueing import QueueLimits
from tripower.actors.residency import Residency
from tripower.actors.runtime import RuntimePlan
from tripower.api.drafting import find_draft, speculation_settings, with_draft
from tripower.api.engines import (
    AUTO,
    EMBEDDED,
    FILE_ENGINES,
    check_gpu_layers,
    check_reference,
    choose_engine,
    foreign_needs,
    is_remote,
    is_toy,
    needs_file,
    other_engines,
    picolm_refusal,
    remote_source,
)
from tripower.api.pull import BUILT_INS, display_name, resolve
from tripower.api.pull.resolve import stored_path
from tripower.api.pull.sources import looks_like_source, split_name
from tripower.backends.model_file import is_complete_checkpoint
from tripower.runtime.configuration import Configuration
from tripower.runtime.configuration.settings import EngineSettings, SchedulerSettings
from tripower.runtime.engine import Backend, DelegateBackend, DraftSpecification, LoadedModel, LoadSpecification, Progress
from tripower.runtime.engine.encoder import LoadedEncoder
from tripower.runtime.host import Defaults, HostLimits, ModelNeeds, choose_defaults, read_host_limits
from tripower.runtime.kernel.errors import InvalidConfiguration, InvalidRequest
from tripower.runtime.prefix_cache import PrefixSettings
from tripower.runtime.store import Store, checked_name

DEFAULT_ENGINE = EngineSettings()


class PicolmOnDemand:
    """The backend `picolm`, imported on the lane by its first load: torch takes seconds, and the toy can do without.

    A file that is not among the `weighed` ones is compared with the memory that is free before it is loaded.
    """

    name = "picolm"

    def __init__(self, weighed: Collection[str] = (), engine: EngineSettings = DEFAULT_ENGINE) -> None:
        self._weighed, self._engine = frozenset(weighed), engine

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        """See `PicolmBackend.load`. Raises `ModelRefused` (`not_enough_memory`) too."""
        progress("engine", 0.0)
        from tripower.backends.picolm.backend import PicolmBackend

        yield None
        if specification.source not in self._weighed:
            needs = read_needs(specification.source, self._engine)
            if specification.draft is not None:
                needs = with_draft(needs, read_needs(specification.draft.source, self._engine))
            choose_defaults(read_host_limits(), Configuration(), needs)
        yield from PicolmBackend(self._engine.kernels, self._engine.kv_type, self._engine.device).load(specification, progress)


class EmbeddedOnDemand:
    """The backend `embedded`, imported on the lane by its first load; what was not `weighed` is compared with the free memory first."""

    name = EMBEDDED

    def __init__(self, weighed: Collection[str] = ()) -> None:
        self._weighed = frozenset(weighed)

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedEncoder | None]:
        """See `EmbeddedBackend.load`. Raises `ModelRefused` (`not_enough_memory`) too."""
        progress("engine", 0.0)
        from tripower.backends.embedded.backend import EmbeddedBackend, estimate_needs

        yield None
        if specification.source not in self._weighed:
            choose_defaults(read_host_limits(), Configuration(), estimate_needs(specification.source))
        yield from EmbeddedBackend().load(specification, progress)


class ToyOnDemand:
    """The backend `toy`, imported on the lane by its first load."""

    name = "toy"

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        """See `ToyBackend.load`."""
        from tripower.backends.toy import ToyBackend

        yield from ToyBackend().load(specification, progress)


def find_source(reference: str, store: Store, configuration: Configuration | None = None) -> ModelSource:
    """What a reference stands for on this machine, and which engine runs it. Blocks for small reads.

    Raises `NotFound` with the command that fetches it, `InvalidRequest` for what means nothing or does not go with
    `engine.backend`, `ModelRefused` for a file that no backend can run.
    """
    configuration = configuration or Configuration()
    wanted = configuration.engine.backend
    try:
        name, text = split_name(reference)
        check_reference(text, wanted)
        if is_toy(text):
            return ModelSource(name=name or text, source=text, backend="toy")
        if is_remote(text, wanted):
            return _remote(name, text, configuration)
        path = resolve(reference, store)
        chosen = choose_engine(path, text, wanted)
        check_gpu_layers(configuration, {chosen.backend})
        return ModelSource(name=display_name(reference, store), source=str(path), backend=chosen.backend, reason=chosen.reason)
    except (OSError, UnicodeError) as error:  # a path that is too long, that may not be read, or that no file system has
        raise InvalidRequest(
            f"{reference[:80]!r} cannot be opened as a model: {error}", code="invalid_model_reference"
        ) from error


def _remote(name: str | None, text: str, configuration: Configuration) -> ModelSource:
    model, address = remote_source(text, configuration)
    if not (name or model):
        raise InvalidRequest(
            f"give the remote model a name, as in NAME={text}, or name it as its server does, as in {text}#MODEL",
            code="invalid_model_reference",
        )
    return ModelSource(name=name or model, source=address, backend="proxy", reason="it is on another server")


def find_stored(store: Store, configuration: Configuration | None = None) -> FindModel:
    """For names that come from clients over the network: models of the store only, never a path or an address."""

    def find(name: str) -> ModelSource | None:
        if looks_like_source(name) or is_toy(name) or not is_name(name) or not takes_files(configuration):
            return None
        if store.find(name) is None and name not in BUILT_INS:
            return None
        return find_source(name, store, configuration)

    return find


def is_name(text: str) -> bool:
    """Whether a model of the store could be called so."""
    try:
        checked_name(text)
    except InvalidRequest:
        return False
    return True


def takes_files(configuration: Configuration | None) -> bool:
    """Whether the backend that is wanted could run a file at all."""
    return configuration is None or configuration.engine.backend in (AUTO, *FILE_ENGINES)


def find_any(store: Store, configuration: Configuration | None = None) -> FindModel:
    """For a program's own names: whatever `find_source` understands."""
    return lambda name: attrs.evolve(find_source(name, store, configuration), name=name)


def stored_sources(store: Store, configuration: Configuration | None = None) -> list[ModelSource]:
    """Every model of the store that a backend can run. Encoders are served where `auto` chooses the engine."""
    wanted = AUTO if configuration is None else configuration.engine.backend
    return [
        find_source(manifest.name, store, configuration)
        for manifest in store.list()
        if manifest.format == "gguf" or (wanted == AUTO and is_complete_checkpoint(stored_path(manifest, store)))
    ]


def make_plan(
    configuration: Configuration,
    sources: Sequence[ModelSource],
    *,
    host: HostLimits | None = None,
    find_model: FindModel | None = None,
    store: Store | None = None,
) -> RuntimePlan:
    """The plan for these models.

    All models of a runtime have the same number of seats. The memory for states is shared evenly between those named here. `store` knows
    the draft model, if one is asked for. Raises `ModelRefused` when the memory does not hold them or a file is no model,
    `InvalidConfiguration` when two have one name.
    """
    names = [source.name for source in sources]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidConfiguration(f"two models are called {twice[0]}: give one a name of its own, as in other={twice[0]}")
    check_gpu_layers(configuration, {source.backend for source in sources})
    files = [source.source for source in sources if source.backend == PicolmOnDemand.name]
    encoders = [source.source for source in sources if source.backend == EMBEDDED]
    draft = find_draft(
        configuration.speculation, sources, lambda reference: find_source(reference, store or Store(), configuration)
    )
    needs = [each for each in (source_needs(source, configuration.engine, draft) for source in sources) if each is not None]
    chosen = choose_for_all(host or read_host_limits(), configuration, needs, beside=_encoder_bytes(encoders))
    backends: list[Backend | DelegateBackend] = [
        PicolmOnDemand(files, configuration.engine),
        EmbeddedOnDemand(encoders),
        ToyOnDemand(),
        *other_engines(configuration),
    ]
    return RuntimePlan(
        backends={backend.name: backend for backend in backends},
        sources=tuple(sources),
        limits=LoadLimits(
            context=configuration.engine.context and min(_context(each, configuration) for each in chosen),
            state_bytes_max=chosen[0].state_bytes.value // max(1, len(needs)),
            threads=chosen[0].threads.value,
            queue=QueueLimits(
                members_max=min(each.batch_members.value for each in chosen),
                waiting_max=min(each.waiting.value for each in chosen),
                steps_per_job=configuration.scheduler.steps_per_job,
                rows_max=max(each.prefill_rows.value for each in chosen),
                mixed_rows=max(each.mixed_rows.value for each in chosen),
                prefix=prefix_settings(configuration.scheduler),
                speculation=speculation_settings(configuration.speculation),
            ),
            residency=Residency(
                keep_alive_seconds=configuration.engine.keep_alive_s or math.inf, models_max=configuration.engine.models_max
            ),
            draft=draft,
        ),
        find_model=find_model,
        device=lane_name(configuration, files),
        stall_seconds=configuration.engine.stall_s,
        hold_seconds=configuration.console.stall_ms / 1000,
    )


def prefix_settings(scheduler: SchedulerSettings) -> PrefixSettings | None:
    """What is kept of prompts; None where nothing is."""
    if not scheduler.prefix_cache:
        return None
    return PrefixSettings(
        bytes_max=scheduler.prefix_bytes, entries_max=scheduler.prefix_entries, ttl_seconds=scheduler.prefix_ttl_s
    )


def lane_name(configuration: Configuration, files: Collection[str]) -> str:
    """The name of the lane that these files of picolm will run on. Raises `ModelRefused` for a device that is not there."""
    if not files or configuration.engine.device == "cpu":
        return "cpu0"
    from tripower.backends.picolm.accelerated.device import choose_device

    device = choose_device(configuration.engine.device)
    return "cpu0" if device.type == "cpu" else str(device)


def choose_for_all(
    host: HostLimits, configuration: Configuration, needs: Sequence[ModelNeeds], *, beside: int = 0
) -> list[Defaults]:
    """The defaults for each model beside all the others; those without a model when there is none. Never empty.

    `beside` is what models take that keep no states and have no context: encoders. Raises `ModelRefused` (`not_enough_memory`).
    """
    weight_bytes = beside + sum(each.weight_bytes for each in needs)
    if beside and not needs:
        stateless = ModelNeeds(context_max=1, state_bytes_per_token=0, weight_bytes=beside)
        return [msgspec.structs.replace(choose_defaults(host, configuration, stateless), context=None)]
    shares = [
        ModelNeeds(
            context_max=each.context_max,
            state_bytes_per_token=each.state_bytes_per_token * len(needs),
            weight_bytes=weight_bytes,
        )
        for each in needs
    ]
    return [choose_defaults(host, configuration, share) for share in shares] or [choose_defaults(host, configuration)]


def _context(defaults: Defaults, configuration: Configuration) -> int:
    return defaults.context.value if defaults.context is not None else configuration.engine.context


def source_needs(
    source: ModelSource, engine: EngineSettings = DEFAULT_ENGINE, draft: DraftSpecification | None = None
) -> ModelNeeds | None:
    """What a source will take on this machine, with its draft; None where it is no file. Blocks.

    Raises `ModelRefused` for a broken file.
    """
    if source.backend == PicolmOnDemand.name:
        needs = read_needs(source.source, engine)
        return needs if draft is None else with_draft(needs, read_needs(draft.source, engine))
    if source.backend not in FILE_ENGINES:
        return None
    path = Path(source.source)
    return foreign_needs(path, None if picolm_refusal(path) else read_needs(source.source))


def _encoder_bytes(files: Sequence[str]) -> int:
    """What the weights of these encoders take together. Blocks. Raises `ModelRefused`."""
    if not files:
        return 0
    from tripower.backends.embedded.backend import estimate_needs

    return sum(estimate_needs(file).weight_bytes for file in files)


def read_needs(file: str, engine: EngineSettings = DEFAULT_ENGINE) -> ModelNeeds:
    """What a model will take in picolm, from its headers. Blocks. Raises `ModelRefused`.

    A large vocabulary takes a fifth of a second to read, and both the choice of the engine and the plan ask: what was read of a file is
    kept for as long as it is as it was.
    """
    path = Path(file)
    if not path.is_file():  # the folder of a checkpoint, or nothing, which the reader explains
        return _read_needs(file, engine.kernels, engine.kv_type)
    found = path.stat()
    return _needs_of(file, engine.kernels, engine.kv_type, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=64)
def _needs_of(file: str, kernels: str, kv_type: str, _changed: int, _size: int) -> ModelNeeds:
    return _read_needs(file, kernels, kv_type)


def _read_needs(file: str, kernels: str, kv_type: str) -> ModelNeeds:
    from tripower.backends.model_file import open_model
    from tripower.backends.picolm.backend import estimate_needs

    with open_model(file) as opened:
        return estimate_needs(opened, kernels, kv_type)


def for_one_conversation(configuration: Configuration) -> Configuration:
    """The same settings with one seat and no waiting room, unless the user said otherwise: for `run` and `chat`."""
    given = configuration.scheduler
    scheduler = msgspec.structs.replace(given, batch_members=given.batch_members or 1, waiting=max(given.waiting, 0))
    return msgspec.structs.replace(configuration, scheduler=scheduler)


__all__ = [
    "EmbeddedOnDemand",
    "PicolmOnDemand",
    "ToyOnDemand",
    "choose_for_all",
    "find_any",
    "find_source",
    "find_stored",
    "for_one_conversation",
    "is_name",
    "is_toy",
    "make_plan",
    "needs_file",
    "read_needs",
    "source_needs",
    "stored_sources",
    "takes_files",
]
