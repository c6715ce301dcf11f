"""Asks a running process: what `tripower console`, `tripower top` and tests attach with.

    async with open_console() as console:              # the only server of this user; or open_console("4242"), open_console("/run/x.sock")
        figures = await console.call("ps", answer=list[ActorLine])
        async with console.stream("watch", answer=Overview) as overviews:
            async for overview in overviews:
                ...

Several calls and streams may be open at once on one console, in any tasks of the run that opened it. A call that is cancelled, and a
stream that is left, is stopped on the server too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from tripower.api.console.calls import Items, OpenCall, UnknownAnswer, decoded
from tripower.api.console.finding import attach
from tripower.api.console.lines import Lines
from tripower.api.console.protocol import LINE_BYTES_MAX, Call, Complete, FromClient, Hello, Refusal, Stop
from tripower.runtime.kernel.errors import TripowerError, Unavailable

__all__ = ["ConsoleClient", "ConsoleRefused", "OpenCall", "ServerGone", "UnknownAnswer", "decoded", "open_console"]

SETTLE_SECONDS = 1.0


class ConsoleRefused(TripowerError):
    """The server refused a call. `code` and `message` are the server's."""


class ServerGone(Unavailable):
    """The server has ended, or has ended this console, before it answered."""

    code = "server_gone"


class ConsoleClient:
    """One console on one process. Made by `open_console`."""

    def __init__(self, stream: trio.SocketStream, lines: Lines, hello: Hello, path: Path) -> None:
        self.hello = hello
        """Who answers: process, version, verbs."""
        self.path = path
        """The socket."""
        self._stream = stream
        self._lines = lines
        self._calls: dict[int, OpenCall] = {}
        self._stopping: set[int] = set()
        self._stopped = trio.Event()
        self._last = 0
        self._gone: TripowerError | None = None
        self._outgoing: deque[bytes] = deque()
        self._news = trio.Event()

    async def call(self, verb: str, arguments: Sequence[str] = (), *, answer: Any = Any) -> Any:
        """The answer of a verb, decoded as the type `answer` (that of the verb is `Verb.answer`). Blocks; cancelling it stops it there.

        Raises `ConsoleRefused` with the server's code, `ServerGone`, and `UnknownAnswer` when it is not of the type.
        """
        async with self.open_call(verb, arguments) as call:
            async for _ in call:  # a verb that streams has an answer too: None
                pass
            return decoded(call.result, answer, self.hello)

    @asynccontextmanager
    async def stream(self, verb: str, arguments: Sequence[str] = (), *, answer: Any = Any) -> AsyncIterator[AsyncIterator[Any]]:
        """The items of a verb that streams, each decoded as the type `answer`. Leaving the block stops it.

        Iterating blocks until there is one, and raises what `call` raises. What has come waits here however slowly it is taken.
        """
        async with self.open_call(verb, arguments) as call:
            yield Items(call, answer, self.hello)

    @asynccontextmanager
    async def open_call(self, verb: str, arguments: Sequence[str] = ()) -> AsyncIterator[OpenCall]:
        """A call as it goes: iterate over its items as JSON, then look at `result`."""
        number = self._next()
        async with self._opened(Call(number, verb, tuple(arguments))) as call:
            yield call

    async def complete(self, words: Sequence[str]) -> list[str]:
        """What the last of these words could become. Blocks."""
        async with self._opened(Complete(self._next(), tuple(words))) as call:
            async for _ in call:
                pass
            return list(msgspec.json.decode(call.result, type=list[str]))

    @asynccontextmanager
    async def _opened(self, frame: Call | Complete) -> AsyncIterator[OpenCall]:
        if self._gone is not None:
            raise self._gone
        try:
            line = _line(frame)
        except UnicodeEncodeError as error:  # a command line may be any bytes
            raise ConsoleRefused("what is asked is no text: write it in UTF-8", code="not_text") from error
        if len(line) > LINE_BYTES_MAX:
            raise ConsoleRefused(f"what is asked is longer than {LINE_BYTES_MAX} bytes", code="line_too_long")
        call = self._calls[frame.id] = OpenCall()
        self._send(line)
        try:
            yield call
        finally:
            if self._calls.pop(frame.id, None) is not None:
                self._stopping.add(frame.id)
                self._send(_line(Stop(frame.id)))

    def check(self) -> None:
        """Raise `ServerGone` where the server has said that it ends, or was lost. Synchronous."""
        if self._gone is not None:
            raise self._gone

    async def settle(self) -> None:
        """Wait until the server has ended what was stopped, for `SETTLE_SECONDS` at most: for a program that will hold its loop."""
        with trio.move_on_after(SETTLE_SECONDS):
            while self._stopping:
                await self._stopped.wait()

    def _next(self) -> int:
        self._last += 1
        return self._last

    def _send(self, line: bytes) -> None:
        """Queue a line. Synchronous, so that a stop is sent by whoever is cancelled too."""
        self._outgoing.append(line)
        self._news.set()

    # The two tasks.

    async def write(self) -> None:
        """Send what is queued, until the other side is lost."""
        try:
            while True:
                await self._news.wait()
                self._news = trio.Event()
                while self._outgoing:
                    await self._stream.send_all(self._outgoing.popleft())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the reader finds out why

    async def read(self) -> None:
        """Hand out what comes, until the other side is lost."""
        try:
            while (line := await self._lines.receive()) is not None:
                self._take(_decoder.decode(line))
        except (msgspec.MsgspecError, Unavailable) as error:
            self._gone = self._gone or UnknownAnswer(f"process {self.hello.pid} sends what is no answer: {error}")
        self._gone = self._gone or ServerGone(f"process {self.hello.pid} has ended")
        for call in self._calls.values():
            call.end(self._gone)
        self._calls.clear()
        self._ended(*self._stopping)

    def _ended(self, *numbers: int) -> None:
        self._stopping.difference_update(numbers)
        self._stopped.set()
        self._stopped = trio.Event()

    def _take(self, frame: Hello | _Piece | _Result | Refusal) -> None:
        if isinstance(frame, Refusal) and not frame.id:
            self._gone = self._gone or parting(frame, self.hello)
        call = None if isinstance(frame, Hello) else self._calls.get(frame.id)
        if call is None or isinstance(frame, Hello):
            if isinstance(frame, _Result | Refusal):  # of what was stopped
                self._ended(frame.id)
            return
        if isinstance(frame, _Piece):
            call.add(frame.value)
            return
        del self._calls[frame.id]
        if isinstance(frame, _Result):
            call.result = frame.value
            call.end()
        else:
            call.end(ConsoleRefused(frame.message, code=frame.code))


