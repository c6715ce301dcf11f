"""What the fetchers share: the place for unfinished files, the progress meter, and what a finished file is.

A fetcher turns a source into `Fetched` files inside `Workspace.directory`. It may find there what an interrupted attempt left; it must
hash everything it hands over. The directory survives an interruption and is removed by `pull.py` after success or a wrong digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from tripower.api.pull.progress import Meter
from tripower.runtime.store import DigestMismatch, Store, StoredFile

Result = TypeVar("Result")


@attrs.frozen
class Fetched:
    """A complete file. `path` is None when the store has the bytes already."""

    file: StoredFile
    path: Path | None


@attrs.frozen
class Workspace:
    """One pull's surroundings. `sha256` is the digest that the caller insists on, for the model file."""

    store: Store
    directory: Path
    meter: Meter
    environment: Mapping[str, str]
    sha256: str | None = None


async def in_thread(call: Callable[..., Result], *arguments: object) -> Result:
    """Run blocking work beside the loop. A cancellation is heard when the work next tells its progress, and at its end."""
    return await trio.to_thread.run_sync(call, *arguments)


def check_digest(what: str, actual: str, expected: str | None) -> None:
    """Raise `DigestMismatch` unless `expected` is None or equal."""
    if expected is not None and actual != expected:
        raise DigestMismatch(
            f"{what} has the wrong SHA-256: expected {expected}, got {actual}. Nothing was kept; "
            f"check the source and the digest, then pull again"
        )
