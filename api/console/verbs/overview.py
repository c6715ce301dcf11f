"""`overview` and `watch`: the whole server at one moment, and once a second."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import trio

from tripower.api.console.verb import Subject, Verb
from tripower.api.overview.figures import Overview
from tripower.runtime.kernel.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

INTERVAL_SECONDS = 1.0
INTERVAL_MIN = 0.25
INTERVAL_MAX = 3600.0


async def look(subject: Subject, words: Sequence[str]) -> Overview:
    """Waits for half a second where nobody has looked lately: rates need two looks."""
    if words:
        raise InvalidRequest(f"overview takes no argument, not {words[0][:100]!r}")
    return await subject.overview.look()


async def watch(subject: Subject, words: Sequence[str]) -> AsyncIterator[Overview]:
    """An overview every so many seconds, for ever."""
    interval = seconds_of(words)
    while True:
        due = trio.current_time() + interval
        yield await subject.overview.look()
        await trio.sleep_until(due)


def seconds_of(words: Sequence[str]) -> float:
    """The one argument of `watch`. Raises `InvalidRequest`."""
    if not words:
        return INTERVAL_SECONDS
    try:
        seconds = float(words[0])
    except ValueError:
        seconds = math.nan
    if len(words) > 1 or not INTERVAL_MIN <= seconds <= INTERVAL_MAX:
        raise InvalidRequest(f"watch takes one number of seconds, {INTERVAL_MIN:g} to {INTERVAL_MAX:g}: watch 2")
    return seconds


def show(overview: Overview) -> RenderableType:
    """The sheet that `tripower top` shows, as long as it takes."""
    from tripower.api.overview.sheet import Sheet

    return Sheet(overview)


VERBS = (
    Verb(
        name="overview",
        summary="the whole server: tokens a second, models, keys, devices and the slowest requests",
        run=look,
        answer=Overview,
        show=show,
    ),
    Verb(
        name="watch",
        summary="the overview every second, or every so many",
        usage="[SECONDS]",
        stream=watch,
        answer=Overview,
        show=show,
    ),
)
