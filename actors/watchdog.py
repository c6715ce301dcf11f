"""The watchdog notices work that no longer moves: a lane without a boundary, or a queue whose running requests get no step.

It decides nothing. `stalled` is what health says, computed from the kernel's list whenever somebody asks. The task looks now and then for
another reason: when something stalls it writes to the log, once, where every actor, task and thread is at that moment, since whoever
restarts the process destroys what would explain it. When all moves again it is ready for the next time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from tripower.actors.device import DeviceStatistics
from tripower.actors.queueing import QueueStatistics
from tripower.runtime.introspection.describe import describe
from tripower.runtime.kernel import ActorStatistics, ActorSystem

log = logging.getLogger("tripower.watchdog")

LOOKS = 4
"""So many in the time that work may take for a step."""
PATIENCE = 1.25
"""Of that time, for queues: a lane is looked at a few times only, and where it is the reason it is told first."""


def stalled(statistics: Sequence[ActorStatistics], stall_seconds: float) -> list[str]:
    """What does not move although it has work, and is why health is red. A lane that is wedged explains the queues behind it."""
    devices = [each.details for each in statistics if isinstance(each.details, DeviceStatistics)]
    wedged = [
        f"{each.device} passes no step boundary any more"
        for each in devices
        if each.state == "wedged" or each.quiet_seconds >= stall_seconds
    ]
    if wedged:
        return wedged
    late = PATIENCE * stall_seconds
    queues = [each.details for each in statistics if isinstance(each.details, QueueStatistics)]
    return [f"{each.model} has had no step for {late:g} s" for each in queues if each.quiet_seconds >= late]


class Watchdog:
    """See the module. `run` is its task."""

    def __init__(self, system: ActorSystem, stall_seconds: float) -> None:
        self._system = system
        self._stall_seconds = stall_seconds
        self._told = False

    async def run(self) -> None:
        """Look, for ever. Raises nothing: whoever runs it must not end over it."""
        while True:
            interval = self._stall_seconds / LOOKS
            due = trio.current_time() + interval
            await trio.sleep_until(due)
            if trio.current_time() - due > interval:
                continue  # the process itself stood still, as in a container that is paused: time for all to move again
            try:
                await self._look()
            except Exception:  # telling is a help, and no reason to end
                log.exception("the watchdog could not describe what has stalled")

    async def _look(self) -> None:
        reasons = stalled(self._system.statistics(), self._stall_seconds)
        if reasons and not self._told:
            self._told = True
            log.error("stalled: %s\n%s", "; ".join(reasons), await describe(self._system))
        elif not reasons and self._told:
            self._told = False
            log.warning("what had stalled moves again")
