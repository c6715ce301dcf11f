"""An encoder of the store: found by its folder, run by its own engine, weighed beside the others."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.api.test_plan import HOST, NEEDS
from tests.backends.embedded.folders import write_encoder
from tripower.actors.models import ModelSource
from tripower.api.plan import choose_for_all, find_source, find_stored, make_plan, stored_sources
from tripower.runtime.configuration import Configuration, EngineSettings
from tripower.runtime.kernel import ModelRefused
from tripower.runtime.store import Manifest, Store, StoredFile

FILES = (
    "model.safetensors",
    "config.json",
    "tokenizer.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def keep_encoder(store: Store, folder: Path) -> Manifest:
    """Put the files of an encoder into the store, the weights first."""
    write_encoder(folder)
    files, paths = [], {}
    for name in FILES:
        data = (folder / name).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        files.append(StoredFile(name, len(data), digest))
        paths[digest] = store.partial("encoder") / digest
        paths[digest].write_bytes(data)
    manifest = Manifest(
        name="encoder", source="builtin:encoder", format="safetensors", created=datetime.now(UTC), files=tuple(files)
    )
    return store.publish(manifest, paths)


def test_a_stored_encoder_is_found_and_runs_on_its_own_engine(store: Store, tmp_path: Path) -> None:
    keep_encoder(store, tmp_path / "encoder")
    source = find_source("encoder", store)
    assert (source.name, source.backend, source.reason) == ("encoder", "embedded", "it makes embeddings")
    assert (Path(source.source) / "1_Pooling" / "config.json").is_file()
    assert stored_sources(store) == [source] == [find_stored(store)("encoder")]
    assert find_source(str(tmp_path / "encoder"), store).backend == "embedded"


@pytest.mark.parametrize("backend", ["picolm", "llamacpp"])
def test_an_encoder_runs_on_no_engine_that_is_named(backend: str, store: Store, tmp_path: Path) -> None:
    keep_encoder(store, tmp_path / "encoder")
    named = Configuration(engine=EngineSettings(backend=backend))
    with pytest.raises(ModelRefused, match="leave out --backend"):
        find_source("encoder", store, named)
    assert stored_sources(store, named) == []


def test_an_encoder_takes_weights_and_changes_nobodys_context_or_states(store: Store, tmp_path: Path) -> None:
    keep_encoder(store, tmp_path / "encoder")
    toy = ModelSource(name="toy", source="toy", backend="toy")
    alone, with_encoder = (
        make_plan(Configuration(), sources, host=HOST) for sources in ([toy], [toy, find_source("encoder", store)])
    )
    assert with_encoder.limits.context == alone.limits.context
    assert 0 < alone.limits.state_bytes_max - with_encoder.limits.state_bytes_max < 1 << 20  # half of its few weights
    (light,), (loaded,) = (choose_for_all(HOST, Configuration(), [NEEDS], beside=beside) for beside in (0, 1 << 20))
    assert light.context == loaded.context
    with pytest.raises(ModelRefused) as refused:
        choose_for_all(HOST, Configuration(), [], beside=HOST.memory_available)
    assert refused.value.code == "not_enough_memory"
