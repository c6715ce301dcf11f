"""What one step has to read and to multiply, whatever the engine: from a model file's tensor list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tripower.backends.gguf.layout import TensorInfo
from tripower.backends.gguf.reader import GgufFile

EMBEDDING, HEAD = "token_embd.weight", "output.weight"


class StepWork(msgspec.Struct, frozen=True):
    """Of all matrix products of a step; attention over earlier positions comes on top."""

    weight_bytes: int
    """In the file's own encoding, once, however many rows there are."""
    multiply_adds: int
    """For each row."""


def step_work(file: GgufFile) -> StepWork:
    """A tied embedding counts as the head; one that is not tied is only looked up. Of experts, those that a row uses count."""
    return work_of(file.tensors.values(), file.metadata)


def work_of(tensors: Iterable[TensorInfo], metadata: Mapping[str, object]) -> StepWork:
    """The same for tensors that are at hand."""
    known = {tensor.name: tensor for tensor in tensors}
    if HEAD in known:
        known.pop(EMBEDDING, None)
    share = _used_experts(metadata)
    matrices = [(tensor, share if len(tensor.shape) > 2 else 1.0) for tensor in known.values() if len(tensor.shape) > 1]
    return StepWork(
        weight_bytes=round(sum(tensor.nbytes * part for tensor, part in matrices)),
        multiply_adds=round(sum(tensor.elements * part for tensor, part in matrices)),
    )


def _used_experts(metadata: Mapping[str, object]) -> float:
    architecture = metadata.get("general.architecture")
    used, count = (metadata.get(f"{architecture}.expert{key}") for key in ("_used_count", "_count"))
    return used / count if isinstance(used, int) and isinstance(count, int) and count else 1.0
