"""A checkpoint folder, opened once, checked whole, and shown as a GGUF file is: same metadata keys, tensor names and bytes.

The folder is untrusted. Every file is read under a limit, every number in it has a range, every range of bytes must lie in its
file, and whatever is wrong is a `ModelRefused` whose `param` names file and field as the checkpoint spells them. Opening reads
headers and small files only; weights are touched when `data` or `read` is called, and one tensor at a time is converted (see
`views`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tripower.backends.gguf.layout import TensorInfo
from tripower.backends.gguf.metadata import MetadataValue
from tripower.backends.safetensors.documents import read_document, read_object, refuse
from tripower.backends.safetensors.families import find_family
from tripower.backends.safetensors.fields import Fields
from tripower.backends.safetensors.header import StoredTensor
from tripower.backends.safetensors.keys import (
    read_config,
    read_experts,
    read_head_size,
    read_heads,
    read_kv_heads,
    read_sampling,
)
from tripower.backends.safetensors.shards import SINGLE, Shard, open_shards
from tripower.backends.safetensors.views import ROPE_FACTORS, Attention, View, factors_view, plan_views
from tripower.runtime.kernel.errors import ModelRefused

CONFIG = "config.json"
GENERATION = "generation_config.json"


class Checkpoint:
    """An open checkpoint. Use as a context manager. The interface is that of `backends.gguf.reader.GgufFile`."""

    def __init__(self, folder: Path, config: Fields, generation: Fields, shards: list[Shard]) -> None:
        self.path = folder
        self._shards = shards
        self._places = {tensor.name: shard for shard in shards for tensor in shard.tensors.values()}
        family = find_family(config)
        rows = config.integer("vocab_size", 1)
        self.end_token_ids = read_end_tokens(config, rows) | read_end_tokens(generation, rows)
        """What the two configurations call the end, as ids that the vocabulary has."""
        self.metadata: dict[str, MetadataValue]
        self.metadata, rope = read_config(config, family)
        self.metadata |= read_sampling(generation)
        self._views = plan_views(
            _stored(shards),
            family,
            Attention(read_heads(config), read_kv_heads(config), read_head_size(config)),
            experts=read_experts(config) if family.experts else 0,
            tied=config.flag("tie_word_embeddings", default=family.tied),
        )
        if rope.factors is not None:
            self._views[ROPE_FACTORS] = factors_view(rope.factors)
        self.tensors: dict[str, TensorInfo] = {name: view.info for name, view in self._views.items()}

    def tensor(self, name: str) -> TensorInfo:
        """Shape and type of a tensor; `ModelRefused` (`missing_tensor`) if there is none of this name.

        `offset` is that of its first stored byte in whichever file has it.
        """
        return self._view(name).info

    def data(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes, uint8 [nbytes]: a read-only view of the map, or a copy of what is converted or not aligned. Blocks.

        Raises `ModelRefused` (`missing_tensor`, `source_changed`).
        """
        view = self._view(name)
        if view.made is not None or view.is_converted or view.info.offset % view.info.block_bytes:
            return self.read(name)
        [part] = view.parts
        return self._places[part.name].view(part)

    def read(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes, uint8 [nbytes], as a copy: a file cut short meanwhile is `source_changed`, not a crash. Blocks."""
        view = self._view(name)
        if view.made is not None:
            return view.made.copy()
        stored = np.empty(sum(part.nbytes for part in view.parts), np.uint8)
        done = 0
        for part in view.parts:
            self._places[part.name].read_into(part, stored[done : done + part.nbytes])
            done += part.nbytes
        return view.convert(stored)

    def document(self, name: str) -> bytes | None:
        """One of the small files beside the weights; None where there is none. Blocks. Raises `ModelRefused`."""
        return read_document(self.path, name)

    def changed(self) -> bool:
        """Whether a path no longer leads to the same, untouched weights. Blocks for a system call or two for each file."""
        return any(shard.changed() for shard in self._shards)

    def close(self) -> None:
        """Give up descriptors and maps; idempotent. Views that still exist keep their map until they are gone."""
        for shard in self._shards:
            shard.close()

    def _view(self, name: str) -> View:
        if name not in self._views:
            raise ModelRefused(f"the checkpoint has no tensor {name}", code="missing_tensor", param=name)
        return self._views[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open and check the checkpoint in a folder, or the one that a weight file belongs to. Blocks while headers are read.

    Raises `ModelRefused`: `not_found`, `missing_file`, `unreadable`, `unsupported_architecture`, `unsupported_model`,
    `missing_key`, `missing_tensor`, `bad_shape`, `unknown_tensor`, and those of `decode_object` and `read_header`.
    """
    path = Path(path)
    if not path.exists():
        raise ModelRefused(f"there is no model {path}", code="not_found", param=str(path))
    folder, single = (path, SINGLE) if path.is_dir() else (path.parent, path.name)
    config = read_config_fields(folder)
    generation = Fields(read_object(folder, GENERATION) or {}, GENERATION)
    find_family(config)  # the kind of model is refused before its weights are looked at
    shards = open_shards(folder, single)
    try:
        return Checkpoint(folder, config, generation, shards)
    except BaseException:
        for shard in shards:
            shard.close()
        raise


def read_config_fields(folder: Path) -> Fields:
    """`config.json`. Raises `ModelRefused` (`missing_file`, …)."""
    values = read_object(folder, CONFIG)
    if values is None:
        raise ModelRefused(f"{folder} has no {CONFIG}, so it is no checkpoint", code="missing_file", param=CONFIG)
    return Fields(values, CONFIG)


def read_end_tokens(fields: Fields, size: int) -> frozenset[int]:
    """`eos_token_id`: an id or a list of ids, each below `size`. Raises `ModelRefused`."""
    stated = fields.values.get("eos_token_id", [])
    ids = stated if isinstance(stated, list) else [stated]
    if not all(type(each) is int and 0 <= each < size for each in ids):
        raise refuse("bad_value", fields.field("eos_token_id"), "is neither an id of the vocabulary nor a list of ids")
    return frozenset(ids)


def _stored(shards: list[Shard]) -> Mapping[str, StoredTensor]:
    return {name: tensor for shard in shards for name, tensor in shard.tensors.items()}
