"""Makes a GGUF file or a SafeTensors checkpoint resident in the engine `picolm`.

Loading goes from what is cheap to refuse to what is dear: header, architecture and shapes, every tensor's shape and type, room for
the states, the text layer, and only then the weights, a boundary after each tensor. A first step on the finished engine must give
finite logits. A failure anywhere leaves nothing behind.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import torch

from tripower.backends.beside import beside
from tripower.backends.model_file import ModelFile, make_text_layer, open_model
from tripower.backends.picolm.accelerated.device import choose_device
from tripower.backends.picolm.accelerated.load import device_room, estimate_weight_bytes, load_accelerated
from tripower.backends.picolm.accelerated.weights import Precision
from tripower.backends.picolm.architectures import find_architecture
from tripower.backends.picolm.decoder import Decoder
from tripower.backends.picolm.engine import PicolmEngine, kv_shape
from tripower.backends.picolm.kv_cache import FLOAT_BYTES, PAGE_POSITIONS
from tripower.backends.picolm.torch_model import TorchModel
from tripower.backends.picolm.weights import Wanted, check_weights, read_weights, source_changed
from tripower.backends.refusing import refusing
from tripower.runtime.engine import LoadedModel, LoadSpecification, Progress, SamplingParameters, StepRow
from tripower.runtime.host import ModelNeeds
from tripower.runtime.kernel.errors import ModelRefused, TripowerError

if TYPE_CHECKING:
    from tripower.backends.picolm.accelerated.engine import AcceleratedEngine
    from tripower.backends.picolm.native.engine import NativeEngine

    AnyEngine = NativeEngine | PicolmEngine | AcceleratedEngine

CONTEXT_MIN = 256
"""Positions below which a model is not worth loading, unless that was asked for or it was trained with fewer."""


class PicolmBackend:
    """A `Backend` for GGUF files and SafeTensors checkpoints, on this machine's processor or on a CUDA device."""

    name = "picolm"

    def __init__(self, kernels: str = "auto", kv_type: str = "f32", device: str = "cpu") -> None:
        """`native` insists on generated code, `torch` on the float32 reference; `auto` takes what the machine and the model allow.

        `kv_type`, `f32` or `f16`, is what generated code and CUDA devices keep states in. `device` is `auto`, `cpu`, `cuda` or
        `cuda:N`; on a CUDA device `torch` means float32 in everything.
        """
        self._kernels, self._kv_type, self._device = kernels, kv_type, device

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        """Yield None at boundaries and the model last. Raises `ModelRefused`. Blocks between boundaries for one tensor."""
        with refusing(specification.name):
            if specification.draft is not None:
                from tripower.backends.picolm.drafted import Choices, load_drafted  # late: it stands on this module

                choices = Choices(self._kernels, self._kv_type, self._device)
                yield from load_drafted(specification, specification.draft, choices, progress)
                return
            with open_model(specification.source) as file:
                plan = plan_load(file, specification, self._kernels, self._kv_type, self._device)
                yield None
                text, engine = yield from beside(  # a large vocabulary takes seconds
                    lambda: make_text_layer(file),
                    load_engine(file, plan, specification, progress),
                    discard=lambda engine: engine.close(),
                )
            yield LoadedModel(engine, text)


class LoadPlan(msgspec.Struct, frozen=True):
    """A file that is accepted, and what will be made of it."""

    decoder: Decoder
    wanted: tuple[Wanted, ...]
    context: int
    kv_type: str
    without_kernels: str
    """Why torch computes instead of generated code; empty if it does not."""
    device: str = "cpu"
    precision: Precision = "compact"
    """Of weights on another device than the processor."""


def plan_load(
    file: ModelFile, specification: LoadSpecification, kernels: str = "auto", kv_type: str = "f32", device: str = "cpu"
) -> LoadPlan:
    """Check all that can be checked without reading weights; allocates nothing. Raises `ModelRefused`."""
    chosen = choose_device(device)
    architecture = find_architecture(file)
    decoder = architecture.read_decoder(file)
    wanted = tuple(architecture.wanted(decoder))
    check_weights(file, wanted)
    if chosen.type != "cpu":
        return _plan_for_device(file, decoder, wanted, specification, kernels, kv_type, chosen)
    reason = _without_kernels(file, decoder, wanted, kernels, kv_type)
    return LoadPlan(decoder, wanted, choose_context(decoder, specification, kv_type), kv_type, reason)


def _plan_for_device(
    file: ModelFile,
    decoder: Decoder,
    wanted: tuple[Wanted, ...],
    specification: LoadSpecification,
    kernels: str,
    kv_type: str,
    device: torch.device,
) -> LoadPlan:
    """States have to fit beside the weights in the device's memory, and into what was allowed."""
    if kernels == "native":
        raise ModelRefused(
            f"generated code runs on processors, not on {device}: leave engine.kernels at auto, or set engine.device to cpu",
            code="kernels_unavailable",
        )
    precision: Precision = "float32" if kernels == "torch" else "compact"
    room = device_room(device, estimate_weight_bytes(file, device, precision))
    allowed = specification.state_bytes_max if room is None else min(specification.state_bytes_max, room)
    context = choose_context(decoder, msgspec.structs.replace(specification, state_bytes_max=allowed), kv_type)
    return LoadPlan(decoder, wanted, context, kv_type, "", str(device), precision)


