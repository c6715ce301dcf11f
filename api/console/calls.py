"""A client's calls while they are under way, and what comes of them: JSON until somebody says what it is."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import trio

from tripower.api.console.protocol import Hello
from tripower.runtime.kernel.errors import TripowerError


class UnknownAnswer(TripowerError):
    """What the server answered is not what this version of tripower knows."""

    code = "unknown_answer"


class OpenCall:
    """The answer of one call. Iterating gives the items of a stream as JSON; raises `ConsoleRefused` and `ServerGone`."""

    def __init__(self) -> None:
        self.result = msgspec.Raw(b"null")
        """The answer, as JSON, once the iteration has ended."""
        self._items: deque[msgspec.Raw] = deque()
        self._ended = False
        self._error: TripowerError | None = None
        self._news = trio.Event()

    def add(self, item: msgspec.Raw) -> None:
        """An item has come. Synchronous."""
        self._items.append(item)
        self._news.set()

    def end(self, error: TripowerError | None = None) -> None:
        """No more will come: the call has been answered, or this went wrong. Synchronous."""
        self._ended, self._error = True, error
        self._news.set()

    async def wait(self) -> None:
        """Block until there is an item, or the end. Can be cancelled without loss."""
        while not self._items and not self._ended:
            self._news = trio.Event()
            await self._news.wait()

    def __aiter__(self) -> OpenCall:
        return self

    async def __anext__(self) -> msgspec.Raw:
        await self.wait()
        await trio.lowlevel.checkpoint()
        if self._items:
            return self._items.popleft()
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration


class Items:
    """The items of a stream, decoded."""

    def __init__(self, call: OpenCall, kind: Any, hello: Hello) -> None:
        self._call = call
        self._kind = kind
        self._hello = hello

    def __aiter__(self) -> Items:
        return self

    async def __anext__(self) -> Any:
        return decoded(await anext(self._call), self._kind, self._hello)


def decoded(item: msgspec.Raw, kind: Any, hello: Hello) -> Any:
    """Raises `UnknownAnswer`, naming the server's version, for JSON that is not of this type."""
    try:
        return msgspec.json.decode(item, type=kind)
    except msgspec.MsgspecError as error:
        raise UnknownAnswer(
            f"the server, tripower {hello.version}, answers what this tripower does not know: {error}"
        ) from error
