"""The store keeps every name apart, never loses a blob that is needed, and survives damage of its own files."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tripower.runtime.kernel.errors import InvalidRequest, NotFound
from tripower.runtime.store import Manifest, Store, StoreDenied, StoredFile, StoreFull, home_directory
from tripower.runtime.store.manifest import FILES_MAX, decode_manifest, encode_manifest, manifest_file_name

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs"], exclude_characters="=\x7f"), min_size=1, max_size=60)


def stored(data: bytes, name: str = "model.gguf") -> StoredFile:
    return StoredFile(name, len(data), hashlib.sha256(data).hexdigest())


def manifest_of(name: str, *datas: bytes, source: str = "file:/somewhere") -> Manifest:
    files = tuple(stored(data, f"part-{index}") for index, data in enumerate(datas))
    return Manifest(name=name, source=source, format="gguf", created=datetime(2026, 1, 2, tzinfo=UTC), files=files)


def put(store: Store, name: str, *datas: bytes, source: str = "file:/somewhere") -> Manifest:
    manifest = manifest_of(name, *datas, source=source)
    folder = store.partial(name)
    files = {}
    for file, data in zip(manifest.files, datas, strict=True):
        path = folder / file.sha256
        path.write_bytes(data)
        files[file.sha256] = path
    return store.publish(manifest, files)


def blobs(store: Store) -> set[bytes]:
    return {path.read_bytes() for path in (store.home / "blobs").glob("*")}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def test_what_was_published_is_found_listed_and_readable(store: Store) -> None:
    manifest = put(store, "a", b"weights", b"tokenizer")
    assert store.find("a") == manifest
    assert store.list() == (manifest,)
    assert store.find_source("file:/somewhere") == manifest
    assert store.path(manifest).read_bytes() == b"weights"
    assert store.path(manifest, "part-1").read_bytes() == b"tokenizer"
    assert manifest.size == 16
    with pytest.raises(NotFound):
        store.path(manifest, "part-2")


def test_an_empty_store_is_read_without_creating_anything(store: Store) -> None:
    assert store.list() == ()
    assert store.find("a") is None
    assert not store.home.exists()


@pytest.mark.parametrize("others", [("a:b", "a/b", "a-b"), ("A", "a"), ("x", "x.json"), ("../x", "..", "/etc/passwd")])
def test_names_that_look_alike_never_collide(store: Store, others: tuple[str, ...]) -> None:
    for index, name in enumerate(others):
        put(store, name, str(index).encode())
    for index, name in enumerate(others):
        found = store.find(name)
        assert found is not None
        assert store.path(found).read_bytes() == str(index).encode()


@settings(deadline=None, max_examples=60)
@given(name=NAMES, data=st.binary(max_size=40))
def test_no_name_leaves_the_directory(name: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder, "home"))
        put(store, name, data)
        assert store.find(name) is not None
        assert {path.name for path in Path(folder).iterdir()} == {"home"}
        (written,) = (store.home / "manifests").iterdir()
        assert written.name == manifest_file_name(name)
        assert store.remove(name) == len(data)
        assert not blobs(store)


@pytest.mark.parametrize("name", ["", "a b", "a=b", "a\n", "x" * 513, "\ud800", "\x00"])
def test_a_name_that_would_confuse_people_is_refused(store: Store, name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        store.publish(manifest_of(name, b"x"), {})
    assert refused.value.code == "invalid_model_name"


@pytest.mark.parametrize("digest", ["", "..", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 65, "g" * 64])
def test_a_digest_that_is_none_never_becomes_a_path(store: Store, digest: str) -> None:
    with pytest.raises(ValueError, match="SHA-256"):
        store.blob(digest)


def test_a_shared_blob_goes_with_its_last_name(store: Store) -> None:
    put(store, "a", b"shared", b"only a")
    put(store, "b", b"shared", b"only b")
    assert store.remove("a") == len(b"only a")
    assert blobs(store) == {b"shared", b"only b"}
    assert store.remove("b") == len(b"sharedonly b")
    assert blobs(store) == set()
    with pytest.raises(NotFound):
        store.remove("a")


def test_a_blob_is_stored_once_and_the_spare_copy_goes(store: Store) -> None:
    put(store, "a", b"same")
    put(store, "b", b"same")
    assert len(blobs(store)) == 1
    assert not any(store.partial("b").iterdir())


def test_publishing_twice_keeps_the_first_manifest(store: Store) -> None:
    first = put(store, "a", b"x")
    again = put(store, "a", b"x")
    assert again == first
    assert store.list() == (first,)


def test_new_bytes_from_the_same_source_replace_the_old_and_drop_them(store: Store) -> None:
    put(store, "a", b"old")
    newer = put(store, "a", b"newer")
    assert store.find("a") == newer
    assert blobs(store) == {b"newer"}


def test_a_name_stands_for_one_source_only(store: Store) -> None:
    put(store, "a", b"x")
    with pytest.raises(InvalidRequest, match="another name") as refused:
        put(store, "a", b"y", source="file:/elsewhere")
    assert refused.value.code == "model_already_exists"
    assert blobs(store) == {b"x"}


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"name": "a"}',
        b'{"name":"a","source":"s","format":"gguf","created":"2026-01-02T00:00:00Z","files":[]}',
        b'{"name":"a","source":"s","format":"gguf","created":"2026-01-02T00:00:00Z","files":[{"name":"f","size":1,"sha256":"../x"}]}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_manifest_is_skipped_with_a_warning_that_names_it(
    store: Store, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, "a", b"x")
    good = put(store, "b", b"y")
    damaged = store.home / "manifests" / manifest_file_name("a")
    damaged.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert store.list() == (good,)
        assert store.find("a") is None
    assert str(damaged) in caplog.text
    store.remove("a")
    assert store.list() == (good,)


def test_a_manifest_under_a_foreign_file_name_is_skipped(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    put(store, "a", b"x")
    folder = store.home / "manifests"
    (folder / manifest_file_name("a")).rename(folder / ("0" * 64 + ".json"))
    assert store.list() == ()
    assert store.find("a") is None
    assert "does not belong" in caplog.text


def test_nothing_is_dropped_while_a_manifest_cannot_be_read(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    put(store, "a", b"maybe shared")
    put(store, "b", b"maybe shared", b"y")
    (store.home / "manifests" / manifest_file_name("b")).write_bytes(b"{")
    assert store.remove("a") == 0
    assert b"maybe shared" in blobs(store)
    assert "kept the files" in caplog.text


@pytest.mark.parametrize("change", ["gone", "cut"])
def test_a_model_whose_blob_is_not_whole_is_not_found(store: Store, change: str, caplog: pytest.LogCaptureFixture) -> None:
    manifest = put(store, "a", b"weights")
    blob = store.path(manifest)
    if change == "gone":
        blob.unlink()
    else:
        blob.write_bytes(b"wei")
    assert store.find("a") is None
    assert store.list() == ()
    assert "pull it again" in caplog.text
    assert put(store, "a", b"weights") == manifest
    assert store.find("a") == manifest


@settings(deadline=None)
@given(
    name=st.text(max_size=20),
    source=st.text(max_size=20),
    files=st.lists(st.tuples(st.text(max_size=10), st.integers(0, 2**62)), min_size=1, max_size=4),
)
def test_a_manifest_survives_its_encoding(name: str, source: str, files: list[tuple[str, int]]) -> None:
    manifest = Manifest(
        name=name,
        source=source,
        format="gguf",
        created=datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC),
        files=tuple(StoredFile(each, size, f"{size:064x}"[-64:]) for each, size in files),
    )
    try:
        encoded = encode_manifest(manifest)
    except UnicodeEncodeError:
        return  # half a surrogate pair: `checked_name` refuses it before
    assert decode_manifest(encoded) == manifest
    assert len(manifest.files) <= FILES_MAX


def test_a_full_disk_while_publishing_leaves_the_old_state(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "a", b"x")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFull, match=r"tripower rm NAME.*TRIPOWER_HOME") as error:
        put(store, "b", b"y")
    assert error.value.status == 507
    monkeypatch.undo()
    assert [manifest.name for manifest in store.list()] == ["a"]
    assert not list((store.home / "manifests").glob("*.new"))
    put(store, "b", b"y")


def test_missing_permission_is_an_error_that_names_the_file_and_the_cure(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, *arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(StoreDenied, match="TRIPOWER_HOME") as error:
        store.partial("a")
    assert str(store.home) in error.value.message


def test_a_shortage_of_room_is_found_beforehand(store: Store) -> None:
    store.ensure_room(1)
    with pytest.raises(StoreFull, match="MB are needed"):
        store.ensure_room(1 << 60)


def test_the_home_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert home_directory({"TRIPOWER_HOME": "/somewhere"}) == Path("/somewhere")
    assert home_directory({}) == Path.home() / ".tripower"
    assert home_directory({"TRIPOWER_HOME": ""}) == Path.home() / ".tripower"
    monkeypatch.setenv("TRIPOWER_HOME", "/from/environment")
    assert Store().home == Path("/from/environment")


class StoreMachine(RuleBasedStateMachine):
    """Any order of publishing, removing and damaging agrees with a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.store = Store(Path(self._folder.name) / "home")
        self.model: dict[str, tuple[bytes, ...]] = {}

    def teardown(self) -> None:
        self._folder.cleanup()

    names = st.sampled_from(["a", "a:b", "a/b", "../a"])
    contents = st.lists(st.sampled_from([b"one", b"two", b"three", b""]), min_size=1, max_size=3, unique=True)

    @rule(name=names, datas=contents)
    def publish(self, name: str, datas: list[bytes]) -> None:
        put(self.store, name, *datas)
        self.model[name] = tuple(datas)

    @rule(name=names)
    def remove(self, name: str) -> None:
        if name not in self.model:
            with pytest.raises(NotFound):
                self.store.remove(name)
            return
        gone = self.model.pop(name)
        needed = {data for datas in self.model.values() for data in datas}
        assert self.store.remove(name) == sum(len(data) for data in set(gone) - needed)

    @invariant()
    def names_and_blobs_agree(self) -> None:
        assert {manifest.name for manifest in self.store.list()} == set(self.model)
        assert blobs(self.store) == {data for datas in self.model.values() for data in datas}


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(deadline=None, max_examples=40, stateful_step_count=15)


