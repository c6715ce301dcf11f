"""From a file, the environment and the command line to one checked `Configuration`.

Later ones win: defaults < file < environment < command line. Every value is checked, also one that a later one replaces, and every
violation is reported, a line each, in one `InvalidSettings`. Nothing has been opened or bound by then, except the file itself.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from tripower.runtime.configuration.schema import SECTIONS, SETTINGS, Refused, checked
from tripower.runtime.configuration.settings import Configuration, values
from tripower.runtime.configuration.text_values import value_from_text
from tripower.runtime.kernel.errors import InvalidConfiguration
from tripower.runtime.store.home import home_directory

FILE_BYTES_MAX = 1 << 20
PREFIX = "TRIPOWER_"
NOT_SETTINGS = frozenset(
    PREFIX + name
    for name in ("HOME", "CONFIG", "LOG", "HUB_TOKEN", "URL", "API_KEY", "API_KEYS", "KERNEL_CACHE", "RUNTIME_DIR")
)
TEST_PREFIX = "TRIPOWER_TEST_"
KEY_PREFIX = "TRIPOWER_UPSTREAM_KEY"
"""Keys of remote servers: `TRIPOWER_UPSTREAM_KEY`, and `TRIPOWER_UPSTREAM_KEY_<NAME>` for a single model."""


Flags: TypeAlias = Mapping[str, object] | Sequence[tuple[str, object]]


class Violation(msgspec.Struct, frozen=True):
    """One thing that is wrong, where, and who said it."""

    path: str
    expected: str
    got: str
    source: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, got {self.got} ({self.source})"


class InvalidSettings(InvalidConfiguration):
    """All violations of one configuration."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        super().__init__("\n".join(str(violation) for violation in violations))
        self.violations = tuple(violations)


class Given(msgspec.Struct, frozen=True):
    """A value as someone gave it. `text` when it still has to be read as text."""

    value: Any
    source: str
    text: bool = False


def load_configuration(*, file: Path | None, environment: Mapping[str, str], flags: Flags) -> Configuration:
    """The configuration in force. Blocks for one small file; raises `InvalidSettings` with everything that is wrong.

    `file` is one that the user named; without it `$TRIPOWER_CONFIG`, else `config.toml` in the home directory if there is one. `flags`
    are by path (`server.port`), or pairs where a path may come twice; None means not given. A value that a later one replaces is
    checked all the same: whoever gave it believes in it.
    """
    violations: list[Violation] = []
    given: list[tuple[str, Given]] = []
    given += _from_file(file, environment, violations)
    given += _from_environment(environment, violations)
    given += _from_flags(flags, violations)
    accepted = _accepted(given, violations)
    if violations:
        raise InvalidSettings(violations)
    return _built(accepted, {path: each.source for path, each in given})


def check_configuration(configuration: Configuration) -> Configuration:
    """The same configuration, if every value is in its range: for one that was built in code. Raises `InvalidSettings`."""
    violations: list[Violation] = []
    given = [(path, Given(list(value) if isinstance(value, tuple) else value, "code")) for path, value in values(configuration)]
    _accepted(given, violations)
    if violations:
        raise InvalidSettings(violations)
    return configuration


def _from_file(file: Path | None, environment: Mapping[str, str], violations: list[Violation]) -> list[tuple[str, Given]]:
    named = file or (Path(environment["TRIPOWER_CONFIG"]).expanduser() if environment.get("TRIPOWER_CONFIG") else None)
    path = named or home_directory(environment) / "config.toml"
    source = f"file {path}"
    try:
        with path.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"it is longer than {FILE_BYTES_MAX} bytes")
        tables = tomllib.loads(data.decode())
    except FileNotFoundError:
        if named is not None:
            violations.append(Violation(str(path), "a configuration file", "no such file", source))
        return []
    except OSError as error:
        violations.append(Violation(str(path), "a configuration file that can be read", error.strerror or str(error), source))
        return []
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or nested without end
        violations.append(Violation(str(path), "valid TOML", str(error)[:200] or "too deep a nesting", source))
        return []
    return list(_flattened(tables, source, violations))


def _flattened(tables: Mapping[str, Any], source: str, violations: list[Violation]) -> Iterator[tuple[str, Given]]:
    for key, value in tables.items():
        if key not in SECTIONS:
            yield from _known(key, value, source, violations)
        elif not isinstance(value, dict):
            violations.append(Violation(key, "a table", shown(value), source))
        else:
            for inner, leaf in value.items():
                yield from _known(f"{key}.{inner}", leaf, source, violations)


def _known(path: str, value: Any, source: str, violations: list[Violation]) -> Iterator[tuple[str, Given]]:
    if path in SETTINGS:
        yield path, Given(value, source)
    else:
        violations.append(Violation(path, f"a known setting{nearest(path, SETTINGS)}", "an unknown one", source))


def _from_environment(environment: Mapping[str, str], violations: list[Violation]) -> list[tuple[str, Given]]:
    variables = {setting.variable: path for path, setting in SETTINGS.items()}
    given = []
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name.startswith((TEST_PREFIX, KEY_PREFIX)) or name in NOT_SETTINGS:
            continue
        if name in variables:
            given.append((variables[name], Given(environment[name], f"environment {name}", text=True)))
        else:
            close = nearest(name, [*variables, *NOT_SETTINGS])
            violations.append(Violation(name, f"a known variable{close}", "an unknown one", "environment"))
    return given


def _from_flags(flags: Flags, violations: list[Violation]) -> Iterator[tuple[str, Given]]:
    for name, value in flags.items() if isinstance(flags, Mapping) else flags:
        if value is not None:
            for path, each in _known(name, value, "command line", violations):
                yield path, Given(each.value, each.source, text=isinstance(each.value, str))


def _accepted(given: Iterable[tuple[str, Given]], violations: list[Violation]) -> dict[str, Any]:
    accepted = {}
    for path, each in given:
        setting = SETTINGS[path]
        try:
            accepted[path] = checked(setting, value_from_text(setting, each.value) if each.text else each.value)
        except Refused as refusal:
            violations.append(Violation(path, str(refusal), shown(each.value), each.source))
    return accepted


def _built(accepted: Mapping[str, Any], sources: dict[str, str]) -> Configuration:
    top: dict[str, Any] = {path: value for path, value in accepted.items() if "." not in path}
    base = Configuration()
    for section in sorted(SECTIONS):
        prefix = section + "."
        changes = {path.removeprefix(prefix): value for path, value in accepted.items() if path.startswith(prefix)}
        top[section] = msgspec.structs.replace(getattr(base, section), **changes)
    return Configuration(**top, sources=sources)


def shown(value: Any) -> str:
    """A value for a message: short, on one line."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def nearest(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """` (did you mean …?)`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
