"""Which engine runs what, why, and what is said where none does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.test_plan import keep
from tripower.actors.models import ModelSource
from tripower.api import engines
from tripower.api.cli.doctor_engines import engines as engine_findings
from tripower.api.cli.serve_banner import engine_lines
from tripower.api.engines import EngineChoice, choose_engine, engine_problem, needs_file
from tripower.api.plan import find_source, find_stored, make_plan
from tripower.runtime.configuration import Configuration, EngineSettings, ProxySettings
from tripower.runtime.engine import DelegateBackend
from tripower.runtime.kernel import InvalidConfiguration, InvalidRequest, ModelRefused
from tripower.runtime.store import Store

UNKNOWN = ModelRefused("the architecture 'rwkv' is not supported", code="unsupported_architecture")
MISSING = ModelRefused("llamacpp is missing: run pip install 'tripower[llamacpp]'", code="backend_not_installed")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "some.gguf"
    path.write_bytes(b"GGUF and so on")
    return path


def wanting(backend: str, **settings: object) -> Configuration:
    return Configuration(engine=EngineSettings(backend=backend, **settings))  # type: ignore[arg-type]


def without_picolm(monkeypatch: pytest.MonkeyPatch, *, llamacpp: bool) -> None:
    monkeypatch.setattr(engines, "picolm_refusal", lambda path: UNKNOWN)
    monkeypatch.setattr(engines, "engine_problem", lambda backend: None if llamacpp else MISSING)


# Files.


def test_our_own_engine_runs_what_it_knows(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "picolm_refusal", lambda path: None)
    assert choose_engine(gguf, "some") == EngineChoice("picolm", "our own engine knows this model")


def test_llamacpp_runs_what_ours_does_not_know_and_the_reason_is_kept(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_picolm(monkeypatch, llamacpp=True)
    chosen = choose_engine(gguf, "some")
    assert chosen.backend == "llamacpp" and "'rwkv'" in chosen.reason


def test_what_no_engine_here_runs_is_refused_with_what_would_run_it(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_picolm(monkeypatch, llamacpp=False)
    with pytest.raises(ModelRefused, match=r"'rwkv'.*pip install 'tripower\[llamacpp\]'") as caught:
        choose_engine(gguf, "some")
    assert caught.value.code == "unsupported_architecture"


def test_a_broken_file_is_no_reason_for_another_engine(gguf: Path) -> None:
    assert choose_engine(gguf, "some").backend == "picolm"


@pytest.mark.parametrize("backend", ["picolm", "llamacpp", "mistralrs"])
def test_a_backend_that_is_named_is_taken(backend: str, gguf: Path, store: Store) -> None:
    if problem := engine_problem(backend):
        pytest.skip(problem.message)
    source = find_source(str(gguf), store, wanting(backend))
    assert (source.backend, source.reason) == (backend, "asked for")


@pytest.mark.parametrize("backend", ["llamacpp", "mistralrs"])
def test_a_backend_that_is_not_installed_says_how_to_get_it(
    backend: str, gguf: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(ModelRefused, match=rf"pip install 'tripower\[{backend}\]'") as caught:
        find_source(str(gguf), store, wanting(backend))
    assert caught.value.code == "backend_not_installed"


@pytest.mark.parametrize(
    ("reference", "backend", "says"),
    [
        ("toy", "picolm", "leave out --backend"),
        ("toy:5", "proxy", "leave out --backend"),
        ("some.gguf", "proxy", "proxy:https://"),
        ("smollm2", "proxy", "proxy:https://"),
        ("smollm2", "toy", "the toy runs no files"),
        ("proxy:https://host/v1#m", "llamacpp", "another server"),
    ],
)
def test_a_source_and_a_backend_that_do_not_go_together_are_refused(
    reference: str, backend: str, says: str, store: Store
) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        find_source(reference, store, wanting(backend))
    assert caught.value.code == "backend_mismatch"


@pytest.mark.parametrize("backend", ["proxy", "toy"])
def test_a_client_gets_no_file_from_a_server_that_runs_none(backend: str, store: Store) -> None:
    keep(store, "mine", b"GGUF and so on")
    assert find_stored(store, wanting(backend))("mine") is None
    assert find_stored(store, wanting("picolm"))("mine") is not None


@pytest.mark.parametrize("backend", ["auto", "picolm", "mistralrs"])
def test_layers_for_an_accelerator_are_refused_where_there_is_none(backend: str, gguf: Path, store: Store) -> None:
    if problem := engine_problem(backend):
        pytest.skip(problem.message)
    with pytest.raises(InvalidConfiguration, match=r"engine\.gpu_layers=-1.*set it to 0") as caught:
        find_source(str(gguf), store, wanting(backend, gpu_layers=-1))
    assert caught.value.code == "gpu_layers_unsupported"
    toy = ModelSource(name="toy", source="toy", backend="toy")
    with pytest.raises(InvalidConfiguration, match="toy"):
        make_plan(wanting("auto", gpu_layers=1), [toy])


# Other servers.


@pytest.mark.parametrize(
    ("reference", "backend", "name", "source"),
    [
        ("proxy:https://host/v1#m", "auto", "m", "https://host/v1#m"),
        ("far=proxy:https://host/v1", "auto", "far", "https://host/v1"),
        ("far=https://host/v1#m=1", "proxy", "far", "https://host/v1#m%3D1"),
        ("https://host/v1/#org/m", "proxy", "org/m", "https://host/v1#org/m"),
    ],
)
def test_a_remote_model_is_named_here_or_there(reference: str, backend: str, name: str, source: str, store: Store) -> None:
    found = find_source(reference, store, wanting(backend))
    assert (found.name, found.source, found.backend) == (name, source, "proxy")
    plan = make_plan(wanting(backend), [found])
    assert isinstance(plan.backends["proxy"], DelegateBackend)
    assert not store.home.exists()


def test_a_remote_model_without_any_name_is_refused(store: Store) -> None:
    with pytest.raises(InvalidRequest, match="NAME="):
        find_source("proxy:https://host/v1", store)


def test_plain_http_to_others_needs_a_setting(store: Store) -> None:
    with pytest.raises(InvalidRequest, match=r"proxy\.allow_plain"):
        find_source("proxy:http://host/v1#m", store)
    assert find_source("proxy:http://host/v1#m", store, Configuration(proxy=ProxySettings(allow_plain=True))).name == "m"


@pytest.mark.parametrize(
    ("source", "backend", "file"),
    [
        ("smollm2", "auto", True),
        ("toy", "auto", False),
        ("proxy:https://host/v1", "auto", False),
        ("https://host/m.gguf", "auto", True),
        ("https://host/v1", "proxy", False),
    ],
)
def test_only_files_are_pulled(source: str, backend: str, file: bool) -> None:
    assert needs_file(source, backend) is file


# What people are told.


def test_the_banner_names_each_engine_once_with_its_reason(store: Store) -> None:
    far = find_source("proxy:https://host/v1#m", store)
    here = [ModelSource(name=name, source=name, backend="toy", reason=reason) for name, reason in (("a", ""), ("b", ""))]
    plan = make_plan(Configuration(engine=EngineSettings(threads=2)), [*here, far])
    assert engine_lines(plan) == ["toy, 2 threads", "proxy, https://host/v1#m (it is on another server)"]


def test_the_doctor_shows_each_engine_and_what_each_model_gets(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(store, "mine", b"GGUF and so on")
    without_picolm(monkeypatch, llamacpp=False)
    monkeypatch.setattr("tripower.api.cli.doctor_engines.engine_problem", lambda backend: MISSING)
    monkeypatch.setenv("TRIPOWER_UPSTREAM_KEY_FAR", "secret")
    found = {finding.name: finding for finding in engine_findings(Configuration(), store)}
    assert {"picolm", "llamacpp", "mistralrs", "proxy", "engine.backend", "mine"} <= set(found)
    assert found["llamacpp"].missing and "pip install" in found["llamacpp"].reason
    assert found["mine"].missing and "'rwkv'" in found["mine"].reason
    assert "TRIPOWER_UPSTREAM_KEY_FAR" in found["proxy"].reason and "secret" not in found["proxy"].reason