def test_a_folder_links_every_file_under_its_own_name_and_goes_with_the_model(store: Store) -> None:
    manifest = put(store, "a", b"weights", b"tokenizer")
    deep = msgspec.structs.replace(manifest.files[1], name="1_Pooling/config.json")
    nested = msgspec.structs.replace(manifest, files=(manifest.files[0], deep))
    folder = store.folder(nested)
    assert store.folder(nested) == folder != store.folder(manifest)
    assert (folder / "part-0").read_bytes() == b"weights"
    assert (folder / "1_Pooling" / "config.json").read_bytes() == b"tokenizer"
    moved = store.home.rename(store.home.with_name("moved")) / folder.relative_to(store.home)
    assert (moved / "1_Pooling" / "config.json").read_bytes() == b"tokenizer"


def test_a_folder_stays_while_another_name_stands_for_the_same_files(store: Store) -> None:
    folder = store.folder(put(store, "a", b"weights"))
    put(store, "b", b"weights")
    store.remove("a")
    assert (folder / "part-0").read_bytes() == b"weights"
    store.remove("b")
    assert not folder.exists()


@pytest.mark.parametrize("name", ["../x", "/x", "a/../b", ".hidden", "a//b", "", "a\\b", "a\0", "x" * 256, "a/b/c/d/e", "a\n"])
def test_a_name_that_would_leave_the_folder_is_refused(store: Store, name: str) -> None:
    manifest = put(store, "a", b"weights")
    hostile = msgspec.structs.replace(manifest, files=(msgspec.structs.replace(manifest.files[0], name=name),))
    with pytest.raises(InvalidRequest) as refused:
        store.folder(hostile)
    assert refused.value.code == "invalid_file_name"
