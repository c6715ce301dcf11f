"""One HTTP request on its way through: who asks, what has been answered, how it ended.

Made by the outermost middleware, kept in the ASGI scope, used by every endpoint. It writes the answer itself, so that no layer has to
wrap `send` to learn the status.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec
import trio

from tripower.actors.dialogue import GenerationFinished, GenerationRequest, Timings
from tripower.actors.generation import Generation
from tripower.api.http.fields import NAMES_MAX
from tripower.api.http.incoming import Incoming
from tripower.runtime.admission import ANYBODY, Caller
from tripower.runtime.kernel import NEVER, DeadlineExceeded, InvalidRequest, TripowerError

EXCHANGE = "tripower.exchange"
"""Key of the exchange in the ASGI scope."""
JSON = b"application/json"
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
CLIENT_LEFT = 499
"""The status, for logs and figures only, of a request whose client left before an answer began."""
MILLISECONDS = re.compile(rb"[0-9]{1,15}")
YES, NO = (b"1", b"true"), (b"0", b"false")

Header = tuple[bytes, bytes]


class Metering(Protocol):
    """What counts the tokens of whoever asks, at Trio's time `now`."""

    def spend(self, tokens: int, now: float) -> None:
        """So many more."""

    def headers(self, now: float) -> list[Header]:
        """What every answer tells of the limits."""


class Exchange:
    """A request and its answer."""

    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.began = trio.current_time()
        self.request_id = self._request_id()
        self.route = ""
        """The template of the route that matched; empty when none did."""
        self.status = 0
        """0 while no answer has begun."""
        self.end = ""
        """`stop`, `length`, an error's code, `disconnect` or `shutdown`; empty for plain answers."""
        self._prompt_tokens = self._completion_tokens = 0
        self.ignored: tuple[str, ...] = ()
        """Fields of the request that had no effect."""
        self.more_headers: tuple[Header, ...] = ()
        """What the answer gets besides, whatever it is."""
        self.caller: Caller = ANYBODY
        """Who asks, as authentication found out."""
        self.admin = False
        """Whether the caller may load and unload, and see what others ask."""
        self.meter: Metering | None = None
        self.over = trio.Event()
        """Set when the answer is complete or cannot be, and whatever ran for it has been left."""
        self.answering = False
        """Whether a model has given the first token."""
        self.model = ""
        """Which one the request is for, where an endpoint has found out."""
        self.asked: GenerationRequest | None = None
        """What was asked of a model, for those who keep records."""
        self.traceparent = ""
        """The context that work for this request belongs to, in W3C's form."""
        self.timings: Timings | None = None
        """Of a complete answer."""
        self.generations: Sequence[Generation] = ()
        """What models answer it with, once they have it in their queues."""
        self.cut_off = ""
        """The code of the error because of which the client was cut off in the middle of its answer; usually empty."""
        self._incoming: Incoming | None = scope.get("extensions", {}).get("tripower.incoming")
        self._receive, self._send = receive, send
        self._body_left = b"content-length" in self.headers or b"transfer-encoding" in self.headers
        self._interruptible: Interruptible | None = None
        self._interruption: TripowerError | None = None

    # What it costs.

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, 0 while they are not known. Setting them charges the caller."""
        return self._prompt_tokens

    @prompt_tokens.setter
    def prompt_tokens(self, tokens: int) -> None:
        self._spend(tokens - self._prompt_tokens)
        self._prompt_tokens = tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far. Setting them charges the caller for what has been added."""
        return self._completion_tokens

    @completion_tokens.setter
    def completion_tokens(self, tokens: int) -> None:
        self._spend(tokens - self._completion_tokens)
        self._completion_tokens = tokens

    def _spend(self, tokens: int) -> None:
        if self.meter is not None and tokens:
            self.meter.spend(tokens, trio.current_time())

    # The request.

    async def body(self, bytes_max: int) -> bytes:
        """The whole body. Raises `InvalidRequest` (413) before it is read if it is declared too long, else at the first byte too many."""
        declared = self.headers.get(b"content-length")
        if declared is not None and int(declared) > bytes_max:
            raise _too_large(bytes_max)
        body = bytearray()  # not a list of pieces: of single bytes it would take fifty times their room
        while True:
            message = await self._receive()
            body += message.get("body", b"")
            if len(body) > bytes_max:
                raise _too_large(bytes_max)
            if not message.get("more_body", False):
                self._body_left = False
                return bytes(body)

    def milliseconds_header(self, name: bytes) -> float | None:
        """A header that holds a positive whole number of milliseconds, in seconds. Raises `InvalidRequest`."""
        text = self.headers.get(name)
        if text is None:
            return None
        if not (MILLISECONDS.fullmatch(text) and int(text) > 0):
            raise InvalidRequest(f"{name.decode()} is a whole number of milliseconds, at least 1", param=name.decode())
        return int(text) / 1000

    def deadline(self, seconds_max: float) -> float:
        """When the request must be over, counted from its arrival: by its header, at most `seconds_max`; else never.

        Raises `InvalidRequest`.
        """
        seconds = self.milliseconds_header(b"x-tripower-deadline-ms")
        return NEVER if seconds is None else self.began + min(seconds, seconds_max)

    def first_token_deadline(self) -> float:
        """When the first token must be there: by its header, else never. Raises `InvalidRequest`."""
        seconds = self.milliseconds_header(b"x-slo-ttft-ms")
        return NEVER if seconds is None else self.began + seconds

    @property
    def strict(self) -> bool:
        """Whether the client wants to be refused for a field that nobody knows. Raises `InvalidRequest`."""
        text = self.headers.get(b"x-tripower-strict", b"").lower()
        if text not in (b"", *YES, *NO):
            raise InvalidRequest("x-tripower-strict is 1 or 0", param="x-tripower-strict")
        return text in YES

    # The answer.

    @property
    def started(self) -> bool:
        """Whether the head of the answer is out, so that its status stands."""
        return self.status != 0

    async def answer(self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Iterable[Header] = ()) -> None:
        """Send a whole answer. Blocks while the client does not take it."""
        await self._start(status, [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers])
        await self._send({"type": "http.response.body", "body": body})

    async def answer_unchanged(self, headers: Iterable[Header]) -> None:
        """Say that what the client has is still right (304)."""
        await self._start(304, list(headers))
        await self._send({"type": "http.response.body", "body": b""})

    async def start_stream(self, headers: Iterable[Header]) -> None:
        """Send the head of an answer whose length nobody knows yet."""
        await self._start(200, list(headers))

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send a piece of a started answer. Blocks while the client does not take it."""
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def _start(self, status: int, headers: list[Header]) -> None:
        self.status = status
        headers.append((b"x-request-id", self.request_id))
        if self._body_left:
            headers.append((b"connection", b"close"))  # what is left of the request would be taken for the next one
        if self.meter is not None:
            headers += self.meter.headers(trio.current_time())
        if self.more_headers:
            headers += self.more_headers
        if self.ignored:
            headers.append((b"x-tripower-ignored", _listed(self.ignored)))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    # The end.

    def asks(self, request: GenerationRequest) -> GenerationRequest:
        """The request as its caller's, under its id and within its trace; kept for the records."""
        request = msgspec.structs.replace(
            request, caller=self.caller, request_id=self.request_id.decode(), traceparent=self.traceparent
        )
        self.asked = request
        return request

    def finish(self, finished: GenerationFinished) -> None:
        """An answer of a model is complete: keep its figures for the records. Of several answers the last one's reason and times count."""
        self.end = finished.reason
        self.completion_tokens = finished.usage.completion_tokens
        self.timings = finished.timings

    def interruptible(self, deadline: float, *, first_token_deadline: float = NEVER) -> Interruptible:
        """A block that ends at `deadline`, or at `interrupt`, with the error that says so."""
        return Interruptible(self, deadline, first_token_deadline)

    def interrupt(self, error: TripowerError) -> None:
        """End what runs for this request with an error. Synchronous; without effect on an answer that is complete."""
        self._interruption = self._interruption or error
        if self._interruptible is not None:
            self._interruptible.scope.cancel(reason=error.code)

    def cancel(self, error: TripowerError) -> None:
        """End the request wherever it is: while its body arrives, while a model has it, or while its client does not read.

        The client is told, unless it does not read; then it is cut off. Synchronous; without effect on an answer
        that is complete. Wait for `over`.
        """
        self.interrupt(error)
        if self._incoming is None:
            return
        if self.waiting_since is not None:
            self.cut_off = error.code
            self._incoming.cut(error.code)
        elif self._interruptible is None and not self.started:
            self._incoming.fail_body(error)

    @property
    def waiting_since(self) -> float | None:
        """Since when bytes of the answer have been waiting for the client to take them; None while none do."""
        return None if self._incoming is None else self._incoming.waiting_since

    def _request_id(self) -> bytes:
        given = self.headers.get(b"x-request-id")
        if given is not None and REQUEST_ID.fullmatch(given):
            return given
        return secrets.token_hex(16).encode()


