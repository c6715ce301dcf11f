"""`tripower bench …`: passed on as it is to `tripower.bench`, which is imported for it only."""

from __future__ import annotations

import argparse

from tripower.bench.cli import main as bench


def main(arguments: argparse.Namespace) -> int:
    """Returns the exit code of the bench."""
    return bench(arguments.rest)
