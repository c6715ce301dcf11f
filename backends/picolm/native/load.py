"""Makes a model resident in the native path: weights, tiles, code, certificate, in this order, a boundary after each piece."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeVar

from msgspec import convert

from tripower.backends.beside import beside
from tripower.backends.model_file import ModelFile
from tripower.backends.picolm.decoder import Decoder
from tripower.backends.picolm.native.calibrate import calibrate
from tripower.backends.picolm.native.certificate import Certifiable, certify
from tripower.backends.picolm.native.engine import NativeEngine
from tripower.backends.picolm.native.kernel_set import KernelSet
from tripower.backends.picolm.native.kernels.attention.kv import KvElement
from tripower.backends.picolm.native.linear_code import linear_code
from tripower.backends.picolm.native.model import NativeModel, read_native_model
from tripower.backends.picolm.native.program import Program
from tripower.backends.picolm.native.row_costs import measure_row_costs
from tripower.backends.picolm.native.target import Target, host_target
from tripower.backends.picolm.native.tiles import TileTable
from tripower.backends.picolm.weights import Wanted, source_changed
from tripower.runtime.engine import EngineInfo, LoadSpecification

ROWS_MAX = 2048
"""Rows of a step at most, beyond which more of them make nothing faster; the number of tiles of a stage is bounded as well."""


T = TypeVar("T")


def load_native(
    file: ModelFile,
    decoder: Decoder,
    wanted: Sequence[Wanted],
    context: int,
    specification: LoadSpecification,
    progress: Callable[[str, float], None],
    kv_type: str,
) -> Generator[None, None, NativeEngine]:
    """Yield at boundaries and return the engine. Raises `ModelRefused`; a failure frees everything."""
    target, element = host_target(), convert(kv_type, KvElement)
    names = {file.tensors[item.name].type_name for item in wanted if len(item.shape) > 1 and item.name in file.tensors}
    _, model = yield from beside(
        lambda: _compile(decoder, names, target, element),
        read_native_model(file, decoder, wanted, target, lambda done: progress("weights", done)),
        on_wait=lambda: progress("code", 0.0),
    )
    if file.changed():
        raise source_changed(file)
    identity = (str(file.path.name), model.parameters, model.nbytes)
    tiles = yield from telling(progress, "tiles", calibrate(model, target))
    kernels = KernelSet(decoder, tiles, target, element)
    engine = _make_engine(model, tiles, kernels, target, context, specification, element)
    try:
        yield
        yield from telling(progress, "certificate", _certify(engine, identity, target, context, specification))
        key = (identity, engine.program_key, target, specification.threads, engine.verify_rows_max)
        engine.take_row_costs((yield from telling(progress, "costs", measure_row_costs(engine, key))))
    except BaseException:
        engine.close()
        raise
    return engine


def telling(progress: Callable[[str, float], None], stage: str, work: Generator[None, None, T]) -> Generator[None, None, T]:
    """Say at each boundary of `work` that this stage lasts."""
    while True:
        progress(stage, 0.0)
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            yield
        except GeneratorExit:
            work.close()
            raise


def _compile(decoder: Decoder, names: Iterable[str], target: Target, element: KvElement) -> None:
    """Make all code that the model needs, so that it is there when it is asked for."""
    for name in sorted(names):
        linear_code(name, target)
    KernelSet(decoder, {}, target, element)


def _make_engine(
    model: NativeModel,
    tiles: TileTable,
    kernels: KernelSet,
    target: Target,
    context: int,
    specification: LoadSpecification,
    element: KvElement,
) -> NativeEngine:
    threads = max(specification.threads, 1)
    program = Program(
        model,
        tiles,
        kernels,
        context_max=context,
        sequences_max=specification.sequences_max,
        slots_max=specification.sequences_max,
        rows_max=max(min(specification.prefill_chunk, ROWS_MAX), specification.sequences_max),
        threads=threads,
        element=element,
    )
    info = EngineInfo(
        backend="picolm",
        architecture=model.decoder.architecture,
        context_max=context,
        vocabulary_size=model.decoder.vocabulary_size,
        sequences_max=specification.sequences_max,
        parameters=model.parameters,
        weight_bytes=model.nbytes,
        state_bytes_per_token=program.pool.bytes_per_position,
        page_positions=program.pool.table.page_positions,
        pages_max=program.pool.table.pages_max,
        threads=threads,
        kernels=f"native code for {target.name}",
    )
    return NativeEngine(program, info)


def _certify(
    engine: NativeEngine, identity: tuple[object, ...], target: Target, context: int, specification: LoadSpecification
) -> Generator[None, None, None]:
    """Measure the engine's claim and put the outcome into its info."""
    subject = Certifiable(
        model=specification.name,
        target=target.name,
        threads=specification.threads,
        key=(identity, engine.program_key, target),
        rows_max=specification.sequences_max,
        vocabulary_size=engine.info.vocabulary_size,
        context_max=context,
    )
    engine.take_certificate((yield from certify(engine, subject)))
