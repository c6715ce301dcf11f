"""Makes `Overview`s of a runtime for whoever looks, and costs nothing while nobody does.

Rates need two samples of the counters. Each look takes one, and those that are about a second apart are kept for a minute: whoever looks
every second sees the last minute, and whoever looks for the first time, or comes back later, waits half a second for the second sample.
There is no task and no timer, so there is nothing to stop.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from heapq import nlargest
from typing import Any, TypeAlias

import trio

from tripower.actors.device import DeviceStatistics
from tripower.actors.queueing import IdentityStatistics, KnowsIdentities
from tripower.actors.request_paths import RequestPath, queues
from tripower.actors.runtime import Runtime
from tripower.api.http.exchange import Exchange
from tripower.api.http.figures import ApiStatistics
from tripower.api.overview.figures import Overview, Point
from tripower.api.overview.samples import Sample, details_of, take_sample
from tripower.api.overview.summaries import device_overviews, identity_overviews, model_overviews
from tripower.api.request_paths import request_paths
from tripower.api.version import VERSION
from tripower.runtime.kernel import ActorStatistics

WINDOW_SECONDS = 60.0
"""What "lately" is at most."""
RATE_SECONDS = 3.0
STALE_SECONDS = 10.0
"""A rate over more than this says nothing about now: another sample is waited for."""
FIRST_SECONDS = 0.5
"""Between the two samples of a first look; rates of less are noise."""
APART_SECONDS = 0.75
"""Between two samples that are kept. Less than a second, so that somebody who looks every second is never a little early."""
HISTORY_SECONDS = 120.0
SAMPLES_MAX = int(WINDOW_SECONDS / APART_SECONDS) + 1
POINTS_MAX = int(HISTORY_SECONDS / APART_SECONDS) + 1
REQUESTS_MAX = 10

Paths: TypeAlias = Callable[[Runtime, set[Exchange]], Awaitable[Sequence[RequestPath]]]


class Collector:
    """One for each runtime, shared by all who look. For the Trio loop of the runtime."""

    def __init__(self, runtime: Runtime, active: set[Exchange] | None = None, *, paths: Paths = request_paths) -> None:
        """`active` are the HTTP requests whose answer is not complete, where there is a listener."""
        self._runtime = runtime
        self._active = set() if active is None else active
        self._paths = paths
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._points: deque[tuple[float, Point]] = deque(maxlen=POINTS_MAX)

    async def look(self) -> Overview:
        """The server at this moment. Blocks for half a second where nobody has looked in the last ten; else for a few turns of the loop.

        Always lets other tasks run between its parts, each of which is short.
        """
        if self._base(trio.current_time()) is None:
            await self._take_two()
        actors, served, sample = await self._sample()
        base = self._base(sample.at) or self._samples[-1]
        rates = sample.since(base)
        lately = sample.since(self._oldest(sample.at, WINDOW_SECONDS) or base)
        self._keep(sample)
        await trio.lowlevel.checkpoint()
        health = self._runtime.health()
        await trio.lowlevel.checkpoint()
        paths = await self._paths(self._runtime, self._active)
        now = trio.current_time()
        models = model_overviews(actors, paths, rates, lately, now)
        await trio.lowlevel.checkpoint()
        identities = identity_overviews(served, lately)
        oldest = nlargest(REQUESTS_MAX, paths, key=lambda path: path.age)
        await trio.lowlevel.checkpoint()
        return Overview(
            version=VERSION,
            pid=os.getpid(),
            url=next((border.url for border in details_of(actors, ApiStatistics)), ""),
            status=health.status,
            reasons=health.reasons,
            uptime_seconds=now - self._runtime.started_at,
            window_seconds=lately.seconds,
            rate_seconds=rates.seconds,
            running=sample.running,
            waiting=sample.waiting,
            tokens_per_second=rates.generated / rates.seconds,
            prompt_tokens_per_second=rates.evaluated / rates.seconds,
            requests_per_second=rates.arrivals / rates.seconds,
            refused_per_second=rates.refused / rates.seconds,
            models=models,
            identities=identities,
            devices=device_overviews(details_of(actors, DeviceStatistics), rates),
            requests=tuple(oldest),
            history=tuple(self._history(now)),
        )

    async def _sample(self) -> tuple[list[ActorStatistics], list[IdentityStatistics], Sample]:
        """Read everything, an actor after the other, with a chance for others in between."""
        served: list[IdentityStatistics] = []
        for queue in queues(self._runtime.system):
            await trio.lowlevel.checkpoint()
            served += queue.look(_identities) or ()
        await trio.lowlevel.checkpoint()
        actors = self._runtime.statistics()
        await trio.lowlevel.checkpoint()
        return actors, served, take_sample(actors, served, trio.current_time())

    async def _take_two(self) -> None:
        now = trio.current_time()
        if not self._samples or now - self._samples[-1].at > FIRST_SECONDS:
            _, _, sample = await self._sample()
            self._samples.append(sample)
        await trio.sleep_until(self._samples[-1].at + FIRST_SECONDS)

    def _base(self, now: float) -> Sample | None:
        """The sample that rates are counted from: the oldest of the last few seconds, else the newest that is not stale."""
        ripe = [sample for sample in self._samples if FIRST_SECONDS <= now - sample.at <= STALE_SECONDS]
        return next((sample for sample in ripe if now - sample.at <= RATE_SECONDS), ripe[-1] if ripe else None)

    def _oldest(self, now: float, seconds: float) -> Sample | None:
        return next((sample for sample in self._samples if now - sample.at <= seconds), None)

    def _keep(self, sample: Sample) -> None:
        """Remember a sample, unless one is there that is nearly as new."""
        last = self._samples[-1]
        if sample.at - last.at < APART_SECONDS:
            return
        tokens = sample.since(last)
        self._samples.append(sample)
        self._points.append((sample.at, Point(0.0, tokens.generated / tokens.seconds, sample.running, sample.waiting)))

    def _history(self, now: float) -> Iterable[Point]:
        for at, point in self._points:
            if now - at <= HISTORY_SECONDS:
                yield Point(at - now, point.tokens_per_second, point.running, point.waiting)


def _identities(actor: Any) -> list[IdentityStatistics]:
    return actor.identities() if isinstance(actor, KnowsIdentities) else []
