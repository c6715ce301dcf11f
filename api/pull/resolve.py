"""From what a user names to a file on this machine."""

from __future__ import annotations

from pathlib import Path

import trio

from tripower.api.pull.builtin import BUILT_INS
from tripower.api.pull.progress import ProgressCallback, ignore_progress
from tripower.api.pull.pull import pull, pull_blocking
from tripower.api.pull.sources import (
    FileSource,
    Reference,
    looks_like_source,
    parse_reference,
    parse_source,
    refused,
    split_name,
)
from tripower.runtime.kernel.errors import InvalidRequest, NotFound
from tripower.runtime.store import Manifest, Store

CONFIGURATION = "config.json"
"""A model that comes with one is a checkpoint of several files."""


def resolve(reference: str, store: Store) -> Path:
    """The file that `reference` stands for, without fetching anything. Blocks for a few small reads.

    1. A path to a file, or to the folder of a checkpoint, is used where it lies, without the store.
    2. A name of the store is that model.
    3. A source, or a built-in name, is the stored model that was pulled from it.

    `NAME=` in front changes none of this. Raises `NotFound` with the command that fetches it, `InvalidRequest` for what means nothing.
    """
    _name, text = split_name(reference)
    if looks_like_source(text):
        source = parse_source(text)
        if isinstance(source, FileSource):
            return _existing(source.path)
        manifest = store.find_source(source.text)
    else:
        manifest = store.find(text)
        if manifest is None and text in BUILT_INS:
            manifest = store.find_source(parse_source(text).text)
    if manifest is not None:
        return stored_path(manifest, store)
    if looks_like_source(text) or text in BUILT_INS:
        raise NotFound(f"{text} is not on this machine yet: run `tripower pull {text}` first")
    raise _unknown(text, store)


async def obtain(reference: str, *, store: Store, progress: ProgressCallback = ignore_progress) -> Path:
    """`resolve`, and a pull when the model is not here yet. Raises what either raises."""
    try:
        return resolve(reference, store)
    except NotFound:
        if not can_pull(reference):
            raise
    return await trio.to_thread.run_sync(stored_path, await pull(reference, store=store, progress=progress), store)


def ensure_model(name: str, *, store: Store | None = None, progress: ProgressCallback = ignore_progress) -> Path:
    """The file of a model, pulled first when it is not here. Blocks; not for use inside a Trio run (`obtain` is)."""
    store = store or Store()
    try:
        return resolve(name, store)
    except NotFound:
        if not can_pull(name):
            raise
    return stored_path(pull_blocking(name, store=store, progress=progress), store)


def stored_path(manifest: Manifest, store: Store) -> Path:
    """What an engine opens: the model's one file, or the folder of a checkpoint. Blocks."""
    if any(file.name == CONFIGURATION for file in manifest.files):
        return store.folder(manifest)
    return store.path(manifest)


def display_name(reference: str, store: Store) -> str:
    """What to call the model that `reference` stands for: NAME where one is given, else its name in the store or of its source."""
    name, text = split_name(reference)
    if name is not None:
        return name
    return text if store.find(text) is not None else parse_reference(text).name


def can_pull(reference: str) -> bool:
    """Whether a pull could fetch it: a built-in name or a source that is not a path."""
    try:
        parsed: Reference = parse_reference(reference)
    except InvalidRequest:
        return False
    return not isinstance(parsed.source, FileSource)


def _existing(path: Path) -> Path:
    if not path.is_file() and not path.is_dir():
        raise NotFound(f"there is no file {path}", code="file_not_found")
    return path


def _unknown(text: str, store: Store) -> InvalidRequest:
    here = ", ".join(manifest.name for manifest in store.list()) or "none"
    error = refused(text, f"no model of the store has this name (here: {here})")
    return NotFound(error.message)
