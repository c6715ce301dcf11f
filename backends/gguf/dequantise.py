"""Tensors as float32, by the `gguf` package's reference arithmetic: slow, exact, and what every kernel is checked against."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tripower.backends.gguf.layout import TensorInfo
from tripower.backends.gguf.types import DEQUANTISABLE
from tripower.backends.model_file import ModelFile
from tripower.runtime.kernel.errors import ModelRefused


def dequantise(file: ModelFile, name: str) -> NDArray[np.float32]:
    """A tensor's values, float32 in its canonical shape; a fresh array that does not keep the file mapped.

    Blocks for the read and the arithmetic. Raises `ModelRefused`: `missing_tensor`, `source_changed`,
    `unsupported_tensor_type`.
    """
    tensor = file.tensor(name)
    check_dequantisable(tensor)
    return dequantise_bytes(tensor, file.read(name))


def check_dequantisable(tensor: TensorInfo) -> None:
    """Raise `ModelRefused` (`unsupported_tensor_type`), naming tensor and type; allocates nothing."""
    if tensor.type_name not in DEQUANTISABLE:
        raise ModelRefused(
            f"tensor {tensor.name} has the type {tensor.type_name}, which is not supported",
            code="unsupported_tensor_type",
            param=tensor.name,
        )


def dequantise_bytes(tensor: TensorInfo, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The same for bytes that are already at hand, uint8 [nbytes]."""
    match tensor.type_name:
        case "F32":
            values = data.view("<f4").astype(np.float32, copy=False)
        case "F16":
            values = data.view("<f2").astype(np.float32)
        case _:
            values = _reference(tensor, data)
    return values.reshape(tensor.shape)


def _reference(tensor: TensorInfo, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    # imported late: the package reads tables for every architecture it knows, a tenth of a second
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    rows = data.reshape(-1, tensor.row_bytes)
    with np.errstate(all="ignore"):  # a hostile scale may be infinite; the engine checks its results
        values: NDArray[np.float32] = dequantize(rows, GGMLQuantizationType(tensor.type_id))
    return values
