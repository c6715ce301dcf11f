"""`tripower settings`: every setting with its value, where that was given, what it takes and what it is for."""

from __future__ import annotations

import argparse
import sys

import msgspec

from tripower.api.cli import exit_codes
from tripower.api.cli.settings import configure_logs, read_configuration
from tripower.api.cli.terminal import dim
from tripower.runtime.configuration import SETTINGS, Described


class SettingLine(msgspec.Struct, frozen=True):
    """One setting in force."""

    path: str
    value: object
    source: str
    default: object
    takes: str
    about: str
    variable: str


def main(arguments: argparse.Namespace) -> int:
    """Print them. Returns the exit code; raises `InvalidSettings` like every command that reads settings."""
    configure_logs(arguments, normally="silent")
    lines = [line_of(described) for described in read_configuration(arguments).describe()]
    if arguments.json:
        print(msgspec.json.encode(lines).decode())
    else:
        print("\n".join(map(shown, lines)))
    return exit_codes.OK


def line_of(described: Described) -> SettingLine:
    """What is known of one setting."""
    setting = SETTINGS[described.path]
    return SettingLine(
        path=described.path,
        value=described.value,
        source=described.source,
        default=described.default,
        takes=setting.expected,
        about=setting.about,
        variable=setting.variable,
    )


def shown(line: SettingLine) -> str:
    """One setting for people: what is in force, and below it what it means."""
    said = "" if line.source == "default" else f"  ({line.source}; the default is {plain(line.default)})"
    return f"{line.path} = {plain(line.value)}{said}\n    {dim(f'{line.about}; takes {line.takes}', sys.stdout)}"


def plain(value: object) -> str:
    """A value as a configuration file has it."""
    return msgspec.json.encode(value).decode()
