"""A remote server as a delegate, over a real socket to an upstream that says what a test wants."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from tests.backends.proxy.upstream import (
    DONE,
    HANG,
    MODELS,
    STREAM_HEAD,
    USAGE,
    Upstream,
    answering,
    chunked,
    delta,
    event,
    whole,
)
from tripower.backends.proxy.backend import ProxyBackend
from tripower.backends.proxy.errors import (
    UpstreamFailed,
    UpstreamModelMissing,
    UpstreamOverloaded,
    UpstreamProtocol,
    UpstreamRefused,
    UpstreamTruncated,
    UpstreamUnauthorised,
    UpstreamUnreachable,
)
from tripower.runtime.engine import (
    DelegateEnd,
    DelegateEngine,
    DelegateEvent,
    DelegatePiece,
    DelegateRequest,
    LoadSpecification,
)
from tripower.runtime.kernel import ModelRefused, TripowerError

PATIENCE = 20.0
REQUEST = DelegateRequest(prompt="p", max_tokens=2)
KEYS = {"TRIPOWER_UPSTREAM_KEY": "general", "TRIPOWER_UPSTREAM_KEY_FAR_OFF": "own"}


def specification(source: str, name: str = "far") -> LoadSpecification:
    return LoadSpecification(
        name=name, source=source, context=0, sequences_max=1, state_bytes_max=0, threads=1, prefill_chunk=1
    )


@asynccontextmanager
async def opened(
    *scripts: Sequence[bytes], source: str = "#m", name: str = "far", **options: Any
) -> AsyncIterator[tuple[DelegateEngine, Upstream]]:
    """An engine in front of an upstream that lists the model `m`, then gives these answers."""
    options.setdefault("environment", {})
    with trio.fail_after(PATIENCE):
        async with answering(MODELS, *scripts) as upstream:
            loaded = await ProxyBackend(**options).open_delegate(
                specification(upstream.base + source, name), lambda stage, fraction: None
            )
            try:
                yield loaded.engine, upstream
            finally:
                await loaded.engine.close()


async def ask(engine: DelegateEngine, seconds: float = math.inf) -> list[DelegateEvent]:
    async with engine.stream(REQUEST, seconds=seconds) as events:
        return [event async for event in events]


async def refused(script: Sequence[bytes], kind: type[TripowerError]) -> TripowerError:
    async with opened(script) as (engine, _):
        with pytest.raises(kind) as caught:
            await ask(engine)
        return caught.value


async def test_an_answer_comes_through_with_its_figures() -> None:
    script = chunked(event(delta("a")), event(delta("b")), event(delta(reason="stop")), USAGE, DONE)
    async with opened(script) as (engine, upstream):
        assert await ask(engine, 2.0) == [DelegatePiece("a"), DelegatePiece("b"), DelegateEnd("stop", 3, 2)]
    listing, asked = upstream.requests
    assert listing.line == "GET /v1/models HTTP/1.1" and asked.line == "POST /v1/completions HTTP/1.1"
    assert asked.json["model"] == "m" and asked.headers["x-tripower-deadline-ms"] == "2000"
    assert "authorization" not in asked.headers and asked.headers["accept-encoding"] == "identity"


async def test_portions_that_split_lines_and_characters_make_no_difference() -> None:
    whole_answer = b": hello\r\n\r\n" + event(delta("é😀", reason="length")).replace(b"\n", b"\r\n") + USAGE + DONE
    for size in (1, 2, 7):
        pieces = [whole_answer[start : start + size] for start in range(0, len(whole_answer), size)]
        async with opened(chunked(*pieces)) as (engine, _):
            assert await ask(engine) == [DelegatePiece("é😀"), DelegateEnd("length", 3, 2)]


async def test_several_events_in_one_portion_are_several_pieces() -> None:
    script = chunked(event(delta("a")) + event(delta("b")) + event(delta(reason="stop")) + DONE)
    async with opened(script) as (engine, _):
        assert await ask(engine) == [DelegatePiece("a"), DelegatePiece("b"), DelegateEnd("stop")]


@pytest.mark.parametrize("end", [True, False])
async def test_an_answer_that_ends_without_a_reason_is_truncated(end: bool) -> None:
    for tail in (b"", b"data: {"):
        async with (
            opened(chunked(event(delta("a")) + tail, end=end)) as (engine, _),
            engine.stream(REQUEST, seconds=math.inf) as events,
        ):
            assert await anext(events) == DelegatePiece("a")
            with pytest.raises(UpstreamTruncated):
                await anext(events)


@pytest.mark.parametrize("tail", [b"", b"data: {", b"data: [DONE]"])
async def test_what_breaks_off_after_the_reason_loses_figures_only(tail: bytes) -> None:
    for end in (True, False):
        async with opened(chunked(event(delta("a", reason="stop")) + tail, end=end)) as (engine, _):
            assert await ask(engine) == [DelegatePiece("a"), DelegateEnd("stop")]


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "says"),
    [
        ("401 No", (), {"error": {"message": "bad key"}}, UpstreamUnauthorised, "TRIPOWER_UPSTREAM_KEY"),
        ("403 No", (), {}, UpstreamUnauthorised, "key"),
        ("404 No", (), {"error": {"message": "no such model"}}, UpstreamModelMissing, "no such model"),
        ("400 No", (), {"error": {"message": "bad top_p", "param": "top_p"}}, UpstreamRefused, "bad top_p"),
        ("422 No", (), {"detail": "nonsense"}, UpstreamRefused, "nonsense"),
        ("500 No", (), {"error": "it broke"}, UpstreamFailed, "it broke"),
        ("408 No", (), {}, UpstreamFailed, "408"),
        ("302 No", ("location: http://127.0.0.1:1/",), {}, UpstreamProtocol, "redirect"),
        ("204 No", (), {}, UpstreamFailed, "204"),
    ],
)
async def test_a_status_has_its_reaction(
    status: str, headers: tuple[str, ...], body: Any, kind: type[TripowerError], says: str
) -> None:
    error = await refused(whole(status, b"" if status.startswith("204") else json.dumps(body).encode(), *headers), kind)
    assert says in error.message and "127.0.0.1" in error.message
    if isinstance(error, UpstreamRefused) and "top_p" in error.message:
        assert (error.status, error.param) == (400, "top_p")


async def test_an_upstream_without_room_says_when_to_come_back() -> None:
    error = await refused(whole("429 No", b"{}", "retry-after: 7"), UpstreamOverloaded)
    assert (error.status, error.retry_after) == (429, 7.0)
    later = await refused(whole("503 No", b"{}", "retry-after: Wed, 21 Oct 2099 07:28:00 GMT"), UpstreamOverloaded)
    assert (later.status, later.retry_after) == (503, None)


async def test_a_prompt_that_is_too_long_there_is_too_long_here() -> None:
    body = {"error": {"message": "too long", "code": "context_length_exceeded"}}
    error = await refused(whole("400 No", json.dumps(body).encode()), UpstreamRefused)
    assert error.code == "context_length_exceeded"


@pytest.mark.parametrize(
    "script",
    [
        whole("200 OK", b'{"choices":[]}'),
        whole("200 OK", b"<html>", content_type="text/html"),
        [STREAM_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n"), b"0\r\n\r\n"],
        chunked(event(b"{")),
        chunked(event({"choices": []})),
    ],
)
async def test_an_answer_of_another_kind_is_an_error(script: Sequence[bytes]) -> None:
    await refused(script, UpstreamProtocol)


async def test_an_error_in_the_middle_is_the_end() -> None:
    error = await refused(chunked(event(delta("a")), event({"error": {"message": "out of memory"}})), UpstreamFailed)
    assert "out of memory" in error.message


async def test_an_upstream_that_goes_away_before_its_answer_is_unreachable() -> None:
    await refused([], UpstreamUnreachable)


async def test_leaving_closes_the_connection() -> None:
    async with opened([STREAM_HEAD, *chunked(event(delta("a")))[1:2], HANG]) as (engine, upstream):
        async with engine.stream(REQUEST, seconds=math.inf) as events:
            assert await anext(events) == DelegatePiece("a")
        await upstream.gone.wait()
        assert upstream.left == 1


@pytest.mark.parametrize("script", [[HANG], [STREAM_HEAD, HANG]])
async def test_a_cancellation_closes_the_connection_at_any_point(script: Sequence[bytes]) -> None:
    async with opened(script) as (engine, upstream):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, engine)
            while len(upstream.requests) < 2:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await upstream.gone.wait()


async def test_each_request_has_a_connection_of_its_own() -> None:
    script = chunked(event(delta("a", reason="stop")), DONE)
    async with opened([*script], [*script]) as (engine, upstream):
        assert await ask(engine) == await ask(engine)
        assert len(upstream.requests) == 3


async def test_an_error_body_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tripower.backends.proxy.engine.ERROR_BODY_MAX", 1000)
    head = STREAM_HEAD.replace(b"200 OK", b"500 No")
    error = await refused([head, *chunked(*[b"x" * 600] * 3)[1:], HANG], UpstreamFailed)
    assert len(error.message) < 200


# Opening.


async def test_the_only_model_needs_no_name() -> None:
    async with opened(chunked(event(delta("a", reason="stop"))), source="") as (engine, upstream):
        await ask(engine)
        assert upstream.requests[1].json["model"] == "m"


@pytest.mark.parametrize(
    ("listing", "source", "code"),
    [
        (MODELS, "#other", "upstream_model_not_found"),
        (whole("200 OK", b'{"data":[{"id":"a"},{"id":"b"}]}'), "", "upstream_model_not_named"),
        (whole("404 No", b""), "", "upstream_model_not_named"),
        (whole("200 OK", b'{"data":7}'), "#m", "upstream_protocol"),
        (whole("200 OK", b"<html>"), "#m", "upstream_protocol"),
        (whole("401 No", b"{}"), "#m", "upstream_unauthorised"),
        (whole("500 No", b"{}"), "#m", "upstream_failed"),
        ([], "#m", "upstream_unreachable"),
    ],
)
async def test_what_is_wrong_upstream_is_told_at_the_start(listing: Sequence[bytes], source: str, code: str) -> None:
    with trio.fail_after(PATIENCE):
        async with answering(listing) as upstream:
            with pytest.raises(TripowerError) as caught:
                await ProxyBackend(environment={}).open_delegate(specification(upstream.base + source), lambda *_: None)
            assert caught.value.code == code


async def test_an_upstream_without_a_list_is_taken_at_its_word() -> None:
    with trio.fail_after(PATIENCE):
        async with answering(whole("404 No", b"")) as upstream:
            loaded = await ProxyBackend(environment={}).open_delegate(specification(upstream.base + "#any"), lambda *_: None)
            await loaded.engine.close()


@pytest.mark.parametrize(("name", "key"), [("far", "general"), ("far-off", "own")])
async def test_the_key_comes_from_the_environment_the_models_own_first(name: str, key: str) -> None:
    script = chunked(event(delta("a", reason="stop")))
    async with opened(script, name=name, environment=KEYS) as (engine, upstream):
        await ask(engine)
    assert [asked.headers["authorization"] for asked in upstream.requests] == [f"Bearer {key}"] * 2


async def test_a_key_that_is_none_is_refused() -> None:
    with pytest.raises(ModelRefused, match="TRIPOWER_UPSTREAM_KEY"):
        await ProxyBackend(environment={"TRIPOWER_UPSTREAM_KEY": "a\nb"}).open_delegate(
            specification("https://host/v1#m"), lambda *_: None
        )


async def test_the_environments_proxies_are_not_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    async with opened(chunked(event(delta("a", reason="stop")))) as (engine, _):
        assert len(await ask(engine)) == 2
