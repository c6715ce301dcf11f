"""The same model in another encoding, so that engines can be compared on the encoding that the other one likes best.

llama.cpp has its fastest kernels for Q4_0. A published file in Q4_1 is therefore read with the `gguf` package, its matrices are
dequantised and quantised again by the package's reference arithmetic, and everything else is copied: metadata as it is (but for the
number that names the encoding), norms as they are, the embedding as it is, since both engines read it in Q8_0 anyway. Quality is not
the point: both engines get the same file.

The result is kept under the store's home, named by the digest of its source, and is complete before it gets that name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tripower.runtime.kernel import InvalidConfiguration
from tripower.runtime.store import FileLock, home_directory
from tripower.runtime.store.durable import publish_file

ENCODINGS = ("Q4_0", "Q8_0")
"""What can be asked for: encodings that the package can write."""
KEPT = ("token_embd.weight",)
"""Matrices that stay as they are."""
RECIPE = 1
"""Changes when the same source would give another file."""
LOCK_SECONDS = 600.0

Share = Callable[[float], None]
"""Called with the fraction that is done, 0 to 1."""


def requantised(source: Path, encoding: str, *, home: Path | None = None, progress: Share = lambda done: None) -> Path:
    """The file of `source` in `encoding`, made when it is not in the cache. Blocks, for some seconds when it has to be made.

    Raises `InvalidConfiguration` for an encoding that cannot be written, `StoreBusy` when another process makes it for too long,
    `OSError` when the disk is full.
    """
    if encoding not in ENCODINGS:
        raise InvalidConfiguration(f"a model can be re-encoded as {' or '.join(ENCODINGS)}, not as {encoding}")
    folder = (home or home_directory()) / "bench"
    final = folder / f"{_digest(source)}-{encoding.lower()}-{RECIPE}.gguf"
    if final.exists():
        return final
    with FileLock(folder / "requantise.lock", f"re-encoding {source.name}").held(wait_seconds=LOCK_SECONDS):
        if not final.exists():
            _make(source, final, encoding, progress)
    return final


def _digest(source: Path) -> str:
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _make(source: Path, final: Path, encoding: str, progress: Share) -> None:
    temporary = final.with_name(f"{final.name}.{os.getpid()}.new")
    try:
        write_requantised(source, temporary, encoding, progress)
        publish_file(temporary, final)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_requantised(source: Path, target: Path, encoding: str, progress: Share) -> None:
    """Write `source` to `target` with every matrix but the kept ones in `encoding`. Blocks.

    Raises `ValueError` for metadata that the `gguf` package cannot write, such as an empty array.
    """
    import gguf  # late: a tenth of a second

    reader = gguf.GGUFReader(source)
    kind = gguf.GGMLQuantizationType[encoding]
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    try:
        writer.data_alignment = reader.alignment
        _copy_metadata(reader, writer, int(gguf.LlamaFileType[f"MOSTLY_{encoding}"]))
        for tensor in reader.tensors:
            _announce(writer, tensor, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        done, total = 0, sum(tensor.n_elements for tensor in reader.tensors)
        for tensor in reader.tensors:
            writer.write_tensor_data(_encoded(tensor, kind))
            done += int(tensor.n_elements)
            progress(done / total)
    finally:
        writer.close()


def _copy_metadata(reader: Any, writer: Any, file_type: int) -> None:
    """Every key with its value and type, in order; the architecture is the writer's own first key."""
    import gguf

    for field in reader.fields.values():
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        value = file_type if field.name == "general.file_type" else field.contents()
        writer.add_key_value(field.name, value, field.types[0], sub_type=field.types[-1] if is_array else None)


def _announce(writer: Any, tensor: Any, kind: Any) -> None:
    import gguf

    if not _changes(tensor, kind):
        writer.add_tensor_info(tensor.name, tensor.data.shape, tensor.data.dtype, tensor.data.nbytes, tensor.tensor_type)
        return
    import numpy as np

    shape = gguf.quants.quant_shape_to_byte_shape([int(size) for size in reversed(tensor.shape)], kind)
    writer.add_tensor_info(tensor.name, shape, np.dtype(np.uint8), int(np.prod(shape)), kind)


def _encoded(tensor: Any, kind: Any) -> Any:
    """A tensor's bytes as they are to be written."""
    import gguf

    if not _changes(tensor, kind):
        return tensor.data
    return gguf.quants.quantize(gguf.quants.dequantize(tensor.data, tensor.tensor_type), kind)


def _changes(tensor: Any, kind: Any) -> bool:
    """Whether a tensor is a matrix that is not kept and whose rows hold whole blocks of the encoding."""
    import gguf

    block, _ = gguf.GGML_QUANT_SIZES[kind]
    return len(tensor.shape) == 2 and tensor.name not in KEPT and int(tensor.shape[0]) % block == 0
