"""A model's weights as the native path holds them: matrices packed into strips, vectors as float32.

Which of a file's tensors the kernels cannot take is known before anything is read (`why_not`), so the choice between this path and
torch is made once, at the beginning, and with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from tripower.backends.gguf.dequantise import dequantise
from tripower.backends.model_file import ModelFile
from tripower.backends.picolm.decoder import EMBEDDING, HEAD, Decoder
from tripower.backends.picolm.native.kernels.attention.kernel import supports
from tripower.backends.picolm.native.kernels.weights.formats import BLOCK, FORMATS, FloatFormat, Format
from tripower.backends.picolm.native.kernels.weights.packing import Packed, pack_in_steps, packed_bytes
from tripower.backends.picolm.native.memory import zeros
from tripower.backends.picolm.native.target import Target
from tripower.backends.picolm.weights import Wanted

Vector = NDArray[np.float32]
LANES_MAX = 16
"""Each expert's outputs are whole strips, whatever the width of the vectors."""


class NativeModel(msgspec.Struct):
    """What the program is built from. `matrices` by tensor name; of experts one matrix with the experts' outputs one after another."""

    decoder: Decoder
    matrices: dict[str, Packed]
    vectors: dict[str, Vector]
    parameters: int

    @property
    def nbytes(self) -> int:
        """Bytes of all weights in memory."""
        return sum(each.nbytes for each in self.matrices.values()) + sum(each.nbytes for each in self.vectors.values())

    @property
    def head(self) -> Packed:
        """The matrix that makes logits: the embedding where the file has no head of its own."""
        return self.matrices.get(HEAD, self.matrices[EMBEDDING])

    def formats(self) -> set[str]:
        """Names of the weight types in use."""
        return {each.format.name for each in self.matrices.values()}


def why_not(file: ModelFile, decoder: Decoder, wanted: Iterable[Wanted]) -> str:
    """Why the kernels cannot run this model, in words; empty if they can. Allocates nothing."""
    if not supports(decoder.head_size):
        return f"heads of {decoder.head_size} elements"
    for item in wanted:
        if len(item.shape) < 2 or item.name not in file.tensors:
            continue
        tensor = file.tensors[item.name]
        form = FORMATS.get(tensor.type_name)
        if form is None:
            return f"weights of the type {tensor.type_name} ({item.name})"
        if len(item.shape) > 2 and item.shape[1] % LANES_MAX:
            return f"experts of {item.shape[1]} outputs ({item.name})"
        if isinstance(form, Format) and item.shape[-1] % BLOCK:
            return f"rows of {item.shape[-1]} elements ({item.name})"
    return ""


def read_native_model(
    file: ModelFile, decoder: Decoder, wanted: Iterable[Wanted], target: Target, progress: Callable[[float], None]
) -> Generator[None, None, NativeModel]:
    """Read and repack a checked list of tensors; yields at boundaries, a few megabytes apart. Blocks between them.

    All matrices lie in one block of memory in the order in which a step reads them, since kernels ask for weights ahead of use.
    """
    present = _in_order_of_use([item for item in wanted if item.name in file.tensors])
    total = sum(file.tensors[item.name].nbytes for item in present)
    model = NativeModel(decoder, {}, {}, sum(file.tensors[item.name].elements for item in present))
    sizes = [_packed_bytes(file, item, target) for item in present]
    memory = zeros(sum(sizes), np.uint8)
    done = first = 0
    for item, size in zip(present, sizes, strict=True):
        if not size:
            model.vectors[item.name] = np.ascontiguousarray(dequantise(file, item.name))
            done += file.tensors[item.name].nbytes
            continue
        tensor = file.tensors[item.name]
        raw = file.read(item.name).reshape(_outputs(item), -1)
        packed, steps = pack_in_steps(tensor.type_name, raw, item.shape[-1], target, memory[first : first + size])
        for read in steps:
            done += read
            progress(done / total)
            yield
        model.matrices[item.name] = packed
        first += size
    return model


def _in_order_of_use(items: list[Wanted]) -> list[Wanted]:
    """The embedding last: as the head it is read last, and as an embedding only by the row."""
    return sorted(items, key=lambda item: item.name == EMBEDDING)


def _outputs(item: Wanted) -> int:
    """Rows of a matrix; of experts, of all together."""
    return int(np.prod(item.shape[:-1]))


def _packed_bytes(file: ModelFile, item: Wanted, target: Target) -> int:
    """What a matrix takes; 0 for a vector, which is not packed."""
    if len(item.shape) < 2:
        return 0
    return packed_bytes(file.tensors[item.name].type_name, _outputs(item), item.shape[-1], target)


def is_float(packed: Packed) -> bool:
    """Whether a matrix is multiplied with float32 rows rather than with quantised ones."""
    return isinstance(packed.format, FloatFormat)
