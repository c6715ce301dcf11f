"""The one place that decides how a model on disk is read: GGUF or SafeTensors, by what is there and not by its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tripower.backends.gguf.layout import TensorInfo
from tripower.backends.gguf.metadata import MetadataValue

if TYPE_CHECKING:
    from tripower.runtime.engine.contract import TextLayer


class ModelFile(Protocol):
    """What every reader shows: GGUF's metadata keys, tensor names, shapes and bytes. `GgufFile` and `Checkpoint` are such."""

    @property
    def path(self) -> Path: ...

    @property
    def metadata(self) -> Mapping[str, MetadataValue]: ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def tensor(self, name: str) -> TensorInfo:
        """Shape and type; `ModelRefused` (`missing_tensor`) if there is none of this name."""

    def data(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes, uint8 [nbytes], without a copy where that can be; blocks on page faults while it is used."""

    def read(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes, uint8 [nbytes], as a copy: safe against a file that is cut short meanwhile. Blocks."""

    def changed(self) -> bool:
        """Whether the path no longer leads to the same, untouched bytes."""

    def close(self) -> None:
        """Give up descriptors and maps; idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def open_model(path: Path | str) -> ModelFile:
    """Open and check a GGUF file, or a checkpoint by its folder or one of its weight files. Blocks while headers are read.

    Raises `ModelRefused`: those of `open_gguf` or of `open_checkpoint`.
    """
    path = Path(path)
    if is_checkpoint(path):
        from tripower.backends.safetensors.checkpoint import open_checkpoint

        return open_checkpoint(path)
    from tripower.backends.gguf.reader import open_gguf

    return open_gguf(path)


def is_complete_checkpoint(path: Path) -> bool:
    """Whether there is a configuration beside the weights: a lone weight file is no model. Blocks for a small read."""
    return is_checkpoint(path) and ((path if path.is_dir() else path.parent) / "config.json").is_file()


def is_checkpoint(path: Path) -> bool:
    """Whether a path is a folder, or a file that begins as SafeTensors files do. Blocks for a small read."""
    if path.is_dir():
        return True
    try:
        if not path.is_file():  # a pipe must not block the open
            return False
        with path.open("rb") as file:
            head = file.read(9)
    except (OSError, ValueError):  # the reader will say what is wrong
        return False
    return head[:4] != b"GGUF" and head[8:] == b"{"


def make_text_layer(file: ModelFile) -> TextLayer:
    """The tokenizer and templates of a model. Raises `ModelRefused`. Blocks for a second or two if there are many tokens."""
    # late: who only wants an engine needs no tokenizer library
    from tripower.backends.safetensors.checkpoint import Checkpoint

    if isinstance(file, Checkpoint):
        from tripower.backends.text.tokenizer_json.layer import CheckpointTextLayer

        return CheckpointTextLayer(file)
    from tripower.backends.text.layer import GgufTextLayer

    return GgufTextLayer(file)
