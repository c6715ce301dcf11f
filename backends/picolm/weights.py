"""Weights out of a GGUF file: an architecture says which tensors it wants, this module checks them all and then reads them.

Checked before anything is allocated, and refused by the tensor's name: one is missing, has another shape, is of a type that cannot
be computed with, or is there although the architecture does not know it (computing without it would be a different model).

Weights are copied out of the file as float32, so a file that is replaced later does no harm to a loaded model; one that changes
*while* it is read is refused. Matrices stay as they are stored, [outputs, inputs], rows contiguous. Tensors that share an input are
stacked by rows into one weight, so that a step reads them in one product; the values are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import msgspec
import torch

from tripower.backends.gguf.dequantise import check_dequantisable, dequantise
from tripower.backends.model_file import ModelFile
from tripower.runtime.kernel.errors import ModelRefused

Weights = dict[str, torch.Tensor]


class Wanted(msgspec.Struct, frozen=True):
    """A tensor that an architecture reads."""

    name: str
    shape: tuple[int, ...]
    into: str = ""
    """The weight that it becomes rows of, in the order of the list; empty: a weight of its own."""
    optional: bool = False
    """May be absent. A weight of which some parts are absent has zeros there, one without any part does not exist."""

    @property
    def weight(self) -> str:
        return self.into or self.name


def check_weights(file: ModelFile, wanted: Sequence[Wanted]) -> None:
    """Compare the file with the list; allocates nothing. Raises `ModelRefused` naming the tensor."""
    for item in wanted:
        if item.optional and item.name not in file.tensors:
            continue
        tensor = file.tensor(item.name)
        check_dequantisable(tensor)
        if tensor.shape != item.shape:
            raise ModelRefused(
                f"tensor {item.name} has the shape {tensor.shape} where {item.shape} is expected",
                code="bad_shape",
                param=item.name,
            )
    for name in file.tensors.keys() - {item.name for item in wanted}:
        raise ModelRefused(
            f"tensor {name} is not part of the architecture as it is known here", code="unknown_tensor", param=name
        )


def read_weights(
    file: ModelFile, wanted: Sequence[Wanted], progress: Callable[[float], None]
) -> Generator[None, None, Weights]:
    """Read a checked list; yields after each tensor, returns the weights, float32, by name. Blocks for each tensor."""
    rows_of = {item.weight: 0 for item in wanted}
    start_of: dict[str, int] = {}
    for item in wanted:
        start_of[item.name] = rows_of[item.weight]
        rows_of[item.weight] += item.shape[0]
    present = [item for item in wanted if item.name in file.tensors]
    weights: Weights = {}
    done, total = 0, sum(file.tensors[item.name].elements for item in present)
    for item in present:
        values = torch.from_numpy(dequantise(file, item.name))
        _place(weights, item, values, start_of[item.name], rows_of[item.weight])
        done += values.numel()
        progress(done / total)
        yield
    return weights


def source_changed(file: ModelFile) -> ModelRefused:
    """What to raise when a file turns out to be another one than it was."""
    return ModelRefused(
        f"{file.path} was replaced while it was loaded: load it again", code="source_changed", param=str(file.path)
    )


def _place(weights: Weights, item: Wanted, values: torch.Tensor, start: int, rows: int) -> None:
    """Make `values` rows of their weight from `start` on; of one with `rows` rows in all."""
    if len(values) == rows:
        weights[item.weight] = values  # a weight of its own: large embeddings are not held twice
        return
    if item.weight not in weights:
        make = torch.zeros if item.optional else torch.empty
        weights[item.weight] = make(rows, *item.shape[1:], dtype=torch.float32)
    weights[item.weight][start : start + len(values)] = values
