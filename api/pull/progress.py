"""What a pull tells while it works.

A callback gets one small struct at a time, on Trio's thread, at most ten a second within a stage plus the first and the last of each.
It must not block and must not raise: a bar, a log line, or an event for a client.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import msgspec
import trio

Stage = Literal["waiting", "resuming", "downloading", "verifying", "stored", "already_stored"]
SECONDS_BETWEEN = 0.1


class PullProgress(msgspec.Struct, frozen=True):
    """Where a pull is. Bytes are those of the stage; `total` is None while nobody knows it. `detail` is for people."""

    stage: Stage
    completed: int = 0
    total: int | None = None
    detail: str = ""


ProgressCallback = Callable[[PullProgress], None]


def ignore_progress(progress: PullProgress) -> None:
    """For callers that show nothing."""


class Meter:
    """Passes progress on at a bounded rate and never lets a stage run backwards or past its total."""

    def __init__(self, callback: ProgressCallback) -> None:
        self._callback = callback
        self._last: PullProgress | None = None
        self._told_at = -math.inf

    def show(self, stage: Stage, completed: int = 0, total: int | None = None, detail: str = "") -> None:
        """Tell it, unless the last one was told a moment ago. Call on Trio's thread."""
        last = self._last
        same_stage = last is not None and (last.stage, last.total, last.detail) == (stage, total, detail)
        if same_stage and last is not None:
            completed = max(completed, last.completed)
        if total is not None:
            completed = min(completed, total)
        now = trio.current_time()
        if same_stage and completed != total and now < self._told_at + SECONDS_BETWEEN:
            return
        progress = PullProgress(stage, completed, total, detail)
        if progress != last:
            self._last, self._told_at = progress, now
            self._callback(progress)

    def show_from_thread(self, stage: Stage, completed: int = 0, total: int | None = None, detail: str = "") -> None:
        """The same from a worker thread of this Trio run; raises `Cancelled` there when the work was cancelled."""
        trio.from_thread.run_sync(self.show, stage, completed, total, detail)
