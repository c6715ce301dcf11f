"""`tripower doctor`: what this machine is, what would be used on it and why, and what is in the way."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import msgspec

from tripower.api.cli import exit_codes
from tripower.api.cli.doctor_engines import engines
from tripower.api.cli.doctor_listener import listener
from tripower.api.cli.settings import configure_logs, read_configuration
from tripower.api.cli.terminal import size
from tripower.api.http.auth import load_keys
from tripower.api.version import VERSION
from tripower.runtime.configuration import Configuration
from tripower.runtime.host import HostLimits, choose_defaults, read_host_limits
from tripower.runtime.kernel.errors import TripowerError
from tripower.runtime.store import Store

LIBRARIES = ("torch", "llvmlite", "trio", "hypercorn", "httpx", "tokenizers", "numpy")
NEEDED = ("torch", "llvmlite", "tokenizers")
"""Those that are imported to see whether they work: their native parts may not fit the machine."""
DISK_BYTES_MIN = 1 << 30
MEMORY_BYTES_MIN = 1 << 30


class Finding(msgspec.Struct, frozen=True):
    """One line of the report."""

    part: str
    name: str
    value: str
    reason: str = ""
    state: Literal["ok", "note", "fail"] = "ok"


def main(arguments: argparse.Namespace) -> int:
    """Print the findings. Returns the exit code: 1 when something is in the way of serving."""
    configure_logs(arguments, normally="silent")
    findings = list(examine(read_configuration(arguments)))
    failed = [finding for finding in findings if finding.state == "fail"]
    if arguments.json:
        print(msgspec.json.encode({"ok": not failed, "findings": findings}).decode())
    else:
        print(report(findings))
    return exit_codes.REFUSED if failed else exit_codes.OK


def examine(configuration: Configuration) -> Iterator[Finding]:
    """Everything, part by part. Blocks for a few seconds: torch is imported."""
    host = read_host_limits()
    yield from machine(host)
    yield from software()
    yield from defaults(host, configuration)
    yield from settings(configuration)
    yield from store(Store())
    yield from engine_findings(configuration, Store())
    yield from keys(configuration)
    for found in listener(configuration):
        yield Finding("listener", found.name, found.value, found.reason, found.state)


def machine(host: HostLimits) -> Iterator[Finding]:
    """What the process may use."""
    yield Finding("machine", "processor", host.processor_name, " ".join(host.features))
    yield Finding("machine", "cores", str(host.cores), f"{host.cores_reason}; {host.processors} logical processors in all")
    short = host.memory_available < MEMORY_BYTES_MIN
    yield Finding(
        "machine",
        "memory",
        f"{size(host.memory_available)} of {size(host.memory_total)}",
        host.memory_reason + (": raise the limit or end other programs, the smallest model needs 1 GiB" if short else ""),
        "fail" if short else "ok",
    )
    if platform.machine() in ("x86_64", "AMD64") and "avx2" not in host.features:
        yield Finding("machine", "AVX2", "missing", "everything works, several times slower", "note")


def software() -> Iterator[Finding]:
    """Versions, and whether what has native parts can be imported."""
    yield Finding("software", "tripower", VERSION, f"Python {platform.python_version()}, {platform.platform()}")
    for name in LIBRARIES:
        try:
            if name in NEEDED:
                importlib.import_module(name)
            yield Finding("software", name, version(name))
        except PackageNotFoundError:
            yield Finding("software", name, "missing", "install it again: pip install --force-reinstall tripower", "fail")
        except (ImportError, OSError) as error:
            yield Finding("software", name, "broken", f"{error}: reinstall it with pip", "fail")


def defaults(host: HostLimits, configuration: Configuration) -> Iterator[Finding]:
    """What is used where the user said nothing."""
    try:
        chosen = choose_defaults(host, configuration)
    except TripowerError as error:
        yield Finding("defaults", "memory", "too little", error.message, "fail")
        return
    yield Finding("defaults", "threads", str(chosen.threads.value), chosen.threads.reason)
    yield Finding("defaults", "batch members", str(chosen.batch_members.value), chosen.batch_members.reason)
    yield Finding("defaults", "waiting", str(chosen.waiting.value), chosen.waiting.reason)
    yield Finding("defaults", "prefill rows", str(chosen.prefill_rows.value), chosen.prefill_rows.reason)
    yield Finding("defaults", "mixed rows", str(chosen.mixed_rows.value), chosen.mixed_rows.reason)
    yield Finding("defaults", "state memory", size(chosen.state_bytes.value), chosen.state_bytes.reason)
    yield Finding("defaults", "context", "the model's own", "or as much as the state memory holds for every member")
    yield Finding("defaults", "drain timeout", f"{chosen.drain_timeout_s.value:g} s", chosen.drain_timeout_s.reason)


def settings(configuration: Configuration) -> Iterator[Finding]:
    """What was set, and where."""
    for described in configuration.describe():
        if described.source != "default":
            yield Finding(
                "settings", described.path, str(described.value), f"{described.source}; the default is {described.default}"
            )


def store(models: Store) -> Iterator[Finding]:
    """Where models lie, and whether more would fit."""
    home = models.home
    manifests = models.list()
    count = f"{len(manifests)} model{'' if len(manifests) == 1 else 's'}, {size(sum(each.size for each in manifests))}"
    yield Finding("store", "place", str(home), count)
    present = next(folder for folder in (home, *home.parents) if folder.exists())
    if not os.access(present, os.W_OK):
        yield Finding(
            "store", "access", "read-only", f"make {present} writable, or set TRIPOWER_HOME to another directory", "fail"
        )
    free = shutil.disk_usage(present).free
    short = free < DISK_BYTES_MIN
    yield Finding(
        "store", "free space", size(free), "`tripower rm NAME` frees some" if short else "", "note" if short else "ok"
    )
    if not manifests:
        yield Finding("store", "models", "none", "`tripower pull smollm2` fetches a small one", "note")


def engine_findings(configuration: Configuration, models: Store) -> Iterator[Finding]:
    """Which engines are here, and which of them each model gets. Nothing that is missing is in the way: there is always ours."""
    for found in engines(configuration, models):
        yield Finding("engines", found.name, found.value, found.reason, "note" if found.missing else "ok")


def keys(configuration: Configuration) -> Iterator[Finding]:
    """Who may ask."""
    try:
        found = load_keys(configuration.auth)
    except TripowerError as error:
        yield Finding("listener", "API keys", "unusable", error.message, "fail")
        return
    if found is None:
        yield Finding("listener", "API keys", "off", "everybody who reaches the address may ask")
        return
    names = ", ".join(key.name or key.identity for key in found[:8])
    yield Finding("listener", "API keys", str(len(found)), names, "ok" if found else "note")


MARKS = {"ok": " ", "note": "!", "fail": "x"}


def report(findings: list[Finding]) -> str:
    """The findings for people: parts as headings, a mark before what needs attention."""
    lines: list[str] = []
    part = ""
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        if finding.part != part:
            part = finding.part
            lines += ["", part] if lines else [part]
        text = f"{MARKS[finding.state]} {finding.name.ljust(width)}  {finding.value}"
        lines.append(f"{text}  ({finding.reason})" if finding.reason else text)
    failed = sum(finding.state == "fail" for finding in findings)
    lines += ["", f"{failed} thing{'' if failed == 1 else 's'} in the way, marked x" if failed else "all is well"]
    return "\n".join(lines)
