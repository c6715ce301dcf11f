"""Which container a model is in: a file by its first bytes, since a name proves nothing and an error page saved as `.gguf` should be
refused at once; a folder by the configuration of a checkpoint in it.
"""

from __future__ import annotations

from pathlib import Path

from tripower.runtime.kernel.errors import ModelRefused

SAFETENSORS_HEADER_BYTES_MAX = 100 * (1 << 20)


def detect_format(path: Path, what: str) -> str:
    """`gguf` or `safetensors`. Blocks for one small read. Raises `ModelRefused` for anything else; `what` names it there."""
    if path.is_dir():
        if (path / "config.json").is_file():
            return "safetensors"
        raise ModelRefused(
            f"{what} is a folder without a config.json, so it is no SafeTensors checkpoint", code="unsupported_model_format"
        )
    with path.open("rb") as file:
        head = file.read(9)
    if head[:4] == b"GGUF":
        return "gguf"
    if len(head) == 9 and head[8:] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= SAFETENSORS_HEADER_BYTES_MAX:
        return "safetensors"
    raise ModelRefused(
        f"{what} is neither a GGUF nor a SafeTensors file, so it cannot be loaded; nothing was kept",
        code="unsupported_model_format",
    )
