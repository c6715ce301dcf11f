"""A local file is copied into the store whole and verified, and names lead to files with or without the store."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tripower.api.pull import PullProgress, display_name, ensure_model, from_file, obtain, pull, resolve
from tripower.api.pull.pull import pull_blocking
from tripower.runtime.kernel.errors import InvalidRequest, ModelRefused, NotFound, Unavailable
from tripower.runtime.store import DigestMismatch, HashingFile, Store, StoreFull

BODY = b"GGUF" + os.urandom(3 << 20)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(BODY)
    return path


def leftovers(store: Store) -> list[Path]:
    return [path for path in store.home.rglob("*") if path.is_file() and path.parent.name != "locks"]


async def test_a_local_file_is_copied_so_that_later_writes_to_it_do_no_harm(store: Store, model: Path) -> None:
    told: list[PullProgress] = []
    manifest = await pull(str(model), store=store, progress=told.append)
    assert (manifest.name, manifest.format, manifest.source) == ("model", "gguf", f"file:{model}")
    with model.open("r+b") as file:
        file.write(b"spoiled")
    assert store.path(manifest).read_bytes() == BODY
    assert manifest.primary.sha256 == hashlib.sha256(BODY).hexdigest()
    assert [each.stage for each in told if each.stage != "verifying"] == ["stored"]
    assert told[-2].completed == told[-2].total == len(BODY)


def test_a_file_that_was_rewritten_is_taken_again_and_one_that_was_not_is_left(store: Store, model: Path) -> None:
    told: list[PullProgress] = []
    pull_blocking(str(model), store=store)
    pull_blocking(str(model), store=store, progress=told.append)
    assert [each.stage for each in told] == ["already_stored"]
    model.write_bytes(b"GGUF" + b"x" * (len(BODY) - 4))
    manifest = pull_blocking(str(model), store=store)
    assert store.path(manifest).read_bytes() == model.read_bytes()
    assert len(list((store.home / "blobs").iterdir())) == 1
    model.unlink()
    assert pull_blocking(str(model), store=store) == manifest


async def test_a_file_system_that_shares_blocks_is_used(store: Store, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def clone(target: int, request: int, source: int) -> int:
        assert request == from_file.FICLONE
        os.pwrite(target, os.pread(source, len(BODY), 0), 0)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", clone)
    monkeypatch.setattr(HashingFile, "write", None)
    manifest = await pull(str(model), store=store)
    assert store.path(manifest).read_bytes() == BODY


async def test_what_cannot_be_taken_is_refused_and_leaves_nothing(store: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "directory.gguf").mkdir()
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "empty.gguf").touch()
    for name, kind in (
        ("absent.gguf", NotFound),
        ("pipe.gguf", ModelRefused),
        ("directory.gguf", ModelRefused),
        ("text.gguf", ModelRefused),
        ("empty.gguf", ModelRefused),
    ):
        with pytest.raises(kind):
            await pull(str(tmp_path / name), store=store)
    assert leftovers(store) == []


async def test_a_file_that_changes_while_it_is_read_is_refused(
    store: Store, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = HashingFile.write

    def write(growing: HashingFile, data: bytes) -> None:
        written(growing, data)
        with model.open("ab") as file:
            file.write(b"more")

    monkeypatch.setattr(HashingFile, "write", write)
    with pytest.raises(ModelRefused, match="changed while it was read"):
        await pull(str(model), store=store)
    assert leftovers(store) == []


async def test_a_wrong_digest_is_refused(store: Store, model: Path) -> None:
    with pytest.raises(DigestMismatch):
        await pull(str(model), store=store, sha256="0" * 64)
    assert leftovers(store) == []
    await pull(str(model), store=store, sha256="sha256:" + hashlib.sha256(BODY).hexdigest())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_disk_that_is_too_small_is_found_before_and_while_writing(
    small_disk: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(small_disk / "home")
    with pytest.raises(StoreFull, match="3 MB are needed"):
        await pull(str(model), store=store)
    monkeypatch.setattr(Store, "ensure_room", lambda store, needed: None)
    with pytest.raises(StoreFull, match="TRIPOWER_HOME"):
        await pull(str(model), store=store)
    assert leftovers(store) == []


async def test_a_path_is_used_where_it_lies(store: Store, model: Path) -> None:
    assert resolve(str(model), store) == model
    assert resolve(f"mine={model}", store) == model
    assert await obtain(str(model), store=store) == model
    assert ensure_model(str(model), store=store) == model
    assert not store.home.exists()
    with pytest.raises(NotFound, match="no file"):
        resolve("/absent.gguf", store)
    with pytest.raises(NotFound):
        ensure_model("/absent.gguf", store=store)
    with pytest.raises(NotFound):
        await obtain("/absent.gguf", store=store)


async def test_stored_names_and_sources_lead_to_the_blob(store: Store, model: Path) -> None:
    manifest = await pull(f"mine={model}", store=store)
    blob = store.path(manifest)
    for reference in ("mine", "other=mine"):
        assert resolve(reference, store) == blob
        assert await obtain(reference, store=store) == blob
        assert ensure_model(reference, store=store) == blob


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("smollm2", "tripower pull smollm2"),
        ("x=smollm2", "tripower pull smollm2"),
        ("hf:o/r/m.gguf", "tripower pull hf:o/r/m.gguf"),
        ("nonsense", r"here: mine\).*Accepted: smollm2"),
    ],
)
async def test_what_is_not_here_is_answered_with_the_way_to_get_it(
    store: Store, model: Path, reference: str, says: str
) -> None:
    await pull(f"mine={model}", store=store)
    with pytest.raises(NotFound, match=says):
        resolve(reference, store)


async def test_an_unknown_name_is_not_pulled(store: Store) -> None:
    with pytest.raises(NotFound):
        await obtain("nonsense", store=store)
    with pytest.raises(NotFound):
        ensure_model("nonsense", store=store)
    with pytest.raises(InvalidRequest):
        await pull("nonsense", store=store)


async def test_a_missing_source_is_pulled_on_the_way(store: Store) -> None:
    with pytest.raises(Unavailable, match="connection"):
        await obtain("http://127.0.0.1:9/m.gguf", store=store)


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("mine", "mine"),
        ("other=mine", "other"),
        ("smollm2", "smollm2"),
        ("fast=smollm2", "fast"),
        ("/models/m.gguf", "m"),
        ("hf:o/r/Big-Q4.gguf", "Big-Q4"),
    ],
)
async def test_each_reference_has_a_name_to_show(store: Store, model: Path, reference: str, name: str) -> None:
    await pull(f"mine={model}", store=store)
    assert display_name(reference, store) == name
