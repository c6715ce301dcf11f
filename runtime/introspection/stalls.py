"""Who held the loop, for how long, and at which line: an instrument that looks at every step of every task, while it is on.

A step is what a task does between two waits. While one lasts nobody else runs, so one that computes for long, or calls something that
blocks, delays every stream of the process. The instrument takes the time of each step, which costs a few microseconds; when it is off
neither it nor its thread is there. Afterwards the line is gone, so that a small thread looks at the loop's stack as soon as a step has
lasted longer than the threshold. Where it comes too late, because code in C had the interpreter for itself, the line is where the task waits
next, and the stall says so.

Trio removes an instrument that raises for good, and one that was added within a step hears of its end but not of its beginning.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable

import msgspec
import trio

from tripower.runtime.introspection.frames import Frame, place_of, thread_frames

log = logging.getLogger("tripower.stalls")

STALLS_KEPT = 64
LINES_KEPT = 256
"""Lines that are counted by themselves; further ones together."""
FRAMES_KEPT = 8
SECONDS_MIN = 0.005
"""A shorter threshold would keep the thread busy."""
THRESHOLD_SECONDS = 0.1
"""Where nobody has said."""
ELSEWHERE = "elsewhere"


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """One step that was too long. Times are seconds."""

    ago: float
    """Since its end."""
    seconds: float
    task: str
    actor: str
    """In whose task it was, or below; empty where there is none."""
    place: str
    """The line, as `actors/models.py:88 in find`; empty where it is not known."""
    seen: bool
    """Whether the line was seen during the stall. Else it is where the task waited next, if it did."""
    frames: tuple[Frame, ...] = ()
    """The innermost ones, as they were seen."""


class LineCount(msgspec.Struct, frozen=True):
    """How often a line held the loop, and for how long altogether."""

    place: str
    count: int
    seconds: float


class StallReport(msgspec.Struct, frozen=True, kw_only=True):
    """What has been seen since the watch was turned on, or cleared."""

    on: bool
    threshold_seconds: float
    steps: int
    stalls: int
    longest_seconds: float
    lines: tuple[LineCount, ...] = ()
    """The worst first."""
    recent: tuple[Stall, ...] = ()
    """The last ones, the latest first."""


class _Seen(msgspec.Struct, frozen=True):
    """A stall as it is kept."""

    at: float
    stall: Stall


class StallWatch(trio.abc.Instrument):
    """The watch of one Trio loop. All methods are for that loop; `turn_on` and `turn_off` are synchronous and idempotent."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.threshold_seconds = THRESHOLD_SECONDS
        self._clock = clock
        self._on = False
        self._task: trio.lowlevel.Task | None = None
        self._began = 0.0
        self._steps = 0
        self._sampler: _Sampler | None = None
        self.clear()

    @property
    def on(self) -> bool:
        return self._on

    def clear(self) -> None:
        """Forget what has been seen."""
        self._first_step = self._steps
        self._stalls = 0
        self._longest = 0.0
        self._recent: deque[_Seen] = deque(maxlen=STALLS_KEPT)
        self._counts: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def turn_on(self, threshold_seconds: float = THRESHOLD_SECONDS) -> None:
        """Watch from now on, for steps that last longer than this; at least `SECONDS_MIN`."""
        self.turn_off()
        self.threshold_seconds = max(SECONDS_MIN, threshold_seconds)
        self._task = None
        trio.lowlevel.add_instrument(self)
        self._sampler = _Sampler(self, threading.get_ident())
        self._on = True

    def turn_off(self) -> None:
        """Take the instrument and its thread away. What has been seen stays."""
        if not self._on:
            return
        self._on = False
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None
        try:
            trio.lowlevel.remove_instrument(self)
        except KeyError:
            log.warning("Trio had removed the watch for stalls")

    # The instrument. Every step of every task passes here.

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = self._clock()  # first: the thread must not take the last step's time for this one's
        self._steps += 1
        self._task = task

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._task is task:
            self._task = None
            seconds = self._clock() - self._began
            if seconds > self.threshold_seconds:
                self._take(task, seconds)

    def _take(self, task: trio.lowlevel.Task, seconds: float) -> None:
        try:
            self._note(task, seconds)
        except Exception:  # Trio would take the instrument away
            log.exception("a stall of %.3f s could not be described", seconds)

    def _note(self, task: trio.lowlevel.Task, seconds: float) -> None:
        frames = self._sampler.take(self._steps) if self._sampler is not None else ()
        frame = next((each for each in frames if each.own), frames[0] if frames else None)
        if frame is None:
            frame = place_of(task)
        place = "" if frame is None else str(frame)
        stall = Stall(
            ago=0.0, seconds=seconds, task=task.name, actor=owner_of(task), place=place, seen=bool(frames),
            frames=frames[:FRAMES_KEPT],
        )  # fmt: skip
        self._stalls += 1
        self._longest = max(self._longest, seconds)
        self._recent.append(_Seen(self._clock(), stall))
        line = place if place in self._counts or len(self._counts) < LINES_KEPT else ELSEWHERE
        self._counts[line] += 1
        self._seconds[line] += seconds
        if self._counts[line] == 1 and line != ELSEWHERE:
            how = f"at {place}" if frames else f"before it came to {place}" if place else "until its end"
            log.warning("%s held the loop for %.0f ms %s", task.name, seconds * 1e3, how)

    # Telling.

    def report(self) -> StallReport:
        """What has been seen. Synchronous."""
        now = self._clock()
        worst = sorted(self._counts, key=lambda line: self._seconds[line], reverse=True)
        return StallReport(
            on=self._on,
            threshold_seconds=self.threshold_seconds,
            steps=self._steps - self._first_step,
            stalls=self._stalls,
            longest_seconds=self._longest,
            lines=tuple(LineCount(line, self._counts[line], self._seconds[line]) for line in worst),
            recent=tuple(msgspec.structs.replace(each.stall, ago=now - each.at) for each in reversed(self._recent)),
        )

    def overdue(self) -> int:
        """The number of the step that lasts too long at this moment; 0 when none does. Any thread."""
        step, task, began = self._steps, self._task, self._began
        return step if task is not None and self._clock() - began > self.threshold_seconds else 0


class _Sampler:
    """A thread that looks at the loop's stack, once in each step that lasts too long."""

    def __init__(self, watch: StallWatch, loop_thread: int) -> None:
        self._watch = watch
        self._loop_thread = loop_thread
        self._stopped = threading.Event()
        self._step = 0
        self._frames: tuple[Frame, ...] = ()
        threading.Thread(target=self._run, name="tripower-stalls", daemon=True).start()

    def stop(self) -> None:
        """End the thread, soon."""
        self._stopped.set()

    def take(self, step: int) -> tuple[Frame, ...]:
        """What was seen in this step; empty when it was over before anybody looked."""
        return self._frames if self._step == step else ()

    def _run(self) -> None:
        while not self._stopped.wait(self._watch.threshold_seconds / 2):
            step = self._watch.overdue()
            if step and step != self._step:
                frames = tuple(thread_frames(self._loop_thread))
                if self._watch.overdue() == step:  # it was that step all the time
                    self._frames, self._step = frames, step


def owner_of(task: trio.lowlevel.Task) -> str:
    """The nearest actor in whose task this one is, by the names of the tasks."""
    each: trio.lowlevel.Task | None = task
    while each is not None:
        if each.name.startswith("actor:"):
            return each.name.removeprefix("actor:")
        nursery = each.parent_nursery
        each = None if nursery is None else nursery.parent_task
    return ""
