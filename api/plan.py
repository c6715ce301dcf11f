"""From what a user asks for to a plan that a runtime can be opened with. `serve`, `run`, `chat` and `open_runtime` all pass here.

A *reference* is what a person writes (`smollm2`, `chat=/models/x.gguf`, `toy:500`); a `ModelSource` is what the registry needs (a name,
a file, a backend). Nothing is fetched and nothing is loaded here. Limits follow from the host, the settings and the headers of the
model files. Everything blocks for small reads, and the first look into a model file imports torch: call it in a worker thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import attrs
import msgspec

from tripower.actors.model_queue import QueueLimits
from tripower.actors.model_registry import FindModel, LoadLimits, ModelSource
from tripower.actors.runtime import RuntimePlan
from tripower.api.pull import BUILT_INS, display_name, resolve
from tripower.api.pull.model_format import detect_format
from tripower.api.pull.sources import looks_like_source, split_name
from tripower.runtime.configuration import Configuration
from tripower.runtime.engine import Backend, LoadedModel, LoadSpecification, Progress
from tripower.runtime.host import Defaults, HostLimits, ModelNeeds, choose_defaults, read_host_limits
from tripower.runtime.kernel.errors import InvalidConfiguration, InvalidRequest, ModelRefused
from tripower.runtime.store import Store, checked_name

FLOAT_BYTES = 4
"""The engine `picolm` keeps its weights in float32."""


class PicolmOnDemand:
    """The backend `picolm`, imported on the lane by its first load: torch takes seconds, and the toy can do without.

    A file that is not among the `weighed` ones is compared with the memory that is free before it is loaded.
    """

    name = "picolm"

    def __init__(self, weighed: Collection[str] = ()) -> None:
        self._weighed = frozenset(weighed)

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        """See `PicolmBackend.load`. Raises `ModelRefused` (`not_enough_memory`) too."""
        progress("engine", 0.0)
        from tripower.backends.picolm.backend import PicolmBackend

        yield None
        if specification.source not in self._weighed:
            choose_defaults(read_host_limits(), Configuration(), read_needs(specification.source))
        yield from PicolmBackend().load(specification, progress)


class ToyOnDemand:
    """The backend `toy`, imported on the lane by its first load."""

    name = "toy"

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        """See `ToyBackend.load`."""
        from tripower.backends.toy import ToyBackend

        yield from ToyBackend().load(specification, progress)


def is_toy(source: str) -> bool:
    """Whether a source is the built-in toy: `toy`, or `toy:MICROSECONDS` for the time that a step shall take."""
    return source.partition(":")[0] == "toy"


def find_source(reference: str, store: Store) -> ModelSource:
    """What a reference stands for on this machine. Blocks for small reads.

    Raises `NotFound` with the command that fetches it, `InvalidRequest` for what means nothing, `ModelRefused` for a file that no
    backend can run.
    """
    try:
        name, text = split_name(reference)
        if is_toy(text):
            return ModelSource(name=name or text, source=text, backend="toy")
        path = resolve(reference, store)
        return ModelSource(name=display_name(reference, store), source=str(path), backend=_backend_for(path, text))
    except (OSError, UnicodeError) as error:  # a path that is too long, that may not be read, or that no file system has
        raise InvalidRequest(
            f"{reference[:80]!r} cannot be opened as a model: {error}", code="invalid_model_reference"
        ) from error


def _backend_for(path: Path, what: str) -> str:
    found = detect_format(path, what)
    if found != "gguf":
        raise ModelRefused(
            f"{what} is a {found} file, and no engine here runs those: choose a GGUF model, such as smollm2",
            code="unsupported_model_format",
        )
    return "picolm"


def find_stored(store: Store) -> FindModel:
    """For names that come from clients over the network: models of the store only, never a path or an address."""

    def find(name: str) -> ModelSource | None:
        if looks_like_source(name) or is_toy(name) or not is_name(name):
            return None
        if store.find(name) is None and name not in BUILT_INS:
            return None
        return find_source(name, store)

    return find


def is_name(text: str) -> bool:
    """Whether a model of the store could be called so."""
    try:
        checked_name(text)
    except InvalidRequest:
        return False
    return True


def find_any(store: Store) -> FindModel:
    """For a program's own names: whatever `find_source` understands."""
    return lambda name: attrs.evolve(find_source(name, store), name=name)


def stored_sources(store: Store) -> list[ModelSource]:
    """Every model of the store that a backend can run."""
    return [find_source(manifest.name, store) for manifest in store.list() if manifest.format == "gguf"]


def make_plan(
    configuration: Configuration,
    sources: Sequence[ModelSource],
    *,
    host: HostLimits | None = None,
    find_model: FindModel = lambda name: None,
) -> RuntimePlan:
    """The plan for these models.

    All models of a runtime have the same number of seats. The memory for states is shared evenly between those named here. Raises
    `ModelRefused` when the memory does not hold them or a file is no model, `InvalidConfiguration` when two have one name.
    """
    names = [source.name for source in sources]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidConfiguration(f"two models are called {twice[0]}: give one a name of its own, as in other={twice[0]}")
    files = [source.source for source in sources if source.backend == PicolmOnDemand.name]
    chosen = choose_for_all(host or read_host_limits(), configuration, [read_needs(file) for file in files])
    backends: list[Backend] = [PicolmOnDemand(files), ToyOnDemand()]
    return RuntimePlan(
        backends={backend.name: backend for backend in backends},
        sources=tuple(sources),
        limits=LoadLimits(
            context=configuration.engine.context and min(_context(each, configuration) for each in chosen),
            state_bytes_max=chosen[0].state_bytes.value // max(1, len(files)),
            threads=chosen[0].threads.value,
            queue=QueueLimits(
                members_max=min(each.batch_members.value for each in chosen),
                waiting_max=min(each.waiting.value for each in chosen),
                steps_per_job=configuration.scheduler.steps_per_job,
                rows_max=max(each.prefill_rows.value for each in chosen),
            ),
        ),
        find_model=find_model,
    )


def choose_for_all(host: HostLimits, configuration: Configuration, needs: Sequence[ModelNeeds]) -> list[Defaults]:
    """The defaults for each model beside all the others; those without a model when there is none. Never empty."""
    weight_bytes = sum(each.weight_bytes for each in needs)
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


def read_needs(file: str) -> ModelNeeds:
    """What a GGUF model will take, from its header. Blocks. Raises `ModelRefused`."""
    from tripower.backends.gguf.reader import open_gguf
    from tripower.backends.picolm.architectures import find_architecture
    from tripower.backends.picolm.engine import kv_shape

    with open_gguf(file) as opened:
        shape = find_architecture(opened).read_hyperparameters(opened)
        elements = sum(tensor.elements for tensor in opened.tensors.values())
    return ModelNeeds(
        context_max=shape.context_trained,
        state_bytes_per_token=kv_shape(shape).bytes_per_position,
        weight_bytes=elements * FLOAT_BYTES,
    )


def for_one_conversation(configuration: Configuration) -> Configuration:
    """The same settings with one seat and no waiting room, unless the user said otherwise: for `run` and `chat`."""
    given = configuration.scheduler
    scheduler = msgspec.structs.replace(given, batch_members=given.batch_members or 1, waiting=max(given.waiting, 0))
    return msgspec.structs.replace(configuration, scheduler=scheduler)
