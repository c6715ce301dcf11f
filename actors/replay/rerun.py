"""Decide a recording again, and say where the decisions first differ. See the package for what that covers and what it cannot."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import msgspec
import trio

from tripower.actors.replay.stage import RecordedClock, ReplayedQueue, Stage
from tripower.actors.replay.turns import Checkpoint, Page, Turn
from tripower.runtime.introspection.recording import FlightRecording, Noted
from tripower.runtime.kernel import open_actor_system


@attrs.frozen
class Difference:
    """The first turn of a queue that was decided in another way."""

    number: int
    """Of the record."""
    at: float
    """On Trio's clock of the recorded process."""
    queue: str
    what: str
    """Where they differ, in words."""
    told: Any
    """What the queue heard; None where its state differs."""
    recorded: Any
    again: Any


@attrs.frozen(kw_only=True)
class Replay:
    """What came of it. `differences` holds at most one for each queue; behind it, its turns are not compared."""

    turns: int
    """That were decided again."""
    skipped: int
    """Turns before a queue's first checkpoint, behind a gap, or behind a difference."""
    queues: tuple[str, ...]
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Whether something was decided again, and all of it in the same way."""
        return bool(self.turns) and not self.differences


def replay(recording: FlightRecording, *, make_queue: type[ReplayedQueue] = ReplayedQueue) -> Replay:
    """Decide again what each model's queue decided, on virtual time. Blocks, for some 100 µs a turn; opens nothing.

    `make_queue` is the actor to try: a subclass may decide by another rule. Not to be called within a Trio loop.
    """
    pages: dict[str, list[tuple[Noted, Page]]] = {}
    for note in recording.notes:
        page = _page(note.data)
        if page is not None:
            pages.setdefault(note.actor, []).append((note, page))
    results = [_Rerun(name, make_queue).run(each) for name, each in pages.items()]
    return Replay(
        turns=sum(each.turns for each in results),
        skipped=sum(each.skipped for each in results),
        queues=tuple(pages),
        differences=tuple(each.difference for each in results if each.difference is not None),
    )


def _page(data: Any) -> Page | None:
    if isinstance(data, Page):
        return data
    if isinstance(data, dict) and data.get("type") in ("turn", "checkpoint"):
        page: Page = msgspec.convert(data, Page, str_keys=True)
        return page
    return None


class _Rerun:
    """One queue, all of its instances one after the other."""

    def __init__(self, name: str, make_queue: type[ReplayedQueue]) -> None:
        self.turns = self.skipped = 0
        self.difference: Difference | None = None
        self._name, self._make_queue = name, make_queue
        self._clock = RecordedClock()
        self._stage: Stage | None = None

    def run(self, pages: list[tuple[Noted, Page]]) -> _Rerun:
        with _quiet():
            trio.run(self._run, pages, clock=self._clock)
        return self

    async def _run(self, pages: list[tuple[Noted, Page]]) -> None:
        async with open_actor_system() as system, trio.open_nursery() as nursery:
            for note, page in pages:
                if self.difference is not None:
                    self.skipped += isinstance(page, Turn)
                elif isinstance(page, Turn):
                    await self._turn(note, page)
                elif page.index < 0 or self._stage is None or self._stage.index != page.index:
                    await self._leave_stage()
                    self._stage = Stage(system, nursery, self._clock, self._make_queue)
                    await self._stage.set_up(page, note.at, self._name)
                else:
                    self._compare_state(note, page, self._stage.state())
            nursery.cancel_scope.cancel(reason="the recording is at its end")

    async def _leave_stage(self) -> None:
        if self._stage is not None:
            await self._stage.tear_down()
            self._stage = None

    async def _turn(self, note: Noted, page: Turn) -> None:
        if self._stage is None or page.index != self._stage.index + 1:  # a gap
            await self._leave_stage()
            self.skipped += 1
            return
        again, wrong = await self._stage.turn(note.at, page)
        self.turns += 1
        if wrong:
            self._differ(note, f"rows of a step: {wrong}", page, again)
        elif again is None:
            self._differ(note, "the queue did not get to handle it", page, again)
        elif _plain(again.decided) != _plain(page.decided):
            self._differ(note, _first(page, again), page, again)
        elif any(decision[0] == "crash" for decision in page.decided):
            await self._leave_stage()

    def _differ(self, note: Noted, what: str, page: Turn, again: Turn | None) -> None:
        decided = again.decided if again is not None else ()
        self.difference = Difference(note.number, note.at, self._name, what, page.told, page.decided, decided)

    def _compare_state(self, note: Noted, recorded: Checkpoint, again: Checkpoint) -> None:
        ours, theirs = msgspec.to_builtins(again), msgspec.to_builtins(recorded)
        for name in recorded.__struct_fields__:
            if _plain(ours.get(name)) != _plain(theirs.get(name)):
                self.difference = Difference(
                    note.number, note.at, self._name, f"state: {name}", None, theirs.get(name), ours.get(name)
                )
                return


def _plain(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _first(page: Turn, again: Turn) -> str:
    """The first decision that is not the same, in words."""
    recorded, repeated = list(page.decided), list(again.decided)
    for place in range(max(len(recorded), len(repeated))):
        before = recorded[place] if place < len(recorded) else None
        after = repeated[place] if place < len(repeated) else None
        if _plain(before) != _plain(after):
            return f"decided {_words(before)}, now {_words(after)}"
    return ""


def _words(decision: Any) -> str:
    return "nothing more" if decision is None else " ".join(map(str, decision))


@contextmanager
def _quiet() -> Iterator[None]:
    """What the queue has to say was said when it was recorded."""
    ours = logging.getLogger("tripower")
    level = ours.level
    ours.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        ours.setLevel(level)
