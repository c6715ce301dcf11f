"""Defaults are what someone who knows the machine would choose, and each says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.runtime.configuration import (
    Configuration,
    EngineSettings,
    SchedulerSettings,
    ServerSettings,
    check_configuration,
    load_configuration,
)
from tripower.runtime.host import Choice, Defaults, HostLimits, ModelNeeds, choose_defaults
from tripower.runtime.kernel.errors import ModelRefused

GB = 10**9
SMOLLM2 = ModelNeeds(context_max=8192, state_bytes_per_token=46_080, weight_bytes=GB // 2)


def machine(cores: int = 2, memory: int = 24 * GB) -> HostLimits:
    return HostLimits(
        cores=cores,
        cores_reason=f"{cores} cores",
        processors=cores,
        memory_total=memory,
        memory_available=memory,
        memory_reason="all of it",
    )


def plain(defaults: Defaults) -> dict[str, float | None]:
    return {
        name: None if getattr(defaults, name) is None else getattr(defaults, name).value for name in defaults.__struct_fields__
    }


@pytest.mark.parametrize(
    ("cores", "threads", "members", "waiting", "prefill_rows"),
    [(1, 1, 8, 32, 128), (2, 2, 16, 64, 256), (4, 4, 32, 128, 512), (8, 8, 64, 256, 1024), (128, 64, 64, 256, 1024)],
)
def test_they_grow_with_the_cores_to_a_limit(cores: int, threads: int, members: int, waiting: int, prefill_rows: int) -> None:
    assert plain(choose_defaults(machine(cores), Configuration())) == {
        "threads": threads,
        "batch_members": members,
        "waiting": waiting,
        "prefill_rows": prefill_rows,
        "mixed_rows": 12 * cores,
        "state_bytes": 12 * GB,
        "drain_timeout_s": 30.0,
        "context": None,
    }


@pytest.mark.parametrize(
    ("memory", "context", "members"),
    [
        pytest.param(24 * GB, 8192, 16, id="all that the model was trained for"),
        pytest.param(6 * GB, 3584, 16, id="a part of it for everyone"),
        pytest.param(2 * GB, 2048, 7, id="a comfortable part for fewer"),
        pytest.param(GB // 2 + 120_000_000, 1280, 1, id="what there is for one"),
    ],
)
def test_the_context_and_the_batch_fit_the_memory_that_the_weights_leave(memory: int, context: int, members: int) -> None:
    defaults = choose_defaults(machine(memory=memory), Configuration(), SMOLLM2)
    assert defaults.context is not None
    assert (defaults.context.value, defaults.batch_members.value) == (context, members)
    assert defaults.waiting.value == 4 * members
    assert context * members * SMOLLM2.state_bytes_per_token <= defaults.state_bytes.value


@pytest.mark.parametrize("memory", [0, GB // 4, GB // 2, GB // 2 + 30_000_000])
def test_a_model_that_does_not_fit_is_refused_with_the_cure(memory: int) -> None:
    with pytest.raises(ModelRefused, match=r"choose a smaller model|raise the (memory )?limit") as refused:
        choose_defaults(machine(memory=memory), Configuration(), SMOLLM2)
    assert refused.value.code == "not_enough_memory"


def test_too_few_tokens_for_any_use_are_refused() -> None:
    heavy = ModelNeeds(context_max=8192, state_bytes_per_token=GB // 100)
    with pytest.raises(ModelRefused, match="hold 50 tokens of this model, and 256 are needed"):
        choose_defaults(machine(memory=GB), Configuration(), heavy)


def test_what_the_user_set_is_taken_and_named(tmp_path: Path) -> None:
    configuration = load_configuration(
        file=None,
        environment={"TRIPOWER_HOME": str(tmp_path), "TRIPOWER_ENGINE__THREADS": "7", "TRIPOWER_SERVER__DRAIN_TIMEOUT_S": "5"},
        flags={"scheduler.waiting": 0, "scheduler.batch_members": 3, "scheduler.prefill_rows": 9, "engine.state_bytes": 5 * GB},
    )
    defaults = choose_defaults(machine(), configuration, SMOLLM2)
    assert plain(defaults) == {
        "threads": 7,
        "batch_members": 3,
        "waiting": 0,
        "prefill_rows": 9,
        "mixed_rows": 24,
        "state_bytes": 5 * GB,
        "drain_timeout_s": 5.0,
        "context": 8192,
    }
    assert defaults.threads.reason == "set by environment TRIPOWER_ENGINE__THREADS"
    assert defaults.waiting.reason == "set by command line"
    assert defaults.drain_timeout_s.reason == "set by environment TRIPOWER_SERVER__DRAIN_TIMEOUT_S"


def test_what_code_set_counts_as_set() -> None:
    configuration = Configuration(engine=EngineSettings(threads=1), server=ServerSettings(drain_timeout_s=1.0))
    defaults = choose_defaults(machine(), configuration)
    assert defaults.threads == Choice(1, "set in code")
    assert defaults.drain_timeout_s.value == 1.0


def test_an_explicit_context_takes_seats_but_never_exceeds_the_model() -> None:
    long = choose_defaults(machine(memory=3 * GB), Configuration(engine=EngineSettings(context=8192)), SMOLLM2)
    assert long.context == Choice(8192, "set in code")
    assert long.batch_members.value == 3
    beyond = choose_defaults(machine(), Configuration(engine=EngineSettings(context=100_000)), SMOLLM2)
    assert beyond.context is not None
    assert beyond.context.value == 8192
    assert "100000" in beyond.context.reason
    with pytest.raises(ModelRefused, match=r"lower engine\.context"):
        choose_defaults(machine(memory=GB), Configuration(engine=EngineSettings(context=8192)), SMOLLM2)


def test_explicit_members_keep_their_number() -> None:
    configuration = Configuration(scheduler=SchedulerSettings(batch_members=32))
    defaults = choose_defaults(machine(memory=2 * GB), configuration, SMOLLM2)
    assert defaults.batch_members.value == 32


def test_a_tiny_model_needs_no_grain() -> None:
    toy = ModelNeeds(context_max=64, state_bytes_per_token=16)
    defaults = choose_defaults(machine(), Configuration(), toy)
    assert defaults.context is not None
    assert defaults.context.value == 64


@settings(deadline=None)
@given(
    cores=st.integers(1, 300),
    memory=st.integers(0, 2**41),
    context_max=st.integers(1, 2**20),
    per_token=st.integers(0, 2**22),
    weights=st.integers(0, 2**38),
)
def test_every_choice_is_usable_explained_and_within_memory(
    cores: int, memory: int, context_max: int, per_token: int, weights: int
) -> None:
    model = ModelNeeds(context_max=context_max, state_bytes_per_token=per_token, weight_bytes=weights)
    try:
        defaults = choose_defaults(machine(cores, memory), Configuration(), model)
    except ModelRefused:
        return
    for name in defaults.__struct_fields__:
        choice = getattr(defaults, name)
        assert choice.value > 0
        assert choice.reason
    assert defaults.context is not None
    assert defaults.context.value <= context_max
    assert defaults.context.value * defaults.batch_members.value * per_token <= defaults.state_bytes.value <= memory
    check_configuration(
        Configuration(
            scheduler=SchedulerSettings(batch_members=defaults.batch_members.value, waiting=defaults.waiting.value),
            engine=EngineSettings(threads=defaults.threads.value, context=defaults.context.value),
        )
    )
