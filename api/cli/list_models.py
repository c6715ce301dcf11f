"""`tripower list`: the models of the store."""

from __future__ import annotations

import argparse

import msgspec

from tripower.api.cli import exit_codes
from tripower.api.cli.settings import configure_logs
from tripower.api.cli.terminal import size, table
from tripower.api.pull import BUILT_INS
from tripower.runtime.store import Manifest, Store


def main(arguments: argparse.Namespace) -> int:
    """Print a table, or JSON. Returns the exit code."""
    configure_logs(arguments, normally="silent")
    manifests = Store().list()
    if arguments.json:
        print(msgspec.json.encode(manifests).decode())
    elif manifests:
        print(table([("NAME", "SIZE", "FORMAT", "SOURCE", "PULLED"), *map(_row, manifests)]))
    else:
        print(f"no models here yet; `tripower pull {next(iter(BUILT_INS))}` fetches a small one")
    return exit_codes.OK


def _row(manifest: Manifest) -> tuple[str, ...]:
    return manifest.name, size(manifest.size), manifest.format, manifest.source, f"{manifest.created:%Y-%m-%d}"
