"""How long the steps of some tasks hold the loop, seen from inside the process that is measured.

The bench has no code in the server; it gets in by the console's own `py`, which imports this module there. What counts is the processor
time of the loop's thread, so that a machine that has other work to do does not spoil it.
"""

from __future__ import annotations

import gc
import time
from typing import Any

import trio

_CONSOLE = "console/"
"""How the names of the console's tasks begin."""
_MEASURING = "console/py"


class Holds(trio.abc.Instrument):
    """The longest step of the console's tasks and of all others since the last `take`, without collections of garbage."""

    def __init__(self) -> None:
        self._began = self._collecting_since = self._collected = 0.0
        self._longest = {True: 0.0, False: 0.0}

    def install(self) -> None:
        """From the next step on. Synchronous; in the loop that is measured."""
        trio.lowlevel.add_instrument(self)
        gc.callbacks.append(self._on_collection)

    def remove(self) -> None:
        trio.lowlevel.remove_instrument(self)
        gc.callbacks.remove(self._on_collection)

    def take(self) -> tuple[float, float]:
        """Seconds: the longest step of the console, the longest of any other task. Begins anew."""
        taken = self._longest[True], self._longest[False]
        self._longest = {True: 0.0, False: 0.0}
        return taken

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._collected = 0.0
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if not self._began:  # installed in the middle of this step
            return
        took = time.thread_time() - self._began - self._collected
        ours = task.name.startswith(_CONSOLE) and not task.name.startswith(_MEASURING)
        self._longest[ours] = max(self._longest[ours], took)

    def _on_collection(self, phase: str, about: dict[str, Any]) -> None:
        now = time.thread_time()
        if phase == "start":
            self._collecting_since = now
        else:
            self._collected += now - self._collecting_since


HOLDS = Holds()
