"""One client of the load: sends a request, reads as its kind does, and says how it ended.

A request that is kept to its end has exactly one of four endings: a whole answer, a refusal, a deadline, an error of its own. Everything
else is lost: a connection that ends too early, an answer with a wrong number of tokens, a second end, another request's answer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum

import msgspec
import trio

from tripower.bench.http_client import EventSplitter, HttpConnection
from tripower.bench.overload.requests import Ask, Kind
from tripower.runtime.kernel import TripowerError, Unavailable

PIECE_BYTES = 512
"""That a slow reader takes at once."""
SLOW_BUFFER_BYTES = 4096
REUSED_SECONDS_MAX = 20.0
"""An idle connection is not used again after so long: the server may close it at any moment."""
ANSWER_SECONDS_MAX = 120.0
DEADLINE_CODE = "deadline_exceeded"
REFUSALS = (429, 503)
LATE_REFUSALS = ("share_exceeded", "queue_full")
"""Codes of a refusal after the head: of who lost a waiting place when a keep-alive comment had gone out."""


class Outcome(StrEnum):
    """How a request ended, as its client saw it."""

    WHOLE = "whole"
    REFUSED = "refused"
    EXPIRED = "expired"
    INVALID = "invalid"
    LEFT = "left"
    LOST = "lost"


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How one request ended. Seconds count from its sending."""

    outcome: Outcome
    code: str = ""
    """Of an error."""
    first_seconds: float = 0.0
    """To the first token of a stream, or to the head of anything else."""
    advised: bool = True
    """Of a refusal: whether it said when to come back."""
    retry_seconds: float = 0.0
    late: bool = False
    """Whether a refusal came when the head of the answer was out already."""
    fault: str = ""


class Fault(msgspec.Struct):
    code: str = ""


class Choice(msgspec.Struct):
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    completion_tokens: int = 0


class Event(msgspec.Struct):
    """What is looked at of an answer, and of an event of one."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Fault | None = None


_decode = msgspec.json.Decoder(Event).decode


class Pool:
    """Connections that are kept between requests."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: deque[tuple[float, HttpConnection]] = deque()

    @asynccontextmanager
    async def connection(self, *, slow: bool = False) -> AsyncIterator[HttpConnection]:
        """An open one. It is kept if the block ends without an error. A slow reader gets one of its own."""
        connection = HttpConnection(self._port, receive_buffer=SLOW_BUFFER_BYTES) if slow else self._reused()
        if connection is None:
            connection = HttpConnection(self._port)
        try:
            if not connection.is_open:
                await connection.open()
            yield connection
        except BaseException:
            connection.close()
            raise
        if slow or connection.headers.get(b"connection", b"").lower() == b"close":
            connection.close()
        else:
            self._idle.append((trio.current_time(), connection))

    def close(self) -> None:
        """Close those that nobody uses."""
        while self._idle:
            self._idle.pop()[1].close()

    def _reused(self) -> HttpConnection | None:
        """The one that was used last, unless it has been idle for too long; then all have."""
        if not self._idle:
            return None
        since, connection = self._idle.pop()
        if trio.current_time() - since < REUSED_SECONDS_MAX:
            return connection
        connection.close()
        self.close()
        return None


async def perform(pool: Pool, ask: Ask) -> Ending:
    """Send one request and see it to its end, or as far as its client does. Raises nothing of its own."""
    patience = ask.patience if ask.kind is Kind.LEAVING else ANSWER_SECONDS_MAX
    with trio.move_on_after(patience):
        try:
            async with pool.connection(slow=ask.kind is Kind.SLOW) as connection:
                return await _answer(connection, ask)
        except (TripowerError, OSError, ValueError) as error:
            return Ending(outcome=Outcome.LOST, fault=f"{ask.kind} {ask.id}: {error}")
    if ask.kind is Kind.LEAVING:
        return Ending(outcome=Outcome.LEFT)
    return Ending(outcome=Outcome.LOST, fault=f"{ask.kind} {ask.id}: no answer within {patience:.0f} seconds")


async def _answer(connection: HttpConnection, ask: Ask) -> Ending:
    began = time.perf_counter()
    status = await connection.begin(ask.request)
    head_seconds = time.perf_counter() - began
    if connection.headers.get(b"x-request-id") != ask.id.encode():
        raise Unavailable(f"the answer is another request's: {connection.headers.get(b'x-request-id')!r}")
    if status == 200 and ask.stream:
        return await _read_stream(connection, ask, began)
    pieces = []
    while piece := await connection.read_piece():
        pieces.append(piece)
    event = _decode(b"".join(pieces))
    if status == 200:
        check_tokens(event.usage, ask.tokens)
        return Ending(outcome=Outcome.WHOLE, first_seconds=head_seconds)
    return refusal(status, event.error, connection.headers, head_seconds)


async def _read_stream(connection: HttpConnection, ask: Ask, began: float) -> Ending:
    """Raises `Unavailable` for a stream that is not as it should be."""
    splitter, first = EventSplitter(), 0.0
    ends, usage = 0, None
    fault: Fault | None = None
    while piece := await connection.read_piece(PIECE_BYTES if ask.pause else 65536):
        for payload in splitter.feed(piece):
            if splitter.ended:
                raise Unavailable("an event came after the end mark")
            event = _decode(payload)
            if event.choices:
                first = first or time.perf_counter() - began
            ends += sum(choice.finish_reason is not None for choice in event.choices)
            usage, fault = event.usage or usage, event.error or fault
        if ask.pause:
            await trio.sleep(ask.pause)
    if not splitter.ended:
        raise Unavailable("the stream has no end mark")
    if fault is not None:
        return late_ending(fault, begun=first > 0)
    if ends != 1:
        raise Unavailable(f"an answer ended {ends} times")
    check_tokens(usage, ask.tokens)
    return Ending(outcome=Outcome.WHOLE, first_seconds=first)


def late_ending(fault: Fault, *, begun: bool) -> Ending:
    """The ending that an error frame is. Raises `Unavailable` for one that breaks an answer off."""
    if fault.code == DEADLINE_CODE:
        return Ending(outcome=Outcome.EXPIRED, code=fault.code)
    if fault.code in LATE_REFUSALS and not begun:
        return Ending(outcome=Outcome.REFUSED, code=fault.code, late=True)
    raise Unavailable(f"the answer broke off: {fault.code}")


def check_tokens(usage: Usage | None, tokens: int) -> None:
    """Raise `Unavailable` unless exactly so many tokens came."""
    got = 0 if usage is None else usage.completion_tokens
    if got != tokens:
        raise Unavailable(f"an answer of {tokens} tokens had {got}")


def refusal(status: int, fault: Fault | None, headers: dict[bytes, bytes], seconds: float) -> Ending:
    """The ending that an answer without content is. Raises `Unavailable` for one that nobody should get."""
    code = "" if fault is None else fault.code
    if status in REFUSALS:
        milliseconds = headers.get(b"retry-after-ms", b"")
        return Ending(
            outcome=Outcome.REFUSED,
            code=code,
            first_seconds=seconds,
            advised=headers.get(b"retry-after", b"").isdigit() and milliseconds.isdigit(),
            retry_seconds=int(milliseconds or 0) / 1000,
        )
    if status == 504 and code == DEADLINE_CODE:
        return Ending(outcome=Outcome.EXPIRED, code=code, first_seconds=seconds)
    if 400 <= status < 500 and code:
        return Ending(outcome=Outcome.INVALID, code=code, first_seconds=seconds)
    raise Unavailable(f"the server answered {status} {code}")
