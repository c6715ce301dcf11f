"""The architectures that this engine knows, by the name in `general.architecture`. A new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
import torch

from tripower.backends.gguf.metadata import require_string
from tripower.backends.gguf.reader import GgufFile
from tripower.backends.picolm import gemma3, llama
from tripower.backends.picolm.attention import Batch
from tripower.backends.picolm.hyperparameters import Hyperparameters
from tripower.backends.picolm.weights import Wanted, Weights
from tripower.runtime.kernel.errors import ModelRefused


class Model(Protocol):
    """A resident model."""

    shape: Hyperparameters

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits of the rows `batch.drawn`, float32 [drawn, vocabulary]; keys and values of all rows go to their pages."""


class Architecture(msgspec.Struct, frozen=True):
    """What an architecture's file gives: how to read its shape, which tensors it wants, how to put them together."""

    read_hyperparameters: Callable[[GgufFile], Hyperparameters]
    wanted: Callable[[Hyperparameters], Iterable[Wanted]]
    build: Callable[[Hyperparameters, Weights], Model]


ARCHITECTURES = {
    "llama": Architecture(llama.read_hyperparameters, llama.wanted, llama.Model),
    "gemma3": Architecture(gemma3.read_hyperparameters, gemma3.wanted, gemma3.Model),
}


def find_architecture(file: GgufFile) -> Architecture:
    """The architecture that the file names. Raises `ModelRefused` (`unsupported_architecture`)."""
    name = require_string(file.metadata, "general.architecture")
    if name not in ARCHITECTURES:
        raise ModelRefused(
            f"the architecture {name!r} is not supported; known are {', '.join(sorted(ARCHITECTURES))}",
            code="unsupported_architecture",
            param="general.architecture",
        )
    return ARCHITECTURES[name]
