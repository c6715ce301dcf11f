"""From references to a plan: which backend, which file, which limits."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tripower.actors.models import ModelSource
from tripower.api.plan import (
    choose_for_all,
    find_any,
    find_source,
    find_stored,
    for_one_conversation,
    is_toy,
    make_plan,
    read_needs,
    stored_sources,
)
from tripower.runtime.configuration import Configuration, EngineSettings, SchedulerSettings
from tripower.runtime.host import HostLimits, ModelNeeds
from tripower.runtime.kernel import InvalidConfiguration, InvalidRequest, ModelRefused, NotFound
from tripower.runtime.store import HashingFile, Manifest, Store, StoredFile

GIB = 1 << 30
HOST = HostLimits(
    cores=2,
    cores_reason="two of them",
    processors=2,
    memory_total=16 * GIB,
    memory_available=8 * GIB,
    memory_reason="as it is",
)
NEEDS = ModelNeeds(context_max=8192, state_bytes_per_token=46_080, weight_bytes=GIB // 2)


def keep(store: Store, name: str, content: bytes, *, source: str = "https://host/x", model_format: str = "gguf") -> Manifest:
    """Put a file into the store."""
    path = store.partial(name) / "file"
    with HashingFile(path) as file:
        file.write(content)
        digest = file.sha256
    manifest = Manifest(
        name=name,
        source=source,
        format=model_format,
        created=datetime.now(UTC),
        files=(StoredFile("model", len(content), digest),),
    )
    return store.publish(manifest, {digest: path})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.mark.parametrize(
    ("source", "toy"), [("toy", True), ("toy:500", True), ("toys", False), ("toy.gguf", False), ("smollm2", False)]
)
def test_the_toy_is_known_by_its_source(source: str, toy: bool) -> None:
    assert is_toy(source) is toy


@pytest.mark.parametrize(
    ("reference", "name", "source"), [("toy", "toy", "toy"), ("toy:50", "toy:50", "toy:50"), ("slow=toy:50", "slow", "toy:50")]
)
def test_the_toy_needs_no_file(reference: str, name: str, source: str, store: Store) -> None:
    assert find_source(reference, store) == ModelSource(name=name, source=source, backend="toy")
    assert not store.home.exists()


def test_a_gguf_file_goes_to_picolm_under_its_own_name_or_a_given_one(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "some.gguf"
    file.write_bytes(b"GGUF and so on")
    assert find_source(str(file), store) == ModelSource(name="some", source=str(file), backend="picolm")
    assert find_source(f"mine={file}", store).name == "mine"


def test_a_name_of_the_store_is_the_file_of_that_model(store: Store) -> None:
    manifest = keep(store, "here", b"GGUF content")
    assert find_source("here", store) == ModelSource(name="here", source=str(store.path(manifest)), backend="picolm")
    assert find_source("other=here", store).name == "other"
    assert [source.name for source in stored_sources(store)] == ["here"]


def test_what_is_not_here_names_the_command_that_fetches_it(store: Store) -> None:
    with pytest.raises(NotFound, match="tripower pull smollm2"):
        find_source("smollm2", store)
    with pytest.raises(NotFound, match="Accepted: smollm2"):
        find_source("nonsense", store)
    with pytest.raises(NotFound, match="there is no file"):
        find_source("./missing.gguf", store)
    for nonsense in ("a b=toy", "./" + "x" * 10_000, "\ud800"):
        with pytest.raises(InvalidRequest):
            find_source(nonsense, store)


def test_a_file_that_no_engine_runs_is_refused_by_its_format(store: Store, tmp_path: Path) -> None:
    keep(store, "embedder", (8).to_bytes(8, "little") + b"{}      ", model_format="safetensors")
    with pytest.raises(ModelRefused, match="safetensors file, and no engine here runs those"):
        find_source("embedder", store)
    assert stored_sources(store) == []
    page = tmp_path / "page.gguf"
    page.write_bytes(b"<html>")
    with pytest.raises(ModelRefused, match="neither a GGUF"):
        find_source(str(page), store)


def test_a_clients_name_finds_models_of_the_store_and_nothing_else(store: Store, tmp_path: Path) -> None:
    keep(store, "here", b"GGUF content")
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(b"GGUF")
    find = find_stored(store)
    here = find("here")
    assert here is not None
    assert here.name == "here"
    for name in (
        str(outside),
        "outside.gguf",
        "toy",
        "toy:5",
        "x=here",
        "../here",
        "",
        "hf:a/b/c.gguf",
        "\0",
        "\ud800",
        "a" * 10_000,
    ):
        assert find(name) is None
    with pytest.raises(NotFound, match="tripower pull smollm2"):
        find("smollm2")


def test_a_programs_own_name_finds_anything_under_exactly_that_name(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "some.gguf"
    file.write_bytes(b"GGUF")
    for name in ("toy", "x=toy", str(file), f"mine={file}"):
        found = find_any(store)(name)
        assert found is not None
        assert found.name == name


def test_two_models_of_one_name_are_a_mistake_in_the_settings() -> None:
    sources = [ModelSource(name="a", source=source, backend="toy") for source in ("toy", "toy:5")]
    with pytest.raises(InvalidConfiguration, match="two models are called a"):
        make_plan(Configuration(), sources, host=HOST)


def test_the_limits_are_those_of_the_host_where_nothing_is_set() -> None:
    plan = make_plan(Configuration(), [ModelSource(name="a", source="toy", backend="toy")], host=HOST)
    queue = plan.limits.queue
    assert (queue.members_max, queue.waiting_max, queue.steps_per_job, queue.rows_max) == (16, 64, 256, 256)
    assert (plan.limits.context, plan.limits.threads, plan.limits.state_bytes_max) == (0, 2, 4 * GIB)
    assert set(plan.backends) == {"picolm", "embedded", "llamacpp", "mistralrs", "proxy", "toy"}
    assert all(name == backend.name for name, backend in plan.backends.items())


def test_the_limits_are_those_that_were_set() -> None:
    configuration = Configuration(
        engine=EngineSettings(threads=1, context=512, state_bytes=GIB),
        scheduler=SchedulerSettings(batch_members=3, waiting=0, steps_per_job=2, prefill_rows=32),
    )
    limits = make_plan(configuration, [], host=HOST).limits
    assert (limits.threads, limits.context, limits.state_bytes_max) == (1, 512, GIB)
    assert (limits.queue.members_max, limits.queue.waiting_max, limits.queue.rows_max) == (3, 0, 32)


def test_models_share_the_memory_that_their_weights_leave() -> None:
    (alone,) = choose_for_all(HOST, Configuration(), [NEEDS])
    both = choose_for_all(HOST, Configuration(), [NEEDS, NEEDS])
    assert alone.state_bytes.value == (8 * GIB - GIB // 2) // 2
    assert {each.state_bytes.value for each in both} == {(8 * GIB - GIB) // 2}
    assert alone.context is not None
    for each in both:
        assert each.context is not None
        assert each.context.value < alone.context.value
        assert 2 * each.context.value * each.batch_members.value * NEEDS.state_bytes_per_token <= each.state_bytes.value


def test_models_that_do_not_fit_together_are_refused_before_any_is_loaded() -> None:
    heavy = ModelNeeds(context_max=8192, state_bytes_per_token=46_080, weight_bytes=5 * GIB)
    assert choose_for_all(HOST, Configuration(), [heavy])
    with pytest.raises(ModelRefused, match="choose a smaller model"):
        choose_for_all(HOST, Configuration(), [heavy, heavy])


def test_one_conversation_takes_one_seat_unless_more_were_asked_for() -> None:
    scheduler = for_one_conversation(Configuration()).scheduler
    assert (scheduler.batch_members, scheduler.waiting) == (1, 0)
    asked = Configuration(scheduler=SchedulerSettings(batch_members=4, waiting=2))
    assert for_one_conversation(asked) == asked


def test_the_needs_of_a_real_model_come_from_its_header(smollm2_path: Path) -> None:
    state = 30 * 2 * 3 * 64 * 4
    needs = read_needs(str(smollm2_path))
    assert needs == ModelNeeds(context_max=8192, state_bytes_per_token=state, weight_bytes=96_576_768)
    halved = read_needs(str(smollm2_path), EngineSettings(kv_type="f16"))
    assert halved == ModelNeeds(context_max=8192, state_bytes_per_token=state // 2, weight_bytes=96_576_768)
    plain = read_needs(str(smollm2_path), EngineSettings(kernels="torch"))
    assert plain == ModelNeeds(context_max=8192, state_bytes_per_token=state, weight_bytes=4 * 134_515_008)
    plan = make_plan(Configuration(), [ModelSource(name="s", source=str(smollm2_path), backend="picolm")], host=HOST)
    assert plan.limits.queue.members_max == 16


def test_a_small_memory_gives_fewer_seats_rather_than_a_useless_context(smollm2_path: Path) -> None:
    tight = HostLimits(
        cores=2, cores_reason="", processors=2, memory_total=GIB, memory_available=GIB, memory_reason="a small container"
    )
    plan = make_plan(Configuration(), [ModelSource(name="s", source=str(smollm2_path), backend="picolm")], host=tight)
    assert 1 <= plan.limits.queue.members_max < 16
    assert plan.limits.queue.waiting_max == 4 * plan.limits.queue.members_max
