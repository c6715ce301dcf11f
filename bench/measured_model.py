"""The model that a bench is about: found by its name, re-encoded if that is asked for, and told apart by its own header."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from tripower.bench.paired import Progress
from tripower.bench.requantise import ENCODINGS, requantised
from tripower.runtime.kernel import InvalidConfiguration

BAR_WIDTH = 30


class MeasuredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A GGUF file and what its header calls it."""

    path: Path
    name: str
    """Base name and size, such as `smollm2-135m`; the file's own name where the header says nothing."""
    encoding: str
    """What most matrices are stored in, such as `Q4_1` or `Q4_K_M`; `?` where the header does not say."""
    size_bytes: int
    chats: bool = False
    """Whether it has a chat template."""

    def described(self) -> dict[str, Any]:
        """For the host part of a report."""
        return {"model": self.name, "encoding": self.encoding, "file_mb": round(self.size_bytes / 1e6, 1)}


def add_model_options(parser: argparse.ArgumentParser, *, default: str | None = "smollm2") -> None:
    """`--model` and `--as`."""
    shown = f" ({default})" if default else ""
    parser.add_argument("--model", default=default, help=f"a model of the store, or a GGUF file{shown}")
    parser.add_argument(
        "--as", dest="encoding", choices=ENCODINGS, help="re-encode its matrices first; the file is kept for the next time"
    )


def find_measured_model(model: str, encoding: str | None, progress: Progress) -> MeasuredModel:
    """The file behind a model's name: pulled when it is not here, re-encoded when asked. Blocks.

    Raises `InvalidConfiguration` for the toy, which has no file, and what a pull raises.
    """
    from tripower.api.plan import is_toy
    from tripower.api.pull import ensure_model

    if is_toy(model):
        raise InvalidConfiguration(
            "the toy is a model of ours only and has no file: choose another --model, or leave out --peer"
        )
    path = ensure_model(model).resolve()
    if encoding is not None:
        path = requantised(path, encoding, progress=lambda done: progress(f"re-encoding as {encoding} {bar(done)}"))
    return describe_model(path)


def describe_model(path: Path) -> MeasuredModel:
    """Read what the header says. Blocks; raises `ModelRefused` for what is no GGUF file."""
    from tripower.backends.gguf.reader import open_gguf

    with open_gguf(path) as file:
        metadata = file.metadata
    words = [str(metadata[key]) for key in ("general.basename", "general.size_label") if metadata.get(key)]
    return MeasuredModel(
        path=path,
        name="-".join(words).lower() or path.stem,
        encoding=_encoding(metadata.get("general.file_type")),
        size_bytes=path.stat().st_size,
        chats="tokenizer.chat_template" in metadata,
    )


def _encoding(file_type: object) -> str:
    from gguf import LlamaFileType

    try:
        return LlamaFileType(file_type if isinstance(file_type, int) else -1).name.removeprefix("MOSTLY_")
    except ValueError:
        return "?"


def bar(done: float) -> str:
    """A fraction for people."""
    filled = round(done * BAR_WIDTH)
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done:4.0%}"