def estimate_needs(file: ModelFile, kernels: str = "auto", kv_type: str = "f32") -> ModelNeeds:
    """What the model will take, from its headers. Raises `ModelRefused`."""
    architecture = find_architecture(file)
    decoder = architecture.read_decoder(file)
    tensors = file.tensors.values()
    if _without_kernels(file, decoder, tuple(architecture.wanted(decoder)), kernels, kv_type):
        weight_bytes = sum(tensor.elements for tensor in tensors) * FLOAT_BYTES
    else:
        weight_bytes = sum(tensor.nbytes for tensor in tensors)
    return ModelNeeds(
        context_max=decoder.context_trained,
        state_bytes_per_token=state_bytes_per_position(decoder, kv_type),
        weight_bytes=weight_bytes,
    )


def state_bytes_per_position(decoder: Decoder, kv_type: str) -> int:
    """What one position of a sequence takes."""
    return kv_shape(decoder).bytes_per_position // (2 if kv_type == "f16" else 1)


def load_engine(
    file: ModelFile, plan: LoadPlan, specification: LoadSpecification, progress: Progress
) -> Generator[None, None, AnyEngine]:
    """Yield None at boundaries, return an engine that has passed its self-test. Raises `ModelRefused`.

    The engine keeps nothing of the file: it may be replaced afterwards.
    """
    engine: AnyEngine
    if plan.device != "cpu":
        engine = yield from load_accelerated(
            file,
            plan.decoder,
            plan.wanted,
            plan.context,
            specification,
            progress,
            device=torch.device(plan.device),
            precision=plan.precision,
            kv_type=plan.kv_type,
        )
    elif plan.without_kernels:
        engine = yield from _load_torch(file, plan, specification, progress)
    else:
        from tripower.backends.picolm.native.load import load_native  # late: a machine without LLVM has the other path

        engine = yield from load_native(file, plan.decoder, plan.wanted, plan.context, specification, progress, plan.kv_type)
    try:
        yield
        _self_test(engine)
        progress("self-test", 1.0)
    except BaseException:
        engine.close()
        raise
    return engine


def _load_torch(
    file: ModelFile, plan: LoadPlan, specification: LoadSpecification, progress: Progress
) -> Generator[None, None, PicolmEngine]:
    """The readable path: float32 in torch."""
    _use_threads(specification.threads)
    weights = yield from read_weights(file, plan.wanted, lambda done: progress("weights", done))
    if file.changed():
        raise source_changed(file)
    elements = sum(weight.numel() for weight in weights.values())
    return PicolmEngine(
        TorchModel(plan.decoder, weights),
        context_max=plan.context,
        sequences_max=specification.sequences_max,
        parameters=elements,
        weight_bytes=elements * FLOAT_BYTES,
        kernels=f"torch float32 ({plan.without_kernels})",
    )


def _without_kernels(file: ModelFile, decoder: Decoder, wanted: Sequence[Wanted], kernels: str, kv_type: str) -> str:
    """Why torch is to compute; empty if generated code is. Raises `ModelRefused` for what was asked for and cannot be."""
    reason = "asked for" if kernels == "torch" else why_not(file, decoder, wanted)
    if reason and kernels == "native":
        raise ModelRefused(
            f"generated code cannot run {file.path.name}: {reason}; leave engine.kernels at auto", code="kernels_unavailable"
        )
    if reason and kv_type != "f32":
        raise ModelRefused(
            f"states in {kv_type} need generated code, and torch computes here ({reason}): leave engine.kv_type at f32",
            code="unsupported_kv_type",
        )
    return reason


def why_not(file: ModelFile, decoder: Decoder, wanted: Sequence[Wanted]) -> str:
    """Why generated code cannot run this model here, in words; empty if it can."""
    if sys.byteorder != "little":
        return "this machine stores numbers the other way round"
    try:
        from tripower.backends.picolm.native.model import why_not as kernels_why_not
    except ImportError as error:
        return f"llvmlite cannot be used ({error})"
    return kernels_why_not(file, decoder, wanted)


def choose_context(shape: Decoder, specification: LoadSpecification, kv_type: str = "f32") -> int:
    """Positions for each sequence: as asked, else as many as the model was trained for and memory allows.

    Raises `ModelRefused` (`context_too_long`, `state_memory_too_small`) with the sizes that would do.
    """
    page_bytes = state_bytes_per_position(shape, kv_type) * PAGE_POSITIONS
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


def _self_test(engine: AnyEngine) -> None:
    """Decode one token. Raises `ModelRefused` (`self_test_failed`) when the logits are not finite."""
    sequence = 0
    engine.open_sequence(sequence)
    try:
        engine.step([StepRow(sequence, 0, (0,), draw=True, sampling=SamplingParameters(temperature=0.0))])
    except TripowerError as error:
        raise ModelRefused(
            f"the model failed its self-test ({error.message}): the file's weights are damaged, pull it again or take another one",
            code="self_test_failed",
        ) from error
    engine.close_sequence(sequence)
