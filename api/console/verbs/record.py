"""`record`: what has passed between the actors, as the pieces of a flight recording. `tripower console record FILE` writes them to a file."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import trio

from tripower.actors.queueing import QueueStatistics
from tripower.api.console.verb import Subject, Verb
from tripower.api.version import VERSION
from tripower.runtime.introspection.recorder import Recorder
from tripower.runtime.introspection.recording import ActorPlace, Beginning, Ending, Noted, Passed, Record
from tripower.runtime.kernel import ActorSystem, InvalidRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

PAYLOADS = "--payloads"
ALL = "--all"
STOP = "--stop"
STATE = "record"
"""Where a connection keeps what ends its recordings."""
LATEST = 50
"""Of what the ring holds, for who does not ask for all of it."""
SECONDS_MAX = 3600.0
BATCH = 50
"""Records of one piece: less than 2 ms of the loop."""
LOOK_SECONDS = 0.1
"""Between two looks at what has passed meanwhile."""

Part: TypeAlias = Beginning | list[Passed | Noted] | Ending


async def record(subject: Subject, words: Sequence[str]) -> AsyncIterator[Part]:
    """A beginning, records in order, and an end: of the latest that the ring holds or all of it, or of what passes in the next seconds.

    `record --stop` ends those that the same connection is making, each with its end. Raises `InvalidRequest` (`not_recording`) where
    there is no ring and no seconds are named.
    """
    stops: set[trio.Event] = subject.state.setdefault(STATE, set())
    if list(words) == [STOP]:
        for stop in stops:
            stop.set()
        return
    seconds, payloads, everything = arguments_of(words)
    system = subject.runtime.system
    recorder = system.recording if isinstance(system.recording, Recorder) else None
    if recorder is not None and seconds is None:
        async for part in _write(system, recorder, 0 if everything else max(0, recorder.last - LATEST), 0.0, payloads=False):
            yield part
        return
    if seconds is None:
        raise InvalidRequest(
            "nothing has been recorded here: say for how long to record, as in `record 10`, "
            "or start the server with --set console.recorder=20000",
            code="not_recording",
        )
    own = recorder is None
    recorder = recorder or Recorder()
    if own:
        system.recording = recorder
    stop = trio.Event()
    stops.add(stop)
    try:
        recorder.readers += 1
        if payloads:
            recorder.keep_payloads()
        async for part in _write(system, recorder, recorder.last, seconds, payloads=payloads, stop=stop):
            yield part
    finally:
        stops.discard(stop)
        if payloads:
            recorder.drop_payloads()
        if own and system.recording is recorder:
            system.recording = None


def arguments_of(words: Sequence[str]) -> tuple[float | None, bool, bool]:
    """How long, None for what the ring holds; whether whole messages are wanted; whether all of the ring. Raises `InvalidRequest`."""
    payloads, everything = PAYLOADS in words, ALL in words
    others = [word for word in words if word not in (PAYLOADS, ALL)]
    if not others:
        if payloads:
            raise InvalidRequest(f"what messages say is kept only while it is asked for: record SECONDS {PAYLOADS}")
        return None, False, everything
    try:
        seconds = float(others[0])
    except ValueError:
        seconds = -1.0
    if len(others) > 1 or everything or not 0 < seconds <= SECONDS_MAX:
        raise InvalidRequest(
            f"record takes {ALL}, or a number of seconds up to {SECONDS_MAX:g} and {PAYLOADS}, not {' '.join(words)[:100]!r}"
        )
    return seconds, payloads, False


async def _write(
    system: ActorSystem, recorder: Recorder, after: int, seconds: float, *, payloads: bool, stop: trio.Event | None = None
) -> AsyncIterator[Part]:
    """Everything behind record `after` until the seconds are over, or until `stop`."""
    stop = trio.Event() if stop is None else stop
    ends_at = trio.current_time() + seconds
    yield _beginning(system, recorder, payloads)
    count, first, last = 0, after + 1 if seconds else 0, after
    while True:
        over = stop.is_set() or trio.current_time() >= ends_at
        for batch in batches(recorder.read(last, payloads=payloads)):
            count, first, last = count + len(batch), first or batch[0].number, batch[-1].number
            yield batch
            await trio.lowlevel.checkpoint()
        if over:
            break
        with trio.move_on_at(min(ends_at, trio.current_time() + LOOK_SECONDS)):
            await stop.wait()
    missing = last - first + 1 - count if count else 0
    yield Ending(
        records=count,
        missing=missing,
        now=trio.current_time(),
        actors=tuple(_places(system)),
        held=tuple(recorder.held(system)),
    )


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """So many at a time."""
    each = iter(records)
    while batch := list(islice(each, BATCH)):
        yield batch


def _beginning(system: ActorSystem, recorder: Recorder, payloads: bool) -> Beginning:
    figures = system.statistics()
    return Beginning(
        version=VERSION,
        pid=os.getpid(),
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        clock=recorder.since,
        now=trio.current_time(),
        payloads=payloads,
        models=tuple(each.details.model for each in figures if isinstance(each.details, QueueStatistics)),
        actors=tuple(_places(system)),
    )


def _places(system: ActorSystem) -> Iterator[ActorPlace]:
    for each in system.statistics():
        yield ActorPlace(
            each.name, each.kind, each.parent, each.state, each.inbox + each.waiting, each.control, each.pending, each.restarts
        )


def show(part: Part) -> RenderableType:
    """A line for each piece: who wants to read it wants a file."""
    from tripower.api.console.flight import line_of

    match part:
        case Beginning():
            return f"recording of process {part.pid}, tripower {part.version}"
        case Ending():
            missing = f", {part.missing} missing" if part.missing else ""
            return f"{part.records} records{missing}; `record {ALL}` lists all that are kept, `tripower console record FILE` writes them down"
    return "\n".join(map(line_of, part))


VERBS = (
    Verb(
        name="record",
        summary="the messages that have passed lately, or that pass in the next seconds; `tripower console record FILE` keeps them",
        usage=f"[{ALL} | SECONDS [{PAYLOADS}]]",
        stream=record,
        answer=Part,
        show=show,
    ),
)
