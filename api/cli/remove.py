"""`tripower rm NAME`: remove models from the store."""

from __future__ import annotations

import argparse

from tripower.api.cli import exit_codes
from tripower.api.cli.settings import configure_logs
from tripower.api.cli.terminal import size
from tripower.runtime.store import Store


def main(arguments: argparse.Namespace) -> int:
    """Remove each; the first that is not there ends it. Returns the exit code."""
    configure_logs(arguments, normally="silent")
    store = Store()
    for name in arguments.names:
        freed = store.remove(name)
        print(f"removed {name}, {size(freed)} freed")
    return exit_codes.OK
