"""The settings of a run: `Configuration()` has the defaults, `load_configuration` reads file, environment and command line."""

from tripower.runtime.configuration.durations import parse_duration
from tripower.runtime.configuration.load import InvalidSettings, Violation, check_configuration, load_configuration, nearest
from tripower.runtime.configuration.schema import SETTINGS, Setting
from tripower.runtime.configuration.settings import (
    BACKENDS,
    AuthSettings,
    Configuration,
    ConsoleSettings,
    Described,
    EngineSettings,
    ProxySettings,
    SchedulerSettings,
    ServerSettings,
    SpeculationChoices,
)

__all__ = [
    "BACKENDS",
    "SETTINGS",
    "AuthSettings",
    "Configuration",
    "ConsoleSettings",
    "Described",
    "EngineSettings",
    "InvalidSettings",
    "ProxySettings",
    "SchedulerSettings",
    "ServerSettings",
    "Setting",
    "SpeculationChoices",
    "Violation",
    "check_configuration",
    "load_configuration",
    "nearest",
    "parse_duration",
]
