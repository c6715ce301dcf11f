"""`tripower audit FILE`: check an audit log's chain, and show what happened."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from pathlib import Path

from tripower.api.cli import exit_codes
from tripower.api.cli.settings import configure_logs
from tripower.api.http.observe.audit_chain import AuditEvent, read
from tripower.runtime.kernel import NotFound

NAME = re.compile(r"[A-Za-z0-9._:/@+-]*")


def main(arguments: argparse.Namespace) -> int:
    """Print every event and a last line. Returns the exit code; raises `BrokenChain`, `NotFound`."""
    configure_logs(arguments, normally="silent")
    count = missing = 0
    try:
        for event in read(Path(arguments.file).expanduser()):
            count += 1
            missing += event.count or 0
            if not arguments.quiet:
                print(shown(event))
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {arguments.file}") from error
    print(f"{count} events, none changed or taken out" + (f"; {missing} more could not be written" if missing else ""))
    return exit_codes.OK


def shown(event: AuditEvent) -> str:
    """One event on one line. A model's name comes from whoever asked: one that is more than a name is quoted and escaped."""
    model = event.model if NAME.fullmatch(event.model) else repr(event.model)
    lost = f"{event.count} events" if event.count else ""
    at = datetime.fromtimestamp(event.timestamp, UTC).isoformat(timespec="milliseconds")
    what = " ".join(word for word in (event.action, lost, model, event.status, event.reason) if word)
    figures = f"{event.duration_ms:.1f} ms, {event.tokens} tokens" if event.request_id else ""
    who = event.identity or "anybody"
    return ", ".join(part for part in (at, what, who, figures, event.request_id) if part)
