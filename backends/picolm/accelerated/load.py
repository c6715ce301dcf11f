"""Makes a model resident on a device: weights first, then states in what is left, and an engine over both."""

from __future__ import annotations

import traceback
from collections.abc import Generator, Sequence

import torch

from tripower.backends.model_file import ModelFile
from tripower.backends.picolm.accelerated.device import Stream, device_name, open_stream
from tripower.backends.picolm.accelerated.engine import AcceleratedEngine, CaptureWork
from tripower.backends.picolm.accelerated.graph_cache import CapturePolicy
from tripower.backends.picolm.accelerated.int4 import GROUP
from tripower.backends.picolm.accelerated.kv_pool import EXTRA_PAGES, KvPool
from tripower.backends.picolm.accelerated.linear import takes_int4
from tripower.backends.picolm.accelerated.model import DeviceModel
from tripower.backends.picolm.accelerated.weights import DeviceWeights, Precision, read_device_weights
from tripower.backends.picolm.decoder import EMBEDDING, HEAD, Decoder
from tripower.backends.picolm.engine import kv_shape
from tripower.backends.picolm.kv_cache import FLOAT_BYTES, PAGE_POSITIONS
from tripower.backends.picolm.weights import Wanted, source_changed
from tripower.runtime.engine import EngineInfo, LoadSpecification, Progress
from tripower.runtime.engine.contract import SPECULATION
from tripower.runtime.kernel.errors import ModelRefused

KV_DTYPES = {"f32": torch.float32, "f16": torch.float16}
BFLOAT_BYTES = 2
INT4_ELEMENT_BYTES = 0.5 + 2 * BFLOAT_BYTES / GROUP
SCRATCH_SHARE = 0.1
"""Of the device's free memory: left to activations, captures and libraries."""
NO_GRAPHS = "it computes on the processor, which has no graphs"
MIXTURE = "a mixture of experts asks the host which of them it needs"


def load_accelerated(
    file: ModelFile,
    decoder: Decoder,
    wanted: Sequence[Wanted],
    context: int,
    specification: LoadSpecification,
    progress: Progress,
    *,
    device: torch.device,
    precision: Precision = "compact",
    kv_type: str = "f32",
    graphs: bool = True,
    capture: CaptureWork | None = None,
    policy: CapturePolicy | None = None,
) -> Generator[None, None, AcceleratedEngine]:
    """Yield None at boundaries, return the engine. Raises `ModelRefused`; the engine keeps nothing of the file.

    `capture` records work where the device itself cannot: for tests on a processor.
    """
    stream = open_stream(device)
    full = None
    try:
        weights, pool, model = yield from _make_resident(
            file, decoder, wanted, context, specification, progress, stream, precision, kv_type
        )
    except torch.OutOfMemoryError as error:
        full = ModelRefused(
            f"{device} has not enough memory for {specification.name}: {_needs(file, decoder, context, specification)}; "
            "allow fewer sequences or a shorter context, or set engine.device to cpu",
            code="out_of_memory",
        )
        traceback.clear_frames(error.__traceback__)
    if full is not None:  # what was read is gone by now, which it is not inside the clause
        stream.free_scratch()
        raise full
    info = EngineInfo(
        backend="picolm",
        architecture=decoder.architecture,
        context_max=context,
        vocabulary_size=decoder.vocabulary_size,
        sequences_max=specification.sequences_max,
        parameters=weights.elements,
        weight_bytes=weights.nbytes,
        state_bytes_per_token=kv_shape(decoder).bytes_per_position * KV_DTYPES[kv_type].itemsize // FLOAT_BYTES,
        page_positions=pool.table.page_positions,
        pages_max=pool.table.pages_max,
        threads=torch.get_num_threads() if device.type == "cpu" else 1,
        kernels=_described(device, precision, weights, kv_type),
        unsupported=frozenset({SPECULATION}),
    )
    return AcceleratedEngine(
        model,
        pool,
        stream,
        info,
        weight_bytes_read=step_bytes(decoder, weights),
        capture=capture,
        never=_never(decoder, device, graphs, capture),
        policy=policy,
    )


