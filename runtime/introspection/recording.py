"""What a flight recording is, in memory and as a file: JSON lines, a beginning, records in the order of their numbers, and an end.

All times are seconds on Trio's clock of the process that was recorded, as exact as they were; `Beginning.clock` is when its recorder
came. A file without its end is truncated and is refused as a whole, as is one of another format, or with a line that is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import msgspec

from tripower.runtime.kernel.errors import InvalidRequest

FORMAT = 1
MAGIC = "tripower recording"
FILE_BYTES_MAX = 2 << 30


class ActorPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """An actor at the beginning or at the end of a recording."""

    name: str
    kind: str
    parent: str
    state: str
    inbox: int = 0
    control: int = 0
    pending: int = 0
    restarts: int = 0


class Beginning(msgspec.Struct, frozen=True, kw_only=True, tag="beginning"):
    """The first line: what was recorded, by what."""

    magic: str = MAGIC
    format: int = FORMAT
    version: str
    pid: int
    at: str
    """Wall time, ISO 8601 in UTC."""
    clock: float
    """When the recorder came, on Trio's clock."""
    now: float
    """When the recording began to be written, on the same clock."""
    payloads: bool = False
    models: tuple[str, ...] = ()
    actors: tuple[ActorPlace, ...] = ()


class Passed(msgspec.Struct, frozen=True, kw_only=True, tag="message", omit_defaults=True):
    """A message that was over then: `sent` to `started` it waited, `started` to `ended` it was handled."""

    number: int
    sent: float | None = None
    """Of an ask to an actor that had nothing else to do: when it was taken. Of an answer: when the ask was kept. None where it is not known."""
    sender: str = ""
    """The name of the task."""
    receiver: str
    kind: str
    """`ask`, `tell`, `control`, or `answer`: what became of an ask that was kept, from then on."""
    message: str
    """Its type, or types."""
    started: float | None = None
    """None where no handler began."""
    ended: float
    outcome: str
    """`answered`, `taken` (nobody waited for an answer), `later`, or the code of what went wrong. An ask with `later` comes again as an `answer`."""
    size: int = 0
    """Bytes of its JSON, about."""
    payload: Any = None
    """What it said, where that was asked for."""


class Crashed(msgspec.Struct, frozen=True, tag="crashed"):
    """A note: an actor's instance ended with an error that it did not expect."""

    actor: str
    error: str
    """Its type, or types."""


class Noted(msgspec.Struct, frozen=True, tag="note"):
    """Something that an actor remembered: `Crashed`, or a turn of a model's queue (`actors.replay`)."""

    number: int
    at: float
    actor: str
    data: Any


class Ending(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """The last line."""

    records: int
    missing: int = 0
    """Numbers between the first and the last that are not there: they were overwritten before they could be written."""
    now: float
    actors: tuple[ActorPlace, ...] = ()
    held: tuple[Passed, ...] = ()
    """Messages that were not over at the end."""


Record = Passed | Noted
Line = Beginning | Passed | Noted | Ending


class RecordingRefused(InvalidRequest):
    """A file is no recording, not a whole one, or one that this version does not read."""

    code = "recording_refused"


@attrs.frozen(kw_only=True)
class FlightRecording:
    """A whole recording."""

    beginning: Beginning
    records: tuple[Record, ...]
    ending: Ending

    @property
    def first(self) -> int:
        """The number of the first record; 0 in an empty recording. What came before it is not known."""
        return self.records[0].number if self.records else 0

    @property
    def messages(self) -> list[Passed]:
        return [record for record in self.records if isinstance(record, Passed)]

    @property
    def notes(self) -> list[Noted]:
        return [record for record in self.records if isinstance(record, Noted)]


def whole(lines: Iterable[Line]) -> FlightRecording:
    """A recording of its lines. Raises `RecordingRefused` where they are none."""
    each = iter(lines)
    beginning = next(each, None)
    if not isinstance(beginning, Beginning):
        raise RecordingRefused("this is no flight recording of tripower")
    records: list[Record] = []
    for line in each:
        if isinstance(line, Ending):
            if line.records != len(records):
                raise RecordingRefused(f"the recording is damaged: {len(records)} records are there of {line.records}")
            if any(before.number >= after.number for before, after in pairwise(records)):
                raise RecordingRefused("the recording is damaged: its numbers are out of order")
            return FlightRecording(beginning=beginning, records=tuple(records), ending=line)
        if isinstance(line, Beginning):
            raise RecordingRefused("the recording is damaged: it begins twice")
        records.append(line)
    raise RecordingRefused(f"the recording is truncated: its end is missing behind {len(records)} records; record anew")


def read_recording(path: Path) -> FlightRecording:
    """Read a file. Blocks. Raises `RecordingRefused`, which names the line, and `OSError`."""
    if path.stat().st_size > FILE_BYTES_MAX:
        raise RecordingRefused(f"{path} is larger than any recording")
    with path.open("rb") as file:
        return whole(_lines(file))


_Lines = msgspec.json.Decoder(Line)


def _lines(file: Iterable[bytes]) -> Iterator[Line]:
    for number, text in enumerate(file, 1):
        if number == 1:
            _check_format(text)
        if text.strip():
            try:
                yield _Lines.decode(text)
            except msgspec.DecodeError as error:
                what = "is cut off or damaged" if not text.endswith(b"\n") else "is damaged"
                raise RecordingRefused(f"line {number} of the recording {what}: {error}") from error


def _check_format(text: bytes) -> None:
    """Say what a file is before its details are looked at."""
    try:
        head = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise RecordingRefused("this is no flight recording of tripower") from error
    if head.get("magic") != MAGIC:
        raise RecordingRefused("this is no flight recording of tripower")
    if head.get("format") != FORMAT:
        raise RecordingRefused(
            f"the recording has format {head.get('format')} and was made by tripower {head.get('version')}; "
            f"this version reads format {FORMAT}: view it with the version that made it"
        )


def write_lines(lines: Iterable[Line]) -> Iterator[bytes]:
    """The bytes of a file, a line each."""
    encoder = msgspec.json.Encoder()
    for line in lines:
        yield encoder.encode(line) + b"\n"
