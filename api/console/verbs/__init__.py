"""All verbs by name.

A new one is a module here with a tuple `VERBS`, named in `MODULES` with its verbs: clients load no more than the module that they need.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from tripower.api.console.verb import Verb
from tripower.runtime.kernel.errors import InvalidRequest

MODULES: Mapping[str, tuple[str, ...]] = {
    "help": ("help",),
    "requests": ("requests", "trace", "cancel"),
    "state": ("devices", "models", "cache", "health"),
    "control": ("load", "unload", "drain", "set"),
    "python": ("py",),
    "actors": ("ps", "tree"),
    "where": ("where", "stacktrace"),
    "stalls": ("stalls",),
    "record": ("record",),
    "overview": ("overview", "watch"),
}
"""The modules of this package, and the names of each one's verbs, in the order of `help`."""


def find_verb(name: str) -> Verb:
    """The verb of this name; imports its module. Raises `InvalidRequest` (`unknown_verb`) with the nearest name."""
    for module, names in MODULES.items():
        if name in names:
            return next(verb for verb in verbs_of(module) if verb.name == name)
    raise unknown_verb(name)


def all_verbs() -> dict[str, Verb]:
    """Every verb by name, in the order of `help`. Imports all their modules, once."""
    return {verb.name: verb for module in MODULES for verb in verbs_of(module)}


def verbs_of(module: str) -> tuple[Verb, ...]:
    """The verbs of one module here."""
    verbs: tuple[Verb, ...] = import_module(f"{__name__}.{module}").VERBS
    return verbs


def unknown_verb(name: str) -> InvalidRequest:
    """What to raise for a name that no verb has."""
    from tripower.runtime.configuration import nearest  # nobody needs it who types well

    known = [verb for names in MODULES.values() for verb in names]
    return InvalidRequest(f"{name[:100]!r} is no verb{nearest(name[:100], known)}: `help` lists them", code="unknown_verb")
