"""A model behind `--url`: any server that speaks OpenAI's API."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
import trio

from tripower.api.cli.answers import TEMPERATURE, Question, Show, Summary
from tripower.api.cli.connection import mapped_errors
from tripower.api.cli.event_stream import EventReader
from tripower.api.cli.problems import ServerRefused, StreamCut
from tripower.runtime.kernel import TripowerError, deadline_after, within

ERROR_BYTES_MAX = 1 << 20
LAST_SECONDS = 1.0
"""After the end mark, for the end of the body."""
DONE = "[DONE]"


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Timings(msgspec.Struct):
    predicted_per_second: float | None = None


class _Chunk(msgspec.Struct):
    """What is read of one event; everything else is ignored, so that other servers and later versions work."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    timings: _Timings | None = None
    """llama-server's, which others send too: better than what can be measured from here."""
    error: dict[str, Any] | str | None = None


class RemoteService:
    """A `Service` behind an HTTP client."""

    def __init__(self, client: httpx.AsyncClient, model: str) -> None:
        self.model = model
        self._client = client

    async def answer(self, question: Question, show: Show) -> Summary:
        path, body = request_of(self.model, question)
        headers = {}
        if question.timeout is not None:
            headers["x-tripower-deadline-ms"] = str(max(1, math.ceil(question.timeout * 1000)))
        reading = _Reading(show)
        with within(deadline_after(question.timeout)), mapped_errors(self._client):
            async with self._client.stream("POST", path, json=body, headers=headers) as response:
                if response.status_code != 200:
                    raise await refusal(response)
                await _read(response, reading)
        return reading.summary()


async def _read(response: httpx.Response, reading: _Reading) -> None:
    """Read to the end of the body, which is what leaves httpx's generators in order; behind the end mark only for a moment."""
    events = EventReader()
    with trio.CancelScope() as scope:
        async for piece in response.aiter_bytes():
            for event in events.feed(piece):
                reading.take(event)
            if reading.ended and scope.deadline == math.inf:
                scope.deadline = trio.current_time() + LAST_SECONDS


def request_of(model: str, question: Question) -> tuple[str, dict[str, Any]]:
    """Path, relative to the base, and JSON body."""
    body: dict[str, Any] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"temperature": TEMPERATURE, **question.options}
    if question.prompt is not None:
        return "v1/completions", body | {"prompt": question.prompt}
    return "v1/chat/completions", body | {"messages": list(question.messages)}


class _Reading:
    """What an answer has told so far."""

    def __init__(self, show: Show) -> None:
        self.ended = False
        self._show = show
        self._began = trio.current_time()
        self._first = self._last = 0.0
        self._usage = _Usage()
        self._timings = _Timings()
        self._finish_reason = ""
        self._failure: TripowerError | None = None

    def take(self, event: str) -> None:
        """One event. What follows the end, or a failure, is nobody's."""
        if self.ended:
            return
        if event == DONE:
            self.ended = True
            return
        try:
            self._take(msgspec.json.decode(event, type=_Chunk))
        except msgspec.MsgspecError:
            self._fail(StreamCut("the server sent an event that cannot be read"))

    def _take(self, chunk: _Chunk) -> None:
        if chunk.error is not None:
            self._fail(error_of(200, chunk.error))
            return
        self._usage = chunk.usage or self._usage
        self._timings = chunk.timings or self._timings
        for choice in chunk.choices:
            text = (choice.delta.content if choice.delta is not None else choice.text) or ""
            if text:
                self._last = trio.current_time()
                self._first = self._first or self._last
                self._show(text)
            self._finish_reason = choice.finish_reason or self._finish_reason

    def _fail(self, failure: TripowerError) -> None:
        self._failure, self.ended = failure, True

    def summary(self) -> Summary:
        """The figures. Raises `ServerRefused` or `StreamCut` for an answer that did not end well."""
        if self._failure is not None:
            raise self._failure
        if not self.ended:
            raise StreamCut("the server ended the answer in the middle; what came before is valid")
        tokens, seconds = self._usage.completion_tokens, self._last - self._first
        measured = (tokens - 1) / seconds if tokens is not None and tokens > 1 and seconds > 0 else None
        return Summary(
            finish_reason=self._finish_reason,
            prompt_tokens=self._usage.prompt_tokens,
            tokens=tokens,
            first_token_seconds=self._first - self._began if self._first else None,
            tokens_per_second=self._timings.predicted_per_second or measured,
        )


async def refusal(response: httpx.Response) -> ServerRefused:
    """The error in an answer that is not 200. Blocks while its body is read."""
    body = b""
    try:
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > ERROR_BYTES_MAX:
                break
    except httpx.HTTPError:
        return ServerRefused("the rest of the answer cannot be read", status=response.status_code, code="unreadable")
    try:
        decoded = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return error_of(response.status_code, body.decode(errors="replace").strip()[:500])
    return error_of(response.status_code, decoded.get("error", decoded))


def error_of(status: int, error: Mapping[str, Any] | str | Any) -> ServerRefused:
    """The error that a server describes, in OpenAI's form or as text."""
    if isinstance(error, Mapping):
        code = str(error.get("code") or error.get("type") or "error")
        return ServerRefused(str(error.get("message") or ""), status=status, code=code)
    return ServerRefused(str(error), status=status, code="error")
