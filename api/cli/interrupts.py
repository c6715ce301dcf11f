"""Ctrl-C as a cancellation: work ends where it waits, cleans up, and nothing of it becomes a traceback."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from tripower.api.cli import exit_codes
from tripower.api.cli.terminal import end_process

T = TypeVar("T")


class Interrupted(KeyboardInterrupt):
    """A signal ended the work in hand."""

    def __init__(self, signal_number: int) -> None:
        super().__init__()
        self.signal_number = signal_number


class Interrupts:
    """Where signals go: SIGINT to the innermost `only_this` block or else to everything, all others to everything."""

    def __init__(self, everything: trio.CancelScope) -> None:
        self._scopes = [everything]
        self.received = 0
        """The last signal; 0 for none."""

    @contextmanager
    def only_this(self) -> Iterator[trio.CancelScope]:
        """While the block runs, Ctrl-C cancels it and nothing else."""
        with trio.CancelScope() as scope:
            self._scopes.append(scope)
            try:
                yield scope
            finally:
                self._scopes.remove(scope)

    async def watch(self, signals: AsyncIterator[int]) -> None:
        """Pass signals on. What does not end by being cancelled is ended by the next signal, and the process with it."""
        async for number in signals:
            scope = self._scopes[-1] if number == signal.SIGINT else self._scopes[0]
            if scope.cancel_called:
                end_process(exit_codes.BY_SIGNAL + number)
            self.received = number
            scope.cancel(reason="a signal came")


async def until_interrupted(work: Callable[[Interrupts], Awaitable[T]]) -> T:
    """Do `work`. SIGINT, SIGTERM or a hangup cancels it, and `Interrupted` is raised once it has ended; a second one ends the process
    at once. A hangup that the process was told to ignore stays ignored.

    What `work` raises comes through as it is. For the main thread only.
    """
    results: list[T] = []
    failure: BaseException | None = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, *_hangups()) as signals:
        async with trio.open_nursery() as watching:
            with trio.CancelScope() as everything:
                interrupts = Interrupts(everything)
                watching.start_soon(interrupts.watch, signals)
                try:
                    results.append(await work(interrupts))
                except BaseException as error:  # noqa: BLE001 - every one, to be raised below rather than in a group
                    failure = error
            watching.cancel_scope.cancel()
    if everything.cancel_called:
        raise Interrupted(interrupts.received)
    if failure is not None:
        raise failure
    return results[0]


def _hangups() -> tuple[signal.Signals, ...]:
    """The signal of a terminal that has gone, where nobody has said what it is to do."""
    hangup: signal.Signals | None = getattr(signal, "SIGHUP", None)
    return () if hangup is None or signal.getsignal(hangup) is not signal.SIG_DFL else (hangup,)


def run_until_interrupted(work: Callable[[Interrupts], Awaitable[T]]) -> T:
    """The same from outside of Trio."""
    return trio.run(until_interrupted, work)
