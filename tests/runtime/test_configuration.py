"""Settings are honoured or refused: from every source, in one order of precedence, with all violations at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.runtime.configuration import (
    SETTINGS,
    Configuration,
    InvalidSettings,
    SchedulerSettings,
    ServerSettings,
    Setting,
    check_configuration,
    load_configuration,
    parse_duration,
)
from tripower.runtime.configuration.schema import Refused
from tripower.runtime.configuration.text_values import value_from_text


def load(
    tmp_path: Path,
    toml: str | bytes = "",
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Configuration:
    (tmp_path / "config.toml").write_bytes(toml if isinstance(toml, bytes) else toml.encode())
    return load_configuration(file=None, environment={"TRIPOWER_HOME": str(tmp_path), **(environment or {})}, flags=flags or {})


def refused(tmp_path: Path, *arguments: Any) -> list[str]:
    with pytest.raises(InvalidSettings) as error:
        load(tmp_path, *arguments)
    assert error.value.message.splitlines() == [str(violation) for violation in error.value.violations]
    return [violation.path for violation in error.value.violations]


def value(configuration: Configuration, path: str) -> Any:
    return next(each.value for each in configuration.describe() if each.path == path)


def at(path: str, literal: str) -> str:
    section, _, name = path.rpartition(".")
    return (f"[{section}]\n" if section else "") + f"{name} = {literal}\n"


def test_without_any_input_everything_is_its_default(tmp_path: Path) -> None:
    assert load_configuration(file=None, environment={"TRIPOWER_HOME": str(tmp_path)}, flags={}) == Configuration()
    assert Configuration().server.port == 8420
    assert check_configuration(Configuration()) == Configuration()
    assert {each.source for each in Configuration().describe()} == {"default"}
    assert [each.path for each in Configuration().describe()] == list(SETTINGS)


NUMBERS = [path for path, setting in SETTINGS.items() if setting.kind in ("integer", "seconds")]


@pytest.mark.parametrize("path", NUMBERS)
def test_each_number_has_its_range_and_type(tmp_path: Path, path: str) -> None:
    meta = SETTINGS[path].annotation.__metadata__[0]
    text = '"80"' if SETTINGS[path].kind == "integer" else '"80 s"'
    for good in (meta.ge, meta.le):
        assert value(load(tmp_path, at(path, str(good))), path) == good
    for bad in (str(meta.ge - 1), str(meta.le + 1), text, "true", "[1]", "1e999", "nan", "-inf", "{}"):
        assert refused(tmp_path, at(path, bad)) == [path]


@pytest.mark.parametrize(
    ("path", "literal"),
    [
        ("server.host", "3"),
        ("server.host", '""'),
        ("server.host", '"a b"'),
        ("server.host", '"[::1]"'),
        ("server.host", '"-a"'),
        ("server.allowed_hosts", '"a"'),
        ("server.allowed_hosts", "[1]"),
        ("server.allowed_hosts", '["http://a"]'),
        ("server.allowed_hosts", str(["a"] * 65)),
        ("models", '"smollm2"'),
        ("engine.device", '"gpu"'),
        ("engine.device", '"cuda:"'),
        ("engine.device", '"cuda:-1"'),
        ("engine.device", '"cpu:0"'),
        ("models", '["a", ""]'),
        ("models", '["=smollm2"]'),
        ("models", '["NAME="]'),
        ("models", '[" a"]'),
        ("models", '["a\\nb"]'),
        ("models", f'["{"é" * 2049}"]'),
    ],
)
def test_texts_have_rules_of_their_own(tmp_path: Path, path: str, literal: str) -> None:
    assert refused(tmp_path, at(path, literal)) == [path]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::", "localhost", "box-1.example.org"])
def test_hosts_that_people_use_are_accepted(tmp_path: Path, host: str) -> None:
    assert load(tmp_path, at("server.host", f'"{host}"')).server.host == host


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_devices_are_named_as_torch_names_them(tmp_path: Path, device: str) -> None:
    assert load(tmp_path, at("engine.device", f'"{device}"')).engine.device == device


def test_later_sources_win(tmp_path: Path) -> None:
    toml, environment, flags = "[server]\nport = 1", {"TRIPOWER_SERVER__PORT": "2"}, {"server.port": 3}
    assert load(tmp_path).server.port == 8420
    for given_sources, port, source in (
        ((toml,), 1, f"file {tmp_path / 'config.toml'}"),
        ((toml, environment), 2, "environment TRIPOWER_SERVER__PORT"),
        ((toml, environment, flags), 3, "command line"),
    ):
        configuration = load(tmp_path, *given_sources)
        assert (configuration.server.port, configuration.source("server.port")) == (port, source)
        (described,) = [each for each in configuration.describe() if each.path == "server.port"]
        assert described == ("server.port", port, source, 8420)


def test_no_value_slips_past_a_rule_even_if_a_later_one_replaces_it(tmp_path: Path) -> None:
    assert refused(tmp_path, "[server]\nport = 1", {}, {"server.port": 70_000}) == ["server.port"]
    assert refused(tmp_path, "[server]\nport = 70000", {}, {"server.port": 0}) == ["server.port"]
    environment = {"TRIPOWER_SERVER__PORT": "x"}
    flags = [("server.port", "abc"), ("server.port", "1"), ("server.port", None)]
    with pytest.raises(InvalidSettings) as caught:
        load_configuration(file=None, environment={"TRIPOWER_HOME": "/nowhere", **environment}, flags=flags)
    assert [(each.got, each.source) for each in caught.value.violations] == [
        ("'x'", "environment TRIPOWER_SERVER__PORT"),
        ("'abc'", "command line"),
    ]
    good = load_configuration(
        file=None, environment={"TRIPOWER_HOME": "/nowhere"}, flags=[("server.port", "1"), ("server.port", "2")]
    )
    assert good.server.port == 2
    assert load(tmp_path, "", {}, {"server.port": None, "engine.threads": "4"}).engine.threads == 4


def test_all_violations_are_reported_together(tmp_path: Path) -> None:
    toml = """
        nonsense.a = 1
        server = {port = -1, max_body_bytes = 1, drain_timeout_s = nan, hots = "x"}
        engine = {threads = true, context = 1.5}
        scheduler = {batch_members = 257}
    """
    environment = {"TRIPOWER_SCHEDULER__WAITING": "", "TRIPOWER_SERVER__PROT": "80"}
    assert sorted(refused(tmp_path, toml, environment, {"server.host": ""})) == [
        "TRIPOWER_SERVER__PROT",
        "engine.context",
        "engine.threads",
        "nonsense",
        "scheduler.batch_members",
        "scheduler.waiting",
        "server.drain_timeout_s",
        "server.host",
        "server.hots",
        "server.max_body_bytes",
        "server.port",
    ]


def test_a_violation_says_what_was_expected_what_came_and_from_where(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings) as error:
        load(tmp_path, "", {"TRIPOWER_SERVER__PORT": "70000"})
    expected = "server.port: expected an integer from 0 to 65535, got '70000' (environment TRIPOWER_SERVER__PORT)"
    assert error.value.message == expected


@pytest.mark.parametrize(
    ("wrong", "suggested"),
    [
        ("TRIPOWER_SERVER__PROT", "TRIPOWER_SERVER__PORT"),
        ("TRIPOWER_SERVER_PORT", "TRIPOWER_SERVER__PORT"),
        ("TRIPOWER_APIKEY", "TRIPOWER_API_KEY"),
        ("TRIPOWER_HOM", "TRIPOWER_HOME"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_name_and_without_its_value(
    tmp_path: Path, wrong: str, suggested: str
) -> None:
    with pytest.raises(InvalidSettings) as error:
        load(tmp_path, "", {wrong: "sk-secret"})
    assert f"did you mean {suggested}?" in error.value.message
    assert "sk-secret" not in error.value.message


def test_variables_that_are_no_settings_are_left_alone(tmp_path: Path) -> None:
    names = ("TRIPOWER_LOG", "TRIPOWER_HUB_TOKEN", "TRIPOWER_URL", "TRIPOWER_API_KEY", "TRIPOWER_TEST_ANYTHING", "OTHER")
    assert load(tmp_path, "", dict.fromkeys(names, "x")) == Configuration()


def test_an_unknown_key_suggests_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"did you mean scheduler\.waiting\?"):
        load(tmp_path, "[scheduler]\nwaitin = 3")
    assert refused(tmp_path, "", {}, {"server.prot": 1}) == ["server.prot"]
    assert refused(tmp_path, "server = 3") == ["server"]


@pytest.mark.parametrize("toml", ["port = [", b"\xff", "a = 1\na = 2", "x = " + "[" * 5000, "#" * ((1 << 20) + 1)])
def test_a_file_that_is_no_toml_is_one_violation(tmp_path: Path, toml: str | bytes) -> None:
    assert refused(tmp_path, toml) == [str(tmp_path / "config.toml")]


def test_a_named_file_must_exist_and_a_default_one_need_not(tmp_path: Path) -> None:
    missing, other = tmp_path / "missing.toml", tmp_path / "other.toml"
    other.write_text("[server]\nport = 5\n")
    environment = {"TRIPOWER_HOME": str(tmp_path), "TRIPOWER_CONFIG": str(other)}
    assert load_configuration(file=None, environment=environment, flags={}).server.port == 5
    with pytest.raises(InvalidSettings, match="no such file"):
        load_configuration(file=missing, environment=environment, flags={})
    with pytest.raises(InvalidSettings, match="can be read"):
        load_configuration(file=tmp_path, environment=environment, flags={})
    with pytest.raises(InvalidSettings, match="no such file"):
        load_configuration(file=None, environment={"TRIPOWER_CONFIG": str(missing)}, flags={})


@pytest.mark.parametrize(
    ("text", "models"),
    [(" smollm2 , ,mine=hf:o/r/f ", ("smollm2", "mine=hf:o/r/f")), ("", ()), ('["a", "b"]', ("a", "b")), (",", ())],
)
def test_a_list_in_the_environment_is_split_at_commas(tmp_path: Path, text: str, models: tuple[str, ...]) -> None:
    assert load(tmp_path, "", {"TRIPOWER_MODELS": text}).models == models


@pytest.mark.parametrize("text", ["", " ", "x", "1\nthreads = 2", "1 2", "true", "1.0", '"3"', "nan"])
def test_a_number_in_the_environment_is_one_toml_value(tmp_path: Path, text: str) -> None:
    assert refused(tmp_path, "", {"TRIPOWER_SERVER__PORT": text}) == ["server.port"]


def test_booleans_have_eight_spellings() -> None:
    setting = Setting("x.y", "boolean", bool, "true or false", "", False)
    for text in ("1", "yes", "ON", "True"):
        assert value_from_text(setting, text) is True
    for text in ("0", "no", "Off", " FALSE "):
        assert value_from_text(setting, text) is False
    for text in ("maybe", "", "2"):
        with pytest.raises(Refused):
            value_from_text(setting, text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("-1", math.inf), ("120", 120), (" 30s ", 30), ("5m", 300), ("1h", 3600), ("8760h", 31_536_000)],
)
def test_durations_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0.5m", "5 minutes", "-5s", "8761h", "1d", "m", "1e3", "١s", "9" * 400, "-1s", "--1"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


def test_a_time_may_be_a_number_or_a_duration(tmp_path: Path) -> None:
    assert load(tmp_path, "[server]\ndrain_timeout_s = '2m'").server.drain_timeout_s == 120
    assert load(tmp_path, "[server]\ndrain_timeout_s = 1").server.drain_timeout_s == 1.0
    assert load(tmp_path, "", {"TRIPOWER_SERVER__DRAIN_TIMEOUT_S": "90s"}).server.drain_timeout_s == 90
    assert refused(tmp_path, "[server]\ndrain_timeout_s = '-1'") == ["server.drain_timeout_s"]
    assert refused(tmp_path, "", {"TRIPOWER_SERVER__DRAIN_TIMEOUT_S": "2h"}) == ["server.drain_timeout_s"]


def test_a_configuration_built_in_code_can_be_checked() -> None:
    wrong = Configuration(server=ServerSettings(port=70_000), scheduler=SchedulerSettings(batch_members=-1), models=("",))
    with pytest.raises(InvalidSettings) as error:
        check_configuration(wrong)
    assert [violation.path for violation in error.value.violations] == ["server.port", "scheduler.batch_members", "models"]


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Configuration().server.port = 1  # type: ignore[misc]


TOML = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.floats(), st.text(max_size=10), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["port", "host", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=150)
@given(flags=st.dictionaries(st.sampled_from([*SETTINGS, "server", "x", ""]), TOML, max_size=5))
def test_any_flags_give_a_valid_configuration_or_a_list_of_violations(flags: dict[str, object]) -> None:
    environment = {"TRIPOWER_HOME": "/nowhere"}
    try:
        configuration = load_configuration(file=None, environment=environment, flags=flags)
    except InvalidSettings as error:
        assert error.violations
        assert error.code == "invalid_configuration"
    else:
        assert check_configuration(configuration) == configuration
        assert msgspec.convert(msgspec.to_builtins(configuration), Configuration) == configuration


@settings(deadline=None, max_examples=150)
@given(variables=st.dictionaries(st.sampled_from([setting.variable for setting in SETTINGS.values()]), st.text(max_size=12)))
def test_any_environment_gives_a_valid_configuration_or_a_list_of_violations(variables: dict[str, str]) -> None:
    try:
        configuration = load_configuration(file=None, environment={"TRIPOWER_HOME": "/nowhere", **variables}, flags={})
    except InvalidSettings as error:
        assert {violation.path for violation in error.violations} <= set(SETTINGS)
    else:
        assert check_configuration(configuration) == configuration


def test_a_backend_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"engine\.backend: expected one of auto, picolm, .*got 'lamacpp'"):
        load(tmp_path, flags={"engine.backend": "lamacpp"})
    assert load(tmp_path, environment={"TRIPOWER_ENGINE__BACKEND": "llamacpp"}).engine.backend == "llamacpp"


def test_extensions_of_remote_servers_come_from_a_closed_list(tmp_path: Path) -> None:
    assert load(tmp_path, flags={"proxy.extensions": "top_k,min_p"}).proxy.extensions == ("top_k", "min_p")
    assert refused(tmp_path, at("proxy.extensions", '["top_k", "typical_p"]')) == ["proxy.extensions"]


@pytest.mark.parametrize("variable", ["TRIPOWER_UPSTREAM_KEY", "TRIPOWER_UPSTREAM_KEY_FAR_OFF"])
def test_a_key_in_the_environment_is_no_setting(variable: str, tmp_path: Path) -> None:
    assert "secret" not in repr(load(tmp_path, environment={variable: "secret"}))
