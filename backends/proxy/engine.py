"""A remote server as a delegate: one HTTP request for each generation, streamed, on a connection of its own.

httpx runs on whatever loop awaits it, so nothing here knows Trio. Leaving a stream closes its connection: before the end that is how a
server learns that nobody listens any more, and at the end it spares us a wait for bytes behind the end mark that may never come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Self

import httpx

from tripower.backends.proxy.address import Upstream
from tripower.backends.proxy.answer import AnswerReader
from tripower.backends.proxy.errors import UpstreamProtocol, UpstreamTruncated, UpstreamUnreachable, status_error
from tripower.backends.proxy.question import abilities_with, body_of, endpoint, headers_of
from tripower.backends.proxy.sse import EventParser
from tripower.runtime.engine import DelegateEvent, DelegateRequest, EngineInfo
from tripower.runtime.kernel.errors import TripowerError

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 300.0
"""A stream that brings no byte for so long is given up, also where the caller has all the time of the world."""
ERROR_BODY_MAX = 64 << 10


def new_client() -> httpx.AsyncClient:
    """Follows no redirects and heeds no proxy or certificate variables of the environment. Blocks to read the certificates."""
    return httpx.AsyncClient(
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS, pool=None),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        headers={"user-agent": "tripower"},
    )


class ProxyEngine:
    """See the module. Made by `ProxyBackend`."""

    def __init__(
        self, upstream: Upstream, client: httpx.AsyncClient, *, key: str, key_variable: str, extensions: tuple[str, ...]
    ) -> None:
        self.upstream = upstream
        self.client = client
        self.key = key
        self.key_variable = key_variable
        self.extensions = extensions
        self.abilities = abilities_with(extensions)
        self.info = EngineInfo(backend="proxy", architecture="", context_max=0, vocabulary_size=0, sequences_max=0, threads=0)

    def stream(self, request: DelegateRequest, *, seconds: float) -> ProxyStream:
        """See `DelegateEngine.stream`. Raises the errors of `backends.proxy.errors`."""
        return ProxyStream(self, request, seconds)

    async def close(self) -> None:
        await self.client.aclose()


class ProxyStream:
    """One request and its answer."""

    def __init__(self, engine: ProxyEngine, request: DelegateRequest, seconds: float) -> None:
        self._engine = engine
        self._request = request
        self._seconds = seconds
        self._where = f"the upstream {engine.upstream.origin}"
        self._reader = AnswerReader(self._where)
        self._parser = EventParser()
        self._events: deque[DelegateEvent] = deque()
        self._response: httpx.Response | None = None
        self._bytes: AsyncIterator[bytes]
        self._ended = False

    async def __aenter__(self) -> Self:
        engine, request = self._engine, self._request
        asking = engine.client.build_request(
            "POST",
            engine.upstream.url(endpoint(request)),
            content=body_of(request, engine.upstream.model, engine.extensions),
            headers=headers_of(engine.key, self._seconds, request.traceparent),
        )
        try:
            self._response = await engine.client.send(asking, stream=True)
        except httpx.HTTPError as error:
            raise unreachable(self._where, error) from error
        try:
            await self._check_head(self._response)
        except BaseException:
            await self._response.aclose()
            raise
        self._bytes = self._response.aiter_raw()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._response is not None:
            await let_go(self._response, self._bytes)

    async def _check_head(self, response: httpx.Response) -> None:
        if response.status_code != 200:
            body = await read_body(response, ERROR_BODY_MAX)
            raise status_error(
                response.status_code, response.headers, body, where=self._where, key_variable=self._engine.key_variable
            )
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "text/event-stream" or response.headers.get("content-encoding", "identity") != "identity":
            raise UpstreamProtocol(
                f"{self._where} answers with {content_type or 'no content type'} and not with a plain event stream"
            )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> DelegateEvent:
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            await self._read_more()
        return self._events.popleft()

    async def _read_more(self) -> None:
        try:
            portion = await anext(self._bytes, None)
        except httpx.HTTPError as error:
            if not self._reader.complete:
                raise UpstreamTruncated(f"the answer of {self._where} broke off: {described(error)}") from error
            portion = None
        if portion is not None:
            for data in self._parser.feed(portion):
                self._events.extend(self._reader.take(data))
                if self._reader.done:
                    break
        if portion is None or self._reader.done:
            self._ended = True
            self._events.append(self._reader.end())


async def read_body(response: httpx.Response, bytes_max: int) -> bytes:
    """The first bytes of a body; empty where it breaks off."""
    body = b""
    portions = response.aiter_raw()
    try:
        async for portion in portions:
            body += portion
            if len(body) > bytes_max:
                await let_go(response, portions)
                break
    except httpx.HTTPError:
        return b""
    return body[:bytes_max]


async def let_go(response: httpx.Response, portions: AsyncIterator[bytes]) -> None:
    """Close a response, at its end or before.

    httpx reads through generators inside generators, and one that is dropped half-way would be left to the garbage collector. So they
    are run to their end: on the closed connection that is what has been received already, then an error.
    """
    try:
        await response.aclose()
    finally:  # where this is cancelled, the next read is too, and the generators end by that
        with suppress(httpx.HTTPError, httpx.StreamError):
            async for _ in portions:
                continue


def unreachable(where: str, error: httpx.HTTPError) -> TripowerError:
    """What a connection that could not be had, or gave no answer, means."""
    return UpstreamUnreachable(f"{where} does not answer: {described(error)}")


def described(error: Exception) -> str:
    """What went wrong, in few words, whether the library gives some or not."""
    return str(error)[:200] or type(error).__name__
