"""`tripower pull MODEL`: fetch a model into the store."""

from __future__ import annotations

import argparse
from functools import partial

from tripower.api.cli import exit_codes
from tripower.api.cli.interrupts import Interrupted, Interrupts, run_until_interrupted
from tripower.api.cli.progress import progress_display
from tripower.api.cli.settings import configure_logs
from tripower.api.cli.terminal import note, size, table
from tripower.api.pull import PullProgress, pull
from tripower.api.pull.sources import split_name
from tripower.runtime.store import Manifest, Store


def main(arguments: argparse.Namespace) -> int:
    """Fetch it, or find it there. Returns the exit code."""
    configure_logs(arguments, normally="silent")
    reference = arguments.reference
    if arguments.name:
        reference = f"{arguments.name}={split_name(reference)[1]}"
    try:
        manifest, fetched = run_until_interrupted(partial(_pull, arguments, reference))
    except Interrupted:
        note(f"stopped; `tripower pull {arguments.reference}` goes on from here")
        raise
    print(f"{manifest.name}: {'stored' if fetched else 'already stored'}, {size(manifest.size)}, SHA-256 verified")
    print(table([(f"  {file.sha256}", file.name) for file in manifest.files]))
    return exit_codes.OK


async def _pull(arguments: argparse.Namespace, reference: str, interrupts: Interrupts) -> tuple[Manifest, bool]:
    stages: set[str] = set()
    with progress_display(quiet=arguments.quiet) as display:
        show = display.pulling(split_name(arguments.reference)[1])

        def progress(news: PullProgress) -> None:
            stages.add(news.stage)
            show(news)

        manifest = await pull(reference, store=Store(), progress=progress, sha256=arguments.sha256)
    return manifest, "stored" in stages
