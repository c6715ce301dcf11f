"""What tests of checkpoints share: changed files, engines over them, and what transformers computes."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from tripower.backends.model_file import open_model
from tripower.backends.picolm.architectures import find_architecture
from tripower.backends.picolm.backend import plan_load
from tripower.backends.picolm.engine import PicolmEngine
from tripower.backends.picolm.torch_model import TorchModel
from tripower.backends.picolm.weights import check_weights, read_weights
from tripower.backends.safetensors.checkpoint import open_checkpoint
from tripower.runtime.engine import LoadSpecification
from tripower.runtime.kernel.errors import ModelRefused

Result = TypeVar("Result")


def edit_json(path: Path, changes: dict[str, Any]) -> None:
    """Replace fields of a JSON object; None removes one."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def specification_for(path: Path) -> LoadSpecification:
    return LoadSpecification(
        name="m", source=str(path), context=0, sequences_max=1, state_bytes_max=1 << 28, threads=0, prefill_chunk=64
    )


def reference_engine(path: Path) -> PicolmEngine:
    """picolm's float32 reference over the folder."""
    with open_model(path) as file:
        plan = plan_load(file, specification_for(path))
        weights = result_of(read_weights(file, plan.wanted, lambda done: None))
    return PicolmEngine(TorchModel(plan.decoder, weights), context_max=plan.context, sequences_max=1)


def result_of(loading: Generator[None, None, Result]) -> Result:
    """Run a load to its end."""
    while True:
        try:
            next(loading)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return] # a StopIteration does not say what it carries


def logits(engine: Any, ids: list[int]) -> Any:
    """Of every position, float32 [positions, vocabulary]; closes the engine."""
    engine.open_sequence(0)
    try:
        return engine.logits(0, ids)
    finally:
        engine.close()


def reference_logits(transformers: Any, path: Path, ids: list[int]) -> Any:
    """What transformers computes in float32, [positions, vocabulary]."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].numpy()


def relative_difference(found: Any, expected: Any) -> float:
    """The largest absolute difference over the largest absolute value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def open_and_check(path: Path) -> None:
    """Everything that is checked before weights are read."""
    with open_checkpoint(path) as file:
        architecture = find_architecture(file)
        check_weights(file, list(architecture.wanted(architecture.read_decoder(file))))


@contextmanager
def refused(code: str, param: str) -> Iterator[None]:
    """The block must be refused with this code, by this name."""
    with pytest.raises(ModelRefused) as caught:
        yield
    assert (caught.value.code, caught.value.param) == (code, param), caught.value.message
    assert param in caught.value.message
