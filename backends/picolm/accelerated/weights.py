"""Weights of a model file on a device, in the precision that was asked for.

`compact` keeps 4-bit matrices in 4 bits with their scales rounded to bfloat16, and rounds all others to bfloat16; `float32` dequantises
everything, for comparisons. Vectors (norms, biases, RoPE factors) are float32 in either. Tensors that share an input are stacked as
`architectures.tensors` says, so that a step reads them in one product where their forms agree.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from tripower.backends.gguf.dequantise import dequantise, dequantise_bytes
from tripower.backends.model_file import ModelFile
from tripower.backends.picolm.accelerated.device import Stream
from tripower.backends.picolm.accelerated.int4 import Int4Values, unpack_int4
from tripower.backends.picolm.accelerated.linear import Dense, Int4, Projection, Stacked, takes_int4
from tripower.backends.picolm.decoder import EMBEDDING
from tripower.backends.picolm.weights import Wanted

Precision = Literal["compact", "float32"]
ROUTER = "ffn_gate_inp"
"""Small, and a rounded score may choose another expert: it stays in float32."""
PRECISIONS: tuple[Precision, ...] = ("compact", "float32")


class DeviceWeights:
    """What a model is made of: projections, lists of them for experts, and vectors; each by the decoder's names."""

    def __init__(self) -> None:
        self.projections: dict[str, Projection] = {}
        self.experts: dict[str, list[Projection]] = {}
        self.vectors: dict[str, torch.Tensor] = {}
        self.elements = 0
        self.int4_matrices = 0

    @property
    def nbytes(self) -> int:
        """What they take on the device."""
        return (
            sum(each.nbytes for each in self.projections.values())
            + sum(each.nbytes for experts in self.experts.values() for each in experts)
            + sum(each.nbytes for each in self.vectors.values())
        )


def read_device_weights(
    file: ModelFile,
    wanted: Sequence[Wanted],
    stream: Stream,
    precision: Precision,
    progress: Callable[[float], None],
) -> Generator[None, None, DeviceWeights]:
    """Read a checked list (`check_weights`); yields after each weight. Blocks for one of them in between."""
    reader = _Reader(file, stream.device, precision)
    parts: dict[str, list[Wanted]] = {}
    for item in wanted:
        parts.setdefault(item.weight, []).append(item)
    total = sum(tensor.elements for tensor in file.tensors.values())
    # biases and other vectors first: a projection takes its bias with it
    for name, items in sorted(parts.items(), key=lambda each: len(each[1][0].shape)):
        present = [item for item in items if item.name in file.tensors]
        if not present:
            continue
        with stream.entered():  # never across a boundary: other work of the lane runs there
            reader.read(name, items)
        reader.weights.elements += sum(file.tensors[item.name].elements for item in present)
        progress(reader.weights.elements / total)
        yield
    return reader.weights


class _Reader:
    def __init__(self, file: ModelFile, device: torch.device, precision: Precision) -> None:
        self._file, self._device, self._precision = file, device, precision
        self._type = torch.float32 if precision == "float32" else torch.bfloat16
        self.weights = DeviceWeights()

    def read(self, name: str, items: Sequence[Wanted]) -> None:
        match len(items[0].shape):
            case 1:
                self.weights.vectors[name] = self._vector(items)
            case 2:
                bias = self.weights.vectors.pop(f"{name.removesuffix('.weight')}.bias", None)
                self.weights.projections[name] = self._projection(name, items, bias)
            case _:
                self.weights.experts[name] = self._experts(items[0])

    def _vector(self, items: Sequence[Wanted]) -> torch.Tensor:
        """Parts that are absent are zeros."""
        present = self._file.tensors
        parts = [
            dequantise(self._file, item.name) if item.name in present else np.zeros(item.shape, np.float32) for item in items
        ]
        return torch.from_numpy(np.concatenate(parts)).to(self._device)

    def _projection(self, name: str, items: Sequence[Wanted], bias: torch.Tensor | None) -> Projection:
        """One product where all parts have one form; the embedding is looked up as well and stays dense."""
        four_bits = [name != EMBEDDING and self._takes_int4(item) for item in items]
        if all(four_bits):
            return self._int4([self._unpack(item) for item in items], bias)
        if not any(four_bits):
            values = [dequantise(self._file, item.name) for item in items]
            return self._dense(np.concatenate(values) if len(values) > 1 else values[0], bias, exact=ROUTER in name)
        parts = [
            self._int4([self._unpack(item)], None) if small else self._dense(dequantise(self._file, item.name), None)
            for item, small in zip(items, four_bits, strict=True)
        ]
        return Stacked(parts, bias)

    def _experts(self, item: Wanted) -> list[Projection]:
        """[experts, outputs, inputs]: a projection for each."""
        tensor = self._file.tensor(item.name)
        data = self._file.read(item.name)
        if self._takes_int4(item):
            values = unpack_int4(tensor, data)
            outputs = item.shape[1]
            cuts = [slice(start, start + outputs) for start in range(0, len(values.numbers), outputs)]
            return [self._int4([Int4Values(values.numbers[cut], values.scales[cut], values.zeros[cut])], None) for cut in cuts]
        return [self._dense(expert, None) for expert in dequantise_bytes(tensor, data)]

    def _takes_int4(self, item: Wanted) -> bool:
        tensor = self._file.tensor(item.name)
        outputs, inputs = item.shape[-2:]
        if self._precision == "float32" or ROUTER in item.name:
            return False
        return takes_int4(tensor.type_name, outputs, inputs, self._device)

    def _unpack(self, item: Wanted) -> Int4Values:
        return unpack_int4(self._file.tensor(item.name), self._file.read(item.name))

    def _int4(self, parts: Sequence[Int4Values], bias: torch.Tensor | None) -> Projection:
        self.weights.int4_matrices += 1
        whole = Int4Values(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("numbers", "scales", "zeros"))
        )
        return Int4(whole, self._device, bias)

    def _dense(self, values: NDArray[np.float32], bias: torch.Tensor | None, *, exact: bool = False) -> Projection:
        kept = torch.from_numpy(np.ascontiguousarray(values))
        return Dense(kept.to(self._device, torch.float32 if exact else self._type), bias)
