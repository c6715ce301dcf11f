"""A model made resident in this process, without actors: for benches of the engine itself.

Whoever loads an engine runs it, on the same thread: that is part of the contract of engines.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tripower.runtime.engine import LoadedModel, LoadSpecification, TextLayer
from tripower.runtime.kernel import ModelRefused

STATE_BYTES_MAX = 1 << 36
"""More than a bench asks for: what is taken follows from the context and the number of sequences."""
PREFILL_ROWS = 256

Result = TypeVar("Result")


class LogitsEngine(Protocol):
    """An engine that shows what it would draw from."""

    def open_sequence(self, sequence: int) -> None: ...

    def logits(self, sequence: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens to a sequence; the logits of all of them, float32 [tokens, vocabulary]."""


class Engines(NamedTuple):
    """What a bench of fidelity compares: the engine that serves, and the one that is right by definition."""

    ours: LogitsEngine
    reference: LogitsEngine
    text: TextLayer


def load_model(path: Path, *, context: int, sequences: int, threads: int) -> LoadedModel:
    """The model as `tripower serve` would load it. Blocks for seconds; raises `ModelRefused`."""
    from tripower.backends.picolm.backend import PicolmBackend

    wanted = _specification(path, context=context, sequences=sequences, threads=threads)
    *_, loaded = PicolmBackend().load(wanted, lambda stage, done: None)
    assert loaded is not None, "a load ends with its model"
    return loaded


def load_reference(path: Path, *, context: int) -> LogitsEngine:
    """The plain engine over the file's dequantised values, in float32, whatever the backend would choose. Blocks for seconds.

    Raises `ModelRefused`.
    """
    from tripower.backends.model_file import open_model
    from tripower.backends.picolm.backend import plan_load
    from tripower.backends.picolm.engine import PicolmEngine
    from tripower.backends.picolm.torch_model import TorchModel
    from tripower.backends.picolm.weights import read_weights

    with open_model(str(path)) as file:
        plan = plan_load(file, _specification(path, context=context, sequences=1, threads=0))
        weights = _result(read_weights(file, plan.wanted, lambda done: None))
    return PicolmEngine(TorchModel(plan.decoder, weights), context_max=context, sequences_max=1)


def open_engines(path: Path, *, context: int, threads: int) -> Engines:
    """Our engine and the float32 reference. Blocks for seconds; raises `ModelRefused`. Sequence 0 is free in either."""
    loaded = load_model(path, context=context, sequences=1, threads=threads)
    if not hasattr(loaded.engine, "logits"):
        raise ModelRefused(f"the engine {loaded.engine.info.backend} does not show its logits")
    ours: Any = loaded.engine
    return Engines(ours, load_reference(path, context=context), loaded.text)


def _specification(path: Path, *, context: int, sequences: int, threads: int) -> LoadSpecification:
    return LoadSpecification(
        name=path.stem,
        source=str(path),
        context=context,
        sequences_max=sequences,
        state_bytes_max=STATE_BYTES_MAX,
        threads=threads,
        prefill_chunk=PREFILL_ROWS,
    )


def _result(work: Generator[None, None, Result]) -> Result:
    """Run a generator to its end; what it returns."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return] # a StopIteration does not say what it carries