def _make_resident(
    file: ModelFile,
    decoder: Decoder,
    wanted: Sequence[Wanted],
    context: int,
    specification: LoadSpecification,
    progress: Progress,
    stream: Stream,
    precision: Precision,
    kv_type: str,
) -> Generator[None, None, tuple[DeviceWeights, KvPool, DeviceModel]]:
    weights = yield from read_device_weights(file, wanted, stream, precision, lambda done: progress("weights", done))
    if file.changed():
        raise source_changed(file)
    with stream.entered():
        pool = KvPool(
            kv_shape(decoder),
            pages_max=-(-context // PAGE_POSITIONS) * specification.sequences_max,
            page_positions=PAGE_POSITIONS,
            device=stream.device,
            dtype=KV_DTYPES[kv_type],
        )
        model = DeviceModel(decoder, weights, context=context, device=stream.device)
        stream.wait()
    return weights, pool, model


def step_bytes(decoder: Decoder, weights: DeviceWeights) -> int:
    """Bytes of weights that a step of one row reads: all matrices, but of the embedding a row unless it is the head, and of experts
    those that are used."""
    projections = sum(
        each.nbytes for name, each in weights.projections.items() if name != EMBEDDING or HEAD not in weights.projections
    )
    experts = sum(each.nbytes for group in weights.experts.values() for each in group)
    return projections + (experts * decoder.experts_used // decoder.experts if decoder.experts else 0)


def device_room(device: torch.device, weight_bytes: int) -> int | None:
    """Bytes of the device that states may take beside so many of weights; None where the host's memory is what counts."""
    free = open_stream(device).bytes_free()
    return None if free is None else max(0, int(free * (1 - SCRATCH_SHARE)) - weight_bytes)


def estimate_weight_bytes(file: ModelFile, device: torch.device, precision: Precision) -> int:
    """About what the weights will take on the device, from the file's headers."""
    element_bytes = FLOAT_BYTES if precision == "float32" else BFLOAT_BYTES
    total = 0.0
    for tensor in file.tensors.values():
        stays = precision == "compact" and len(tensor.shape) > 1 and tensor.name != EMBEDDING
        small = stays and takes_int4(tensor.type_name, tensor.shape[-2], tensor.shape[-1], device)
        total += tensor.elements * (INT4_ELEMENT_BYTES if small else element_bytes)
    return int(total)


def _needs(file: ModelFile, decoder: Decoder, context: int, specification: LoadSpecification) -> str:
    pages = -(-context // PAGE_POSITIONS) * specification.sequences_max + EXTRA_PAGES
    states = pages * PAGE_POSITIONS * kv_shape(decoder).bytes_per_position
    weights = sum(tensor.nbytes for tensor in file.tensors.values())
    return (
        f"weights take from {weights >> 20} MiB on and the states of {specification.sequences_max} sequences {states >> 20} MiB"
    )


def _never(decoder: Decoder, device: torch.device, graphs: bool, capture: CaptureWork | None) -> str:
    """Why nothing is captured; empty if decode steps are."""
    if not graphs:
        return "graphs are off"
    if device.type == "cpu" and capture is None:
        return NO_GRAPHS
    return MIXTURE if any(decoder.expert_layers) else ""


def _described(device: torch.device, precision: Precision, weights: DeviceWeights, kv_type: str) -> str:
    """For `EngineInfo.kernels`."""
    if precision == "float32":
        forms = "float32"
    elif weights.int4_matrices:
        forms = "4-bit weights as int4 with scales rounded to bfloat16, the others rounded to bfloat16"
    else:
        forms = "weights rounded to bfloat16"
    return f"torch on {device_name(device)}: {forms}; attention math over states in {kv_type}"
