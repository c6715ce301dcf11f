"""The architectures that this engine knows, by the name in `general.architecture`. A new one is a file and a line here.

A family's file reads GGUF metadata into a `Decoder` and lists the tensors that belong to it; nothing after that knows families.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from tripower.backends.gguf.metadata import require_string
from tripower.backends.model_file import ModelFile
from tripower.backends.picolm.architectures import gemma2, gemma3, llama, qwen2, qwen3, qwen3moe
from tripower.backends.picolm.decoder import Decoder
from tripower.backends.picolm.weights import Wanted
from tripower.runtime.kernel.errors import ModelRefused


class Architecture(msgspec.Struct, frozen=True):
    """What a family's file gives."""

    read_decoder: Callable[[ModelFile], Decoder]
    """Raises `ModelRefused` naming the key; reads no weights."""
    wanted: Callable[[Decoder], Iterable[Wanted]]
    """Every tensor that the file must or may have."""


ARCHITECTURES = {
    "llama": Architecture(llama.read_decoder, llama.wanted),
    "qwen2": Architecture(qwen2.read_decoder, qwen2.wanted),
    "qwen3": Architecture(qwen3.read_decoder, qwen3.wanted),
    "qwen3moe": Architecture(qwen3moe.read_decoder, qwen3moe.wanted),
    "gemma2": Architecture(gemma2.read_decoder, gemma2.wanted),
    "gemma3": Architecture(gemma3.read_decoder, gemma3.wanted),
}


def find_architecture(file: ModelFile) -> Architecture:
    """The architecture that the file names. Raises `ModelRefused` (`unsupported_architecture`)."""
    name = require_string(file.metadata, "general.architecture")
    if name not in ARCHITECTURES:
        raise ModelRefused(
            f"the architecture {name!r} is not supported; known are {', '.join(sorted(ARCHITECTURES))}",
            code="unsupported_architecture",
            param="general.architecture",
        )
    return ARCHITECTURES[name]
