"""Progress of pulls and loads on standard error: bars for people, an occasional line for logs, nothing where it is not wanted.

The callback of a pull is called in the Trio loop, that of a load on the thread that loads; both are cheap, and do nothing after `close`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from tripower.api.cli.terminal import is_terminal, note, size
from tripower.api.pull import ProgressCallback, PullProgress
from tripower.runtime.engine import Progress as LoadProgress

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

REFRESH_SECONDS = 0.08
LINE_SECONDS = 5.0
"""Between two lines about the same stage, where there is no terminal."""
LASTS_SECONDS = 0.3
QUICK_IF_KEPT = ("code", "tiles", "certificate", "costs")
STAGES = {
    "engine": "starting the engine for",
    "weights": "loading",
    "code": "generating code for",
    "tiles": "choosing tile sizes for",
    "certificate": "checking that answers do not depend on other requests, for",
    "costs": "measuring how long steps take, for",
    "self-test": "testing",
}


class Display(Protocol):
    """Shows where pulls and loads are. `name` is what people call the model."""

    def pulling(self, name: str) -> ProgressCallback:
        """The callback of one pull."""

    def loading(self, name: str) -> LoadProgress:
        """The callback of one load."""

    def close(self) -> None:
        """Show nothing more."""


@contextmanager
def progress_display(*, quiet: bool) -> Iterator[Display]:
    """The display that fits, closed at the end of the block."""
    display: Display = Nothing() if quiet else Bars() if is_terminal(sys.stderr) else Lines()
    try:
        yield display
    finally:
        display.close()


class Nothing:
    """For `--quiet`."""

    def pulling(self, name: str) -> ProgressCallback:
        return lambda progress: None

    def loading(self, name: str) -> LoadProgress:
        return lambda stage, fraction: None

    def close(self) -> None:
        return


class Lines:
    """One line when a stage begins and one every few seconds while it lasts. A stage that is over at once is not worth a line."""

    def __init__(self) -> None:
        self._stages: dict[str, str] = {}
        self._begun: dict[tuple[str, str], float] = {}
        self._told_at = 0.0

    def pulling(self, name: str) -> ProgressCallback:
        def show(progress: PullProgress) -> None:
            if progress.stage == "waiting":
                self._tell(name, progress.stage, progress.detail)
            elif progress.total and progress.completed < progress.total:
                amount = f"{size(progress.completed)} of {size(progress.total)}"
                self._tell(name, progress.stage, f"{progress.stage}, {amount}")

        return show

    def loading(self, name: str) -> LoadProgress:
        def show(stage: str, fraction: float) -> None:
            words = STAGES.get(stage, stage).removesuffix(" for").removesuffix(" of").removesuffix(",")
            if stage in QUICK_IF_KEPT:
                self._tell_if_it_lasts(name, stage, words)
            elif fraction < 1:
                self._tell(name, stage, words if stage == "engine" else f"{words}, {fraction:.0%}")

        return show

    def close(self) -> None:
        return

    def _tell_if_it_lasts(self, name: str, stage: str, text: str) -> None:
        """Such a stage is over at once except at a model's first load on a machine."""
        now = time.monotonic()
        begun_at = self._begun.setdefault((name, stage), now)
        if now >= begun_at + LASTS_SECONDS:
            self._tell(name, stage, f"{text}, once for this model on this machine")

    def _tell(self, name: str, stage: str, text: str) -> None:
        now = time.monotonic()
        if stage != self._stages.get(name) or now >= self._told_at + LINE_SECONDS:
            self._stages[name], self._told_at = stage, now
            note(f"{name}: {text}")


class Bars:
    """A bar for each model; all of them disappear when they are done. Drawn from the first call that has something to show."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drawn: Progress | None = None
        self._in_bytes = False
        self._tasks: dict[str, TaskID] = {}
        self._refresh_at = 0.0
        self._closed = False

    def pulling(self, name: str) -> ProgressCallback:
        def show(progress: PullProgress) -> None:
            label = progress.detail if progress.stage == "waiting" else f"{progress.stage.replace('_', ' ')} {name}"
            self._show(name, label, progress.completed, progress.total, in_bytes=True)

        return show

    def loading(self, name: str) -> LoadProgress:
        def show(stage: str, fraction: float) -> None:
            self._show(name, f"{STAGES.get(stage, stage)} {name}", fraction, 1.0, in_bytes=False)

        return show

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._stop()

    def _stop(self) -> None:
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None
            self._tasks.clear()

    def _show(self, name: str, label: str, completed: float, total: float | None, *, in_bytes: bool) -> None:
        with self._lock:
            if self._closed:
                return
            if in_bytes != self._in_bytes:
                self._stop()
            if self._drawn is None:
                self._drawn, self._in_bytes = make_bars(in_bytes=in_bytes), in_bytes
                self._drawn.start()
            if name not in self._tasks:
                self._tasks[name] = self._drawn.add_task(label, total=total)
            self._drawn.update(self._tasks[name], description=label, completed=completed, total=total)
            now = time.monotonic()
            if now >= self._refresh_at or completed == total:
                self._refresh_at = now + REFRESH_SECONDS
                self._drawn.refresh()


def make_bars(*, in_bytes: bool) -> Progress:
    """A bar on standard error that is redrawn when it is told, not by a thread of its own."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    figures = (
        [DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn(compact=True)]
        if in_bytes
        else [TaskProgressColumn()]
    )
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *figures,
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