class Interruptible:
    """The part of a request that waits for a model. Leaving it raises what interrupted it; outer cancellations pass."""

    __slots__ = ("_deadline", "_exchange", "_first", "scope")

    def __init__(self, exchange: Exchange, deadline: float, first_token_deadline: float) -> None:
        self._exchange = exchange
        self._deadline = deadline
        self._first = first_token_deadline < deadline
        self.scope = trio.CancelScope(deadline=min(deadline, first_token_deadline))

    def first_token_came(self) -> None:
        """From now on only the deadline of the whole counts. Call it with every token; only the first has an effect."""
        self._exchange.answering = True
        if self._first:
            self._first = False
            self.scope.deadline = self._deadline

    def __enter__(self) -> Self:
        exchange = self._exchange
        exchange._interruptible = self
        if exchange._interruption is not None:
            self.scope.cancel(reason=exchange._interruption.code)
        self.scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        exchange = self._exchange
        exchange._interruptible = None
        caught = self.scope.__exit__(kind, error, traceback)
        if not self.scope.cancelled_caught:
            return caught
        raise exchange._interruption or DeadlineExceeded("the deadline passed before the answer was complete")


def _too_large(bytes_max: int) -> InvalidRequest:
    return InvalidRequest(f"the body is longer than {bytes_max} bytes", code="request_too_large", status=413)


LISTED_MAX = 20


def _listed(names: tuple[str, ...]) -> bytes:
    """Names for a header: as many as fit, anything but plain characters replaced. Of very many only some were kept."""
    shown = [re.sub(r"[^A-Za-z0-9_.\[\]-]", "?", name[:64]) for name in names[:LISTED_MAX]]
    if len(names) > LISTED_MAX:
        shown.append("and-many-more" if len(names) >= NAMES_MAX else f"and-{len(names) - LISTED_MAX}-more")
    return ",".join(shown).encode()
