"""Flight recordings of a test's own runtime, as they come out of a file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from tripower.actors.runtime import Runtime
from tripower.api.console.verb import Subject
from tripower.api.console.verbs.record import ALL, record
from tripower.runtime.introspection.recording import FlightRecording, Line, read_recording, write_lines


async def recorded_lines(runtime: Runtime, *words: str) -> list[Line]:
    """The lines of what `record` answers; without words, of all that the ring holds."""
    return await lines_of_record(runtime, words or (ALL,))


async def lines_of_record(runtime: Runtime, words: Sequence[str]) -> list[Line]:
    """The lines of what `record` answers to these words."""
    lines: list[Line] = []
    async with aclosing(cast(Any, record(Subject(runtime=runtime), words))) as parts:
        async for part in cast(AsyncIterator[Any], parts):
            lines += part if isinstance(part, list) else [part]
    return lines


def through_file(lines: list[Line], folder: Path) -> FlightRecording:
    """What they are once they have been a file."""
    path = folder / "flight"
    path.write_bytes(b"".join(write_lines(lines)))
    return read_recording(path)
