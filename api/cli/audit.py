"""`tripower audit FILE`: check an audit log's chain, and show what happened."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from tripower.api.cli import exit_codes
from tripower.api.cli.settings import configure_logs
from tripower.api.http.observe.audit import AuditEvent, read
from tripower.runtime.kernel import NotFound


def main(arguments: argparse.Namespace) -> int:
    """Print every event and a last line. Returns the exit code; raises `BrokenChain`, `NotFound`."""
    configure_logs(arguments, normally="silent")
    count = 0
    try:
        for event in read(Path(arguments.file).expanduser()):
            count += 1
            if not arguments.quiet:
                print(shown(event))
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {arguments.file}") from error
    print(f"{count} events, none changed or taken out")
    return exit_codes.OK


def shown(event: AuditEvent) -> str:
    """One event on one line."""
    at = datetime.fromtimestamp(event.timestamp, UTC).isoformat(timespec="milliseconds")
    what = " ".join(word for word in (event.action, event.model, event.status, event.reason) if word)
    figures = f"{event.duration_ms:.1f} ms, {event.tokens} tokens" if event.request_id else ""
    who = event.identity or "anybody"
    return ", ".join(part for part in (at, what, who, figures, event.request_id) if part)
