"""The small files of a checkpoint folder: opened without blocking on a pipe, read under a limit, decoded strictly.

JSON is decoded with duplicate keys, `NaN` and numbers of absurd length refused: the usual decoders keep the last of two equal
keys, so that two readers of one file may see two different models.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tripower.runtime.kernel.errors import ModelRefused

SHOWN_CHARACTERS = 80

BYTES_MAX: Mapping[str, int] = {
    "config.json": 4 << 20,
    "generation_config.json": 1 << 20,
    "model.safetensors.index.json": 32 << 20,
    "tokenizer.json": 128 << 20,
    "tokenizer_config.json": 16 << 20,
    "special_tokens_map.json": 4 << 20,
    "chat_template.jinja": 1 << 20,
    "modules.json": 1 << 20,
    "sentence_bert_config.json": 1 << 20,
    "1_Pooling/config.json": 1 << 20,
}
"""Every file that is read, with the most bytes it may have; the largest known (Gemma's tokenizer) has a quarter of that."""


def refuse(code: str, field: str, reason: str) -> ModelRefused:
    """The refusal of a checkpoint because of one field, whose name may come from a file and is shown escaped and cut."""
    shown = shorten(field)
    return ModelRefused(f"{shown}: {reason}", code=code, param=shown)


def shorten(text: str) -> str:
    """`text` fit for a message: printable, at most `SHOWN_CHARACTERS` and a sign that it was cut."""
    shown = text if text.isprintable() else ascii(text)
    return shown if len(shown) <= SHOWN_CHARACTERS else shown[:SHOWN_CHARACTERS] + "…"


def open_regular(path: Path) -> tuple[int, os.stat_result]:
    """A descriptor for reading, which the caller closes, and its status.

    Raises `ModelRefused` (`missing_file`, `unreadable`).
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not block the open
    except FileNotFoundError as error:
        raise ModelRefused(f"{path.parent} has no {path.name}", code="missing_file", param=path.name) from error
    except (OSError, ValueError) as error:
        raise ModelRefused(f"cannot read {path}: {error}", code="unreadable", param=path.name) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ModelRefused(f"{path} is not a regular file", code="unreadable", param=path.name)
    return descriptor, status


def read_document(folder: Path, name: str) -> bytes | None:
    """The bytes of one of the files in `BYTES_MAX`; None where there is none. Blocks. Raises `ModelRefused`."""
    try:
        descriptor, status = open_regular(folder / name)
    except ModelRefused as error:
        if error.code == "missing_file":
            return None
        raise
    with open(descriptor, "rb") as file:
        limit = BYTES_MAX[name]
        if status.st_size > limit:
            raise refuse("limit_exceeded", name, f"has {status.st_size} bytes, more than {limit}")
        data = file.read(limit + 1)  # it may grow between the two calls
    if len(data) > limit:
        raise refuse("limit_exceeded", name, f"has more than {limit} bytes")
    return data


def decode_object(data: bytes, name: str) -> dict[str, Any]:
    """The JSON object in `data`.

    Raises `ModelRefused`: `invalid_utf8`, `invalid_json`, `duplicate`, `limit_exceeded`, `bad_type`.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
            raise refuse("duplicate", f"{name} {twice}", "is present twice")
        return values

    def constant(text: str) -> float:
        raise refuse("invalid_json", name, f"has the number {text}, which JSON does not know")

    try:
        value = json.loads(data.decode(), object_pairs_hook=unique, parse_constant=constant)
    except UnicodeDecodeError as error:
        raise refuse("invalid_utf8", name, "is not valid UTF-8") from error
    except RecursionError as error:
        raise refuse("limit_exceeded", name, "is nested too deeply") from error
    except ValueError as error:  # the decoder's own, and that of a number with thousands of digits
        raise refuse("invalid_json", name, f"is not valid JSON ({shorten(str(error))})") from error
    if not isinstance(value, dict):
        raise refuse("bad_type", name, "is not a JSON object")
    return value


def read_object(folder: Path, name: str) -> dict[str, Any] | None:
    """`read_document` decoded; None where there is no such file."""
    data = read_document(folder, name)
    return None if data is None else decode_object(data, name)
