"""The models on this machine: blobs named by their digest, and manifests that give them names.

    <home>/blobs/sha256-<hex>      the bytes, complete and verified before they get this name
    <home>/manifests/<digest>.json one small file per name
    <home>/partial/<digest>/       what a pull has fetched so far; nothing here is trusted before it is hashed again
    <home>/folders/<digest>/       links to the files of a model that engines read as a folder; made when it is asked for
    <home>/locks/                  see `lock.py`

A blob is published before the manifest that names it and removed after it, so a crash leaves at worst a blob without a name, which
the next pull of the same bytes takes over. Publishing and removing hold one lock, because removal has to know that nobody is about to
name the blob it drops. Everything here blocks; a manifest that cannot be read is skipped with a warning that names the file.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from tripower.runtime.kernel.errors import InvalidRequest, NotFound
from tripower.runtime.store.durable import fsync_directory, publish_file, write_atomically
from tripower.runtime.store.errors import mapped_os_errors, store_full
from tripower.runtime.store.home import home_directory
from tripower.runtime.store.lock import FileLock
from tripower.runtime.store.manifest import (
    Manifest,
    StoredFile,
    checked_file_name,
    checked_name,
    decode_manifest,
    encode_manifest,
    manifest_file_name,
)

LOCK_WAIT_SECONDS = 30.0
MANIFEST_BYTES_MAX = 1 << 20
logger = logging.getLogger(__name__)


class Store:
    """The store under one home directory, which is created when something is first written."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = (home or home_directory()).absolute()

    def blob(self, sha256: str) -> Path:
        """Where the bytes with this digest lie, if they are here. Raises `ValueError` for what is no digest."""
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            raise ValueError("not a SHA-256 in lower-case hexadecimal")
        return self.home / "blobs" / f"sha256-{sha256}"

    def path(self, manifest: Manifest, file_name: str | None = None) -> Path:
        """The blob of the model itself, or of the file called `file_name`. Raises `NotFound` for a name it doesn't list."""
        for file in manifest.files:
            if file_name is None or file.name == file_name:
                return self.blob(file.sha256)
        raise NotFound(f"{manifest.name} has no file {file_name!r}", code="file_not_found")

    def folder(self, manifest: Manifest) -> Path:
        """A folder with links to all files of a model under their own names, for engines that read several. Blocks.

        It is named by its contents, so that what a running engine reads never becomes another model. Raises `InvalidRequest` for a
        manifest with names that would leave the folder.
        """
        folder = self._folder_path(manifest)
        with mapped_os_errors(folder):
            for file in manifest.files:
                link = folder / checked_file_name(file.name)
                if not link.is_symlink():
                    link.parent.mkdir(parents=True, exist_ok=True)
                    with suppress(FileExistsError):  # another process makes the same one
                        link.symlink_to(os.path.relpath(self.blob(file.sha256), link.parent))
        return folder

    def has(self, file: StoredFile) -> bool:
        """Whether the blob is here with its full length. Its bytes were verified before it got its name."""
        try:
            return self.blob(file.sha256).stat().st_size == file.size
        except OSError:
            return False

    def find(self, name: str) -> Manifest | None:
        """The model called `name`, complete, or None."""
        path = self._manifest_path(name)
        manifest = self._read(path)
        return manifest if manifest is not None and self._complete(manifest, path) else None

    def find_source(self, source: str) -> Manifest | None:
        """Some complete model that was pulled from `source`."""
        return next((manifest for manifest in self.list() if manifest.source == source), None)

    def publish(self, manifest: Manifest, files: Mapping[str, Path]) -> Manifest:
        """Give complete and verified files their place, and the model its name. Returns what the store now holds.

        `files` maps digests to temporary files inside this store; digests that the store has already may be left out. Publishing the
        same files again under their name changes nothing. Raises `InvalidRequest` when the name stands for another source.
        """
        checked_name(manifest.name)
        with mapped_os_errors(self.home), self._locked(f"storing {manifest.name}"):
            present = self.find(manifest.name)
            if present is not None and (present.source, present.files) == (manifest.source, manifest.files):
                return present
            if present is not None and present.source != manifest.source:
                raise self.name_taken(present)
            for file in manifest.files:
                self._publish_blob(file, files.get(file.sha256))
            path = self._manifest_path(manifest.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, encode_manifest(manifest))
            if present is not None:
                self._drop_blobs(present)
        return manifest

    def name_taken(self, present: Manifest) -> InvalidRequest:
        """The refusal to let a name stand for a second source."""
        return InvalidRequest(
            f"the name {present.name!r} stands for {present.source}: pull as NAME=SOURCE under another name, or `tripower rm` it first",
            code="model_already_exists",
            status=409,
        )

    def remove(self, name: str) -> int:
        """Forget `name` and drop the blobs that no other name needs; returns the bytes freed. Raises `NotFound`.

        While any other manifest is unreadable, blobs stay: nobody can tell what it needs.
        """
        path = self._manifest_path(name)
        with mapped_os_errors(self.home), self._locked(f"removing {name}"):
            if not path.exists():
                raise NotFound(f"no model is called {name!r}: `tripower list` shows those that are here")
            manifest = self._read(path)
            path.unlink()
            fsync_directory(path.parent)
            if manifest is None:
                return 0
            if all(other is None or other.files != manifest.files for _, other in self._manifests()):
                shutil.rmtree(self._folder_path(manifest), ignore_errors=True)
            return self._drop_blobs(manifest)

    def partial(self, key: str) -> Path:
        """The directory for what is being fetched for `key`; on the same file system as the blobs. Created when absent."""
        directory = self.home / "partial" / hashlib.sha256(key.encode()).hexdigest()
        with mapped_os_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
        return directory

    def discard_partial(self, key: str) -> None:
        """Remove everything fetched for `key`. Never raises: what stays is only in the way."""
        shutil.rmtree(self.home / "partial" / hashlib.sha256(key.encode()).hexdigest(), ignore_errors=True)

    def pull_lock(self, key: str, purpose: str) -> FileLock:
        """The lock that keeps two pulls of the same thing apart."""
        return FileLock(self.home / "locks" / f"{hashlib.sha256(key.encode()).hexdigest()}.lock", purpose)

    def ensure_room(self, needed: int) -> None:
        """Raise `StoreFull` when fewer than `needed` bytes are free, before anything is fetched."""
        with mapped_os_errors(self.home):
            self.home.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(self.home).free < needed:
                raise store_full(self.home, needed)

    def list(self) -> tuple[Manifest, ...]:
        """Every complete model, by name."""
        complete = (manifest for path, manifest in self._manifests() if manifest is not None and self._complete(manifest, path))
        return tuple(sorted(complete, key=lambda manifest: manifest.name))

    def _manifest_path(self, name: str) -> Path:
        return self.home / "manifests" / manifest_file_name(name)

    def _folder_path(self, manifest: Manifest) -> Path:
        names = "".join(f"{file.sha256} {file.name}\n" for file in manifest.files)
        return self.home / "folders" / hashlib.sha256(names.encode()).hexdigest()

    def _manifests(self) -> Iterator[tuple[Path, Manifest | None]]:
        for path in sorted((self.home / "manifests").glob("*.json")):
            yield path, self._read(path)

    def _read(self, path: Path) -> Manifest | None:
        try:
            with path.open("rb") as file:
                manifest = decode_manifest(file.read(MANIFEST_BYTES_MAX))
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            logger.warning(
                "skipped a manifest that cannot be read: %s (%s); remove the file and pull the model again", path, error
            )
            return None
        if path.name != manifest_file_name(manifest.name):
            logger.warning("skipped a manifest whose file name does not belong to its model: %s", path)
            return None
        return manifest

    def _complete(self, manifest: Manifest, path: Path) -> bool:
        missing = [file.name for file in manifest.files if not self.has(file)]
        if missing:
            logger.warning(
                "skipped %s: %s is not in the store at its full length; pull it again (%s)", manifest.name, missing[0], path
            )
        return not missing

    def _publish_blob(self, file: StoredFile, temporary: Path | None) -> None:
        blob = self.blob(file.sha256)
        if self.has(file):
            if temporary is not None:
                temporary.unlink(missing_ok=True)
            return
        assert temporary is not None and temporary.stat().st_size == file.size, f"publish without the bytes of {file.name}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        publish_file(temporary, blob)

    def _drop_blobs(self, removed: Manifest) -> int:
        others = [*self._manifests()]
        if any(manifest is None for _, manifest in others):
            logger.warning("kept the files of %s, because a manifest that cannot be read may need them", removed.name)
            return 0
        needed = {file.sha256 for _, manifest in others if manifest is not None for file in manifest.files}
        freed = 0
        for digest, size in {file.sha256: file.size for file in removed.files if file.sha256 not in needed}.items():
            blob = self.blob(digest)
            if blob.exists():
                blob.unlink()
                freed += size
        return freed

    @contextmanager
    def _locked(self, purpose: str) -> Iterator[None]:
        with FileLock(self.home / "locks" / "store.lock", purpose).held(wait_seconds=LOCK_WAIT_SECONDS):
            yield
