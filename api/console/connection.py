"""One attached console: its calls, each a task of its own, and the bounds that it cannot exceed.

Whatever a client sends or leaves undone ends at its own connection. A line that is no call is refused, and the third of them ends the
connection; so does a line that is too long. A client that takes nothing for `SEND_SECONDS` is cut off, and until then its calls wait
for it and nobody else does. What a verb raises is an answer: its own errors as they are, anything else as `internal_error` and a line
in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from typing import Any

import attrs
import msgspec
import trio

from tripower.api.console.outgoing import Outgoing
from tripower.api.console.protocol import (
    LINE_BYTES_MAX,
    Call,
    Complete,
    FromClient,
    FromServer,
    Hello,
    Piece,
    Refusal,
    Result,
    Stop,
)
from tripower.api.console.statistics import ConsoleFigures
from tripower.api.console.text import encodable
from tripower.api.console.verb import Subject, Verb
from tripower.api.console.verbs import unknown_verb
from tripower.api.http.transport import ClientLost, Transport
from tripower.runtime.kernel import DeadlineExceeded, InvalidRequest, Overloaded, TripowerError

log = logging.getLogger("tripower.console")

SEND_SECONDS = 5.0
CALLS_MAX = 32
GARBAGE_MAX = 3
ANSWER_BYTES_MAX = 16 << 20
COMPLETIONS_MAX = 200
PARTING_SECONDS = 1.0
"""Time for a client to take why it is thrown out."""


@attrs.define(eq=False)
class OpenCall:
    """A call that is being answered."""

    id: int
    streams: bool
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    stopped: bool = False


ITEMS_AT_ONCE = 50


class ConsoleConnection:
    """See the module. `run` is its task."""

    def __init__(
        self, transport: Transport, subject: Subject, verbs: Mapping[str, Verb], hello: Hello, figures: ConsoleFigures
    ) -> None:
        self._transport = transport
        self._subject = attrs.evolve(subject, state={})
        self._verbs = verbs
        self._hello = hello
        self._figures = figures
        self._outgoing = Outgoing(transport)
        self._calls: dict[int, OpenCall] = {}
        self._garbage = 0
        self._thrown_out = False
        self._nursery: trio.Nursery

    @property
    def open_calls(self) -> int:
        return len(self._calls)

    async def run(self) -> None:
        """Answer calls until the client leaves, is thrown out, or the task is cancelled. Closes the transport."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._write, name="console/write")
                await self._outgoing.put(_line(self._hello))
                await self._read()
                self._nursery.cancel_scope.cancel(reason="the console has detached")
        finally:
            self._outgoing.last_words(b"".join(self._farewell()))
            await self._transport.close(unread=False)

    async def _write(self) -> None:
        try:
            await self._outgoing.run()
        except ClientLost as lost:
            if lost.__cause__ is None:  # it has not gone, it does not read
                self._figures.cut_off += 1
                log.info("cut a console off: %s", lost)
            self._nursery.cancel_scope.cancel(reason="the console takes nothing")

    def _farewell(self) -> Iterator[bytes]:
        if self._thrown_out:
            return
        yield _line(Refusal(0, "server_ended", "the server has ended, or this console has"))
        for call in self._calls.values():  # whoever sees its stream end knows why by then
            if call.streams:
                yield _line(Result(call.id))

    # Lines.

    async def _read(self) -> None:
        received = bytearray()
        searched = 0
        while data := await self._transport.receive():
            received += data
            while (end := received.find(b"\n", searched)) >= 0:
                line = bytes(received[:end])
                del received[: end + 1]
                searched = 0
                if len(line) > LINE_BYTES_MAX or not await self._take(line):
                    return await self._throw_out(len(line))
            searched = len(received)
            if searched > LINE_BYTES_MAX:
                return await self._throw_out(searched)

    async def _throw_out(self, length: int) -> None:
        """Say why, give the client a moment to hear it, and leave."""
        self._thrown_out = True
        self._figures.cut_off += 1
        why = "three lines were no calls" if length <= LINE_BYTES_MAX else f"a line is longer than {LINE_BYTES_MAX} bytes"
        log.info("threw a console out: %s", why)
        with trio.move_on_after(PARTING_SECONDS):
            await self._outgoing.put(_line(Refusal(0, "thrown_out", why)))

    async def _take(self, line: bytes) -> bool:
        """One line of the client's. False when there has been too much garbage."""
        if not line.strip():
            await trio.lowlevel.checkpoint()
            return True
        try:
            frame = _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._garbage += 1
            await self._refuse(0, InvalidRequest(f"the line is no call: {error}", code="not_a_call"))
            return self._garbage < GARBAGE_MAX
        match frame:
            case Stop():
                self._stop(frame.id)
                await trio.lowlevel.checkpoint()
            case Call() | Complete():
                await self._begin(frame)
        return True

    def _stop(self, number: int) -> None:
        if (call := self._calls.get(number)) is not None:
            call.stopped = True
            call.scope.cancel(reason="the console stopped the call")

    async def _begin(self, frame: Call | Complete) -> None:
        try:
            if frame.id in self._calls:
                raise InvalidRequest(f"call {frame.id} is open already", code="call_open")
            if len(self._calls) >= CALLS_MAX:
                raise Overloaded(f"{CALLS_MAX} calls are open already: stop one", code="too_many_calls")
            verb = self._verb(frame.verb) if isinstance(frame, Call) else None
        except TripowerError as error:
            await self._refuse(frame.id, error)
            return
        call = self._calls[frame.id] = OpenCall(frame.id, streams=verb is not None and verb.stream is not None)
        if verb is not None and verb.stream is None:
            call.scope.deadline = trio.current_time() + verb.seconds
        self._nursery.start_soon(self._answer, call, frame, verb, name=f"console/{'complete' if verb is None else verb.name}")
        await trio.lowlevel.checkpoint()

    def _verb(self, name: str) -> Verb:
        verb = self._verbs.get(name)
        if verb is None:
            raise unknown_verb(name)
        return verb

    # Calls.

    async def _answer(self, call: OpenCall, frame: Call | Complete, verb: Verb | None) -> None:
        try:
            with call.scope:
                value = await self._value(call, frame, verb)
                line = _line(Result(call.id, await _encoded(value) if type(value) is list else value))
                self._figures.answered += 1
            if call.scope.cancelled_caught:
                if not (call.stopped and call.streams):
                    raise _given_up(call, verb)
                line = _line(Result(call.id))
                self._figures.answered += 1
        except (Exception, SystemExit) as error:  # noqa: BLE001 - no verb may end more than its own call
            line = _line(self._refusal(call.id, error, "complete" if verb is None else verb.name))
        await self._outgoing.put(line)  # its call is open until there is room: who does not read can ask for no more
        del self._calls[call.id]

    async def _value(self, call: OpenCall, frame: Call | Complete, verb: Verb | None) -> Any:
        if isinstance(frame, Complete):
            return self._completions(frame.words)
        assert verb is not None
        if verb.run is not None:
            return await verb.run(self._subject, frame.arguments)
        assert verb.stream is not None
        items: Any = verb.stream(self._subject, frame.arguments)
        async with aclosing(items):
            async for item in items:
                await self._outgoing.put(_line(Piece(call.id, item)))
        return None

    def _completions(self, words: tuple[str, ...]) -> list[str]:
        verb = self._verbs.get(words[0]) if len(words) > 1 else None
        candidates = self._verbs if len(words) < 2 else () if verb is None else verb.complete(self._subject)
        begun = words[-1] if words else ""
        return sorted({word for word in candidates if word.startswith(begun)})[:COMPLETIONS_MAX]

    async def _refuse(self, number: int, error: TripowerError) -> None:
        await self._outgoing.put(_line(self._refusal(number, error, "")))

    def _refusal(self, number: int, error: BaseException, verb: str) -> Refusal:
        self._figures.refused += 1
        ours = error
        while isinstance(ours, ExceptionGroup) and len(ours.exceptions) == 1:  # of a verb with a nursery
            ours = ours.exceptions[0]
        if isinstance(ours, TripowerError):
            return Refusal(number, ours.code, encodable(ours.message))
        log.error("the console's verb %s failed: %r", verb, error, exc_info=error)
        return Refusal(number, "internal_error", encodable(f"{verb} failed: {type(ours).__name__}: {str(ours)[:500]}"))


def _given_up(call: OpenCall, verb: Verb | None) -> TripowerError:
    if call.stopped or verb is None:
        return InvalidRequest("the call was stopped", code="stopped")
    return DeadlineExceeded(f"{verb.name} took longer than {verb.seconds:g} s and was given up")


async def _encoded(items: list[Any]) -> msgspec.Raw:
    """A list as JSON, made a few items at a time: of a thousand it takes longer than the loop may be held."""
    pieces = []
    for begin in range(0, len(items), ITEMS_AT_ONCE):
        pieces.append(msgspec.json.encode(items[begin : begin + ITEMS_AT_ONCE])[1:-1])
        await trio.lowlevel.checkpoint()
    return msgspec.Raw(b"[" + b",".join(pieces) + b"]")


_decoder = msgspec.json.Decoder(FromClient)


def _line(frame: FromServer) -> bytes:
    line = msgspec.json.encode(frame)
    if len(line) > ANSWER_BYTES_MAX:
        raise Overloaded(f"the answer is longer than {ANSWER_BYTES_MAX} bytes: ask for less", code="answer_too_large")
    return line + b"\n"
