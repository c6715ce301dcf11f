"""Makes a GGUF file resident in the engine `picolm`.

Loading goes from what is cheap to refuse to what is dear: header, architecture and shapes, every tensor's shape and type, room for
the states, the text layer, and only then the weights, a boundary after each tensor. A first step on the finished engine must give
finite logits. A failure anywhere leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import msgspec
import torch

from tripower.backends.gguf.reader import GgufFile, open_gguf
from tripower.backends.picolm.architectures import Architecture, find_architecture
from tripower.backends.picolm.engine import PicolmEngine, kv_shape
from tripower.backends.picolm.hyperparameters import Hyperparameters
from tripower.backends.picolm.kv_cache import FLOAT_BYTES, PAGE_POSITIONS
from tripower.backends.picolm.weights import Wanted, check_weights, read_weights
from tripower.runtime.engine import LoadedModel, LoadSpecification, Progress, SamplingParameters, StepRow, TextLayer
from tripower.runtime.kernel.errors import ModelRefused, TripowerError

CONTEXT_MIN = 256
"""Positions below which a model is not worth loading, unless that was asked for or it was trained with fewer."""


class PicolmBackend:
    """A `Backend` for GGUF files on this machine's processor."""

    name = "picolm"

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        """Yield None at boundaries and the model last. Raises `ModelRefused`. Blocks between boundaries for one tensor."""
        with _refusing(specification.name):
            with open_gguf(specification.source) as file:
                plan = plan_load(file, specification)
                yield None
                text = make_text_layer(file)
                yield None
                engine = yield from load_engine(file, plan, specification, progress)
            yield LoadedModel(engine, text)


class LoadPlan(msgspec.Struct, frozen=True):
    """A file that is accepted, and what will be made of it."""

    architecture: Architecture
    shape: Hyperparameters
    wanted: tuple[Wanted, ...]
    context: int


def plan_load(file: GgufFile, specification: LoadSpecification) -> LoadPlan:
    """Check all that can be checked without reading weights; allocates nothing. Raises `ModelRefused`."""
    architecture = find_architecture(file)
    shape = architecture.read_hyperparameters(file)
    wanted = tuple(architecture.wanted(shape))
    check_weights(file, wanted)
    return LoadPlan(architecture, shape, wanted, choose_context(shape, specification))


def make_text_layer(file: GgufFile) -> TextLayer:
    """The tokenizer and templates that the file holds. Raises `ModelRefused`. Blocks for a second or two if there are many tokens."""
    from tripower.backends.text.layer import GgufTextLayer  # late: who only wants an engine needs no tokenizer library

    return GgufTextLayer(file)


def load_engine(
    file: GgufFile, plan: LoadPlan, specification: LoadSpecification, progress: Progress
) -> Generator[None, None, PicolmEngine]:
    """Yield None at boundaries, return an engine that has passed its self-test. Raises `ModelRefused`.

    The engine keeps nothing of the file: it may be replaced afterwards.
    """
    _use_threads(specification.threads)
    weights = yield from read_weights(file, plan.wanted, lambda done: progress("weights", done))
    if file.changed():
        raise ModelRefused(
            f"{file.path} was replaced while it was loaded: load it again", code="source_changed", param=str(file.path)
        )
    elements = sum(weight.numel() for weight in weights.values())
    engine = PicolmEngine(
        plan.architecture.build(plan.shape, weights),
        context_max=plan.context,
        sequences_max=specification.sequences_max,
        parameters=elements,
        weight_bytes=elements * FLOAT_BYTES,
    )
    yield
    _self_test(engine)
    progress("self-test", 1.0)
    return engine


def choose_context(shape: Hyperparameters, specification: LoadSpecification) -> int:
    """Positions for each sequence: as asked, else as many as the model was trained for and memory allows.

    Raises `ModelRefused` (`context_too_long`, `state_memory_too_small`) with the sizes that would do.
    """
    page_bytes = kv_shape(shape).bytes_per_position * PAGE_POSITIONS
    room = specification.state_bytes_max // (specification.sequences_max * page_bytes) * PAGE_POSITIONS
    asked = specification.context
    if asked > shape.context_trained:
        raise ModelRefused(
            f"a context of {asked} positions was asked for; {specification.name} was trained for {shape.context_trained}",
            code="context_too_long",
            param="context",
        )
    needed = asked or min(shape.context_trained, CONTEXT_MIN)
    if needed > room:
        pages = -(-needed // PAGE_POSITIONS)
        raise ModelRefused(
            f"{specification.sequences_max} sequences of {needed} positions need "
            f"{pages * page_bytes * specification.sequences_max} bytes of state memory, {specification.state_bytes_max} are "
            "allowed: allow more memory, fewer sequences or a shorter context",
            code="state_memory_too_small",
            param="state_bytes_max",
        )
    return asked or min(shape.context_trained, room)


def _use_threads(threads: int) -> None:
    """Set the threads of torch's kernels, if a number is given and it is another one.

    The one setting that torch cannot take per call. It belongs to the calling thread, which is the lane, and to threads that are
    started later and do not set their own.
    """
    if threads > 0 and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def _self_test(engine: PicolmEngine) -> None:
    """Decode one token. Raises `ModelRefused` (`self_test_failed`) when the logits are not finite."""
    sequence = 0
    engine.open_sequence(sequence)
    try:
        engine.step([StepRow(sequence, 0, (0,), draw=True, sampling=SamplingParameters(temperature=0.0))])
    except TripowerError as error:
        engine.close()
        raise ModelRefused(f"the model failed its self-test: {error.message}", code="self_test_failed") from error
    engine.close_sequence(sequence)


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Maps whatever is not ours to `ModelRefused`: for the caller every failure to load has one kind."""
    try:
        yield
    except TripowerError:
        raise
    except MemoryError as error:
        raise ModelRefused(f"there is not enough memory to load {name}", code="out_of_memory") from error
    except Exception as error:
        raise ModelRefused(f"{name} could not be loaded: {error}") from error