@asynccontextmanager
async def open_console(target: str | None = None) -> AsyncIterator[ConsoleClient]:
    """A console on the process with this number or at this socket; without either on the only one of this user.

    Blocks for as long as the process takes to say who it is. Raises `CannotAttach` when nobody is there, does not answer or cannot be
    trusted, and where several are there, listing them. See `finding.attach`.
    """
    attached = await attach(target)
    client = ConsoleClient(attached.stream, attached.lines, attached.hello, attached.path)
    error: BaseException | None = None
    try:
        async with attached.stream, trio.open_nursery() as tasks:
            tasks.start_soon(client.write, name="console/write")
            tasks.start_soon(client.read, name="console/read")
            try:
                yield client
            except BaseException as caught:  # noqa: BLE001 - every one, to be raised again below rather than in a group
                error = caught
            tasks.cancel_scope.cancel(reason="the console is left")
    except BaseExceptionGroup as group:
        _, others = group.split(trio.Cancelled)
        if others is not None or error is None:
            raise
    if error is not None:
        raise error


def parting(refusal: Refusal, hello: Hello) -> TripowerError:
    """Why the server ended the connection."""
    if refusal.code == "server_ended":
        return ServerGone(f"process {hello.pid} has ended")
    return ServerGone(f"process {hello.pid} ended this console: {refusal.message}")


# The server's frames, with their values left as they are until somebody wants them.


class _Piece(msgspec.Struct, frozen=True, tag="piece"):
    id: int
    value: msgspec.Raw


class _Result(msgspec.Struct, frozen=True, tag="result"):
    id: int
    value: msgspec.Raw = msgspec.Raw(b"null")


_decoder = msgspec.json.Decoder(Hello | _Piece | _Result | Refusal)


def _line(frame: FromClient) -> bytes:
    return msgspec.json.encode(frame) + b"\n"
