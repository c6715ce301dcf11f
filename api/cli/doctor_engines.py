"""The part of `tripower doctor` about engines: which are here, and which of them each model of the store would get."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import version

import msgspec

from tripower.api.engines import LLAMACPP, MISTRALRS, engine_problem
from tripower.api.plan import find_source, takes_files
from tripower.runtime.configuration import Configuration
from tripower.runtime.configuration.load import KEY_PREFIX
from tripower.runtime.kernel.errors import TripowerError
from tripower.runtime.store import Store

OPTIONAL = {LLAMACPP: "xllamacpp", MISTRALRS: "mistralrs"}
"""Engines that an extra installs, and the distribution that has the engine itself."""


class EngineFinding(msgspec.Struct, frozen=True):
    """What there is to say of one engine or one model; `missing` where something keeps it from running."""

    name: str
    value: str
    reason: str
    missing: bool = False


def engines(configuration: Configuration, store: Store) -> Iterator[EngineFinding]:
    """Every engine, then every model. Blocks: the headers of the model files are read."""
    yield EngineFinding("picolm", "here", "our own: what auto chooses for every model that it knows")
    for name, distribution in OPTIONAL.items():
        problem = engine_problem(name)
        if problem is None:
            yield EngineFinding(
                name, version(distribution), "what auto chooses for the others" if name == LLAMACPP else "only if named"
            )
        else:
            yield EngineFinding(name, "not here", problem.message, missing=True)
    yield from _certificates({manifest.name for manifest in store.list()})
    keys = sorted(variable for variable in os.environ if variable.startswith(KEY_PREFIX))
    yield EngineFinding("proxy", "here", f"asks other servers; keys in {', '.join(keys) if keys else 'no variable'}")
    yield EngineFinding("engine.backend", configuration.engine.backend, configuration.source("engine.backend"))
    if takes_files(configuration):
        yield from _models(configuration, store)


def _models(configuration: Configuration, store: Store) -> Iterator[EngineFinding]:
    for manifest in store.list():
        try:
            source = find_source(manifest.name, store, configuration)
        except TripowerError as error:
            yield EngineFinding(manifest.name, "no engine", error.message, missing=True)
        else:
            yield EngineFinding(manifest.name, source.backend, source.reason)


def _certificates(names: set[str]) -> Iterator[EngineFinding]:
    """What was measured of picolm's exactness on this machine; a model that was never loaded here has nothing yet."""
    try:
        from tripower.backends.picolm.native.certificate import kept_certificates
        from tripower.backends.picolm.native.target import host_target
    except ImportError as error:
        yield EngineFinding("picolm kernels", "plain torch", f"llvmlite cannot be used: {error}")
        return
    yield EngineFinding(
        "picolm kernels", host_target().name, "code is generated for this width; torch where a model does not allow it"
    )
    widest = {
        kept.model: kept
        for kept in sorted(kept_certificates(), key=lambda kept: (kept.certificate.row_counts, kept.threads))
        if kept.model in names
    }
    for name, kept in sorted(widest.items()):
        found = kept.certificate
        yield EngineFinding(
            f"certificate {name}",
            "numeric" if found.mismatches else "exact",
            f"{found.mismatches} rows differed from a row alone among steps of 1 to {found.row_counts} rows, {kept.threads} threads",
            missing=bool(found.mismatches),
        )
