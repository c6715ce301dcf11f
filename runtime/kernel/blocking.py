"""Foreign code that blocks, seen from the Trio loop: one call, or a stream of items from a thread of its own.

For libraries that bring threads and batching of their own, where a lane would only be in the way: the thread belongs to one stream and
does nothing but pull. What it pulls waits in a buffer of agreed room. A reader that has fallen so far behind has lost its stream:
stopping to pull would not stop such a library either. Leaving the stream asks the thread to let go of its iterator between two
items, and waits for that, shielded, within a budget.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

import trio

from tripower.runtime.kernel.errors import DeviceFailed

T = TypeVar("T")

log = logging.getLogger("tripower.blocking")

GRACE_SECONDS = 30.0
"""How long a stream that is left waits for its thread to come back from the item it is pulling."""


async def run_blocking(work: Callable[[], T]) -> T:
    """The result of a call that blocks, made on a worker thread. It cannot be interrupted: a cancellation waits for its end."""
    return await trio.to_thread.run_sync(work)


class BlockingStream(Generic[T]):
    """The items of a blocking iterator, pulled by a thread for the length of an `async with`.

    `open_items` is called on the thread and may block too. Iterating raises what it or the iterator raised, or `DeviceFailed`
    (`reader_too_slow`) when more than `room` items were waiting.
    """

    def __init__(
        self, open_items: Callable[[], Iterator[T]], *, room: int, name: str, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        self._open_items = open_items
        self._room = room
        self._grace_seconds = grace_seconds
        self._items: deque[T] = deque()
        self._error: BaseException | None = None
        self._leaving = False
        self._thread = threading.Thread(target=self._pull, name=name, daemon=True)
        self._token: trio.lowlevel.TrioToken
        self._news = trio.Event()
        self._pulled = False
        self._ended = trio.Event()

    @property
    def stuck(self) -> bool:
        """Whether the thread was still inside the foreign code when the wait for it was given up, and still is."""
        return self._leaving and not self._ended.is_set()

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        self._token = trio.lowlevel.current_trio_token()
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leaving = True
        with trio.move_on_after(self._grace_seconds, shield=True) as patience:
            await self._ended.wait()
        if patience.cancelled_caught:
            log.error("%s does not come back from the library that it called", self._thread.name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._pulled:
                await trio.lowlevel.checkpoint()
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            await self._news.wait()
            self._news = trio.Event()
        await trio.lowlevel.checkpoint()
        return self._items.popleft()

    # On the thread. Appending to a deque and reading a flag need no lock.

    def _pull(self) -> None:
        try:
            self._pull_items()
        except BaseException as error:  # noqa: BLE001 - travels as a value to the reader
            self._error = error
        self._tell(self._end)

    def _pull_items(self) -> None:
        items = self._open_items()
        try:
            for item in items:
                if self._leaving:
                    return
                if len(self._items) >= self._room:
                    raise DeviceFailed(f"more than {self._room} items waited for their reader", code="reader_too_slow")
                self._items.append(item)
                self._tell(self._wake)
        finally:
            del items  # an error's traceback would keep it, and the library would go on

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            self._token.run_sync_soon(callback, idempotent=True)
        except trio.RunFinishedError:  # nobody is left to hear it
            self._leaving = True

    def _wake(self) -> None:
        self._news.set()

    def _end(self) -> None:
        self._pulled = True
        self._news.set()
        self._ended.set()
