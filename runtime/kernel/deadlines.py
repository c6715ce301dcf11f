"""Deadlines: absolute seconds on Trio's clock, born once at the border and passed on unchanged.

`math.inf` means none. Across a process border the remaining seconds travel, never the clock's value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from tripower.runtime.kernel.errors import DeadlineExceeded

NEVER = math.inf


def deadline_after(seconds: float | None) -> float:
    """The deadline that many seconds from now; None means never."""
    return NEVER if seconds is None else trio.current_time() + seconds


def remaining_seconds(deadline: float) -> float:
    """Seconds left, never below 0."""
    return max(0.0, deadline - trio.current_time())


@contextmanager
def within(deadline: float) -> Iterator[trio.CancelScope]:
    """A request's own scope: what is still running at `deadline` is cancelled, and `DeadlineExceeded` is raised in its place.

    An outer cancellation passes through untouched.
    """
    with trio.CancelScope(deadline=deadline) as scope:
        yield scope
    if scope.cancelled_caught:
        raise DeadlineExceeded("the request's deadline passed")
