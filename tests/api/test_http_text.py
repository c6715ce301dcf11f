"""Chat and completions over a real socket: the shapes of whole answers and of streams, and their errors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.fake_runtime import HELLO, PROMPT_TOKENS, Script, failed, finished, tokens
from tests.api.serving import ASK, CHAT, COMPLETIONS, serving
from tripower.runtime.kernel import (
    ActorGone,
    DeadlineExceeded,
    DeviceFailed,
    InvalidRequest,
    ModelRefused,
    NotFound,
    Overloaded,
    TripowerError,
)

STREAM = ASK | {"stream": True}
COMPLETE = {"model": "fake", "prompt": "Hi"}


async def test_a_whole_chat_answer_has_the_shape_that_clients_parse() -> None:
    async with serving(HELLO) as server:
        answer = await server.ask(CHAT, ASK)
    body = answer.json
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "fake")
    assert isinstance(body["created"], int)
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": 3,
        "total_tokens": PROMPT_TOKENS + 3,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert body["timings"]["prompt_ms"] == 250
    assert body["timings"]["predicted_per_second"] == 1.5
    assert body["system_fingerprint"].startswith("tripower-")


async def test_a_whole_completion_has_the_shape_that_clients_parse() -> None:
    async with serving(HELLO) as server:
        body = (await server.ask(COMPLETIONS, COMPLETE)).json
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": "Hello there", "logprobs": None, "finish_reason": "stop"}]


async def test_a_chat_stream_has_the_role_first_an_event_for_each_token_and_one_end() -> None:
    async with serving(HELLO) as server:
        answer = await server.ask(CHAT, STREAM)
    *chunks, done = answer.events
    assert done == "data: [DONE]"
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo"},
        {"content": " there"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, None, "stop"]
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert "timings" in chunks[-1]


async def test_a_completion_stream_has_an_event_for_each_token_and_one_end() -> None:
    async with serving(HELLO) as server:
        *chunks, done = (await server.ask(COMPLETIONS, COMPLETE | {"stream": True})).events
    assert done == "data: [DONE]"
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Hel", "lo", " there", ""]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["object"] == "text_completion" for chunk in chunks)


async def test_a_stream_says_that_it_is_one_and_must_not_be_buffered() -> None:
    async with serving(HELLO) as server:
        headers = (await server.ask(CHAT, STREAM)).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"


async def test_tokens_of_one_burst_are_one_write() -> None:
    script = Script([tokens("a", "b", "c"), 0, tokens("d") + finished()])
    async with serving(script) as server, server.client() as client:
        await client.send_request(CHAT, STREAM)
        await client.read_head()
        first, second = await client.read_chunk(), await client.read_chunk()
        assert await client.read_chunk() == b""
    assert first.count(b"data: ") == 4
    assert second.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
async def test_usage_is_a_chunk_of_its_own_and_only_when_asked_for(options: Any) -> None:  # BB-016
    async with serving(HELLO) as server:
        *chunks, _ = (await server.ask(CHAT, STREAM | {"stream_options": options})).events
    if options and options["include_usage"]:
        *chunks, last = chunks
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] == PROMPT_TOKENS + 3
        assert "timings" in last
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert not any("usage" in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_usage_so_far_is_in_every_chunk_when_asked_for() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serving(HELLO) as server:
        *chunks, _ = (await server.ask(CHAT, STREAM | {"stream_options": options})).events
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 3, 3, 3]


async def test_text_that_was_held_back_comes_before_the_end() -> None:
    script = Script([tokens("AB", ""), finished("length", held="CD", generated=3)])
    async with serving(script) as server:
        stream = await server.ask(CHAT, STREAM)
        whole = await server.ask(CHAT, ASK)
    assert [event["choices"][0]["delta"].get("content") for event in stream.events[:-1]] == ["", "AB", "", "CD", None]
    assert whole.json["choices"][0]["message"]["content"] == stream.text == "ABCD"
    assert whole.json["choices"][0]["finish_reason"] == "length"


async def test_a_limit_of_0_gives_an_empty_answer() -> None:
    async with serving(Script([finished("length")])) as server:
        whole = (await server.ask(CHAT, ASK | {"max_tokens": 0})).json
        stream = await server.ask(CHAT, STREAM | {"max_tokens": 0})
        assert [request.max_tokens for request in server.runtime.requests] == [0, 0]
    assert whole["choices"][0]["message"]["content"] == ""
    assert stream.text == ""
    assert stream.events[-2]["choices"][0]["finish_reason"] == "length"


async def test_every_character_of_a_text_survives() -> None:
    text = 'a"b\\c\n\t\x00 \x7f é 😀 \u2028'
    async with serving(Script([tokens(text), finished()])) as server:
        assert (await server.ask(CHAT, ASK)).json["choices"][0]["message"]["content"] == text
        assert (await server.ask(CHAT, STREAM)).text == text


async def test_a_request_without_a_model_means_the_only_one() -> None:
    nameless = {"messages": ASK["messages"]}
    async with serving(HELLO) as server:
        assert (await server.ask(CHAT, nameless)).json["model"] == "fake"
    async with serving(HELLO, models=("a", "b")) as server:
        answer = await server.ask(CHAT, nameless)
    assert (answer.status, answer.error["param"]) == (400, "model")


REFUSALS = [
    (InvalidRequest("too long", code="context_length_exceeded", param="messages"), 400, "invalid_request_error"),
    (NotFound("no such model", param="model"), 404, "not_found_error"),
    (Overloaded("full", retry_after=2.25), 503, "overloaded_error"),
    (Overloaded("loading", code="model_loading"), 503, "overloaded_error"),
    (ActorGone("gone"), 503, "overloaded_error"),
    (DeadlineExceeded("late"), 504, "timeout_error"),
    (ModelRefused("broken file"), 503, "server_error"),
    (DeviceFailed("broken"), 500, "server_error"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("refusal", "status", "kind"), REFUSALS, ids=lambda value: getattr(value, "code", value))
async def test_a_refusal_keeps_its_status_in_whole_answers_and_in_streams(
    refusal: TripowerError, status: int, kind: str, stream: bool
) -> None:  # BB-098
    async with serving(Script(refusal=refusal)) as server:
        answer = await server.ask(CHAT, ASK | {"stream": stream})
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}}


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (Overloaded("full", retry_after=2.25), {"retry-after": "3", "retry-after-ms": "2250"}),
        (Overloaded("full", retry_after=900.0), {"retry-after": "120", "retry-after-ms": "120000"}),
        (Overloaded("full", retry_after=0.0), {"retry-after": "1", "retry-after-ms": "1"}),
        (Overloaded("full"), {"retry-after": "1", "retry-after-ms": "1000"}),
        (DeadlineExceeded("late"), {"x-should-retry": "false"}),
        (ModelRefused("broken"), {"x-should-retry": "false"}),
        (NotFound("none"), {}),
    ],
)
async def test_an_error_says_whether_and_when_to_come_back(refusal: TripowerError, expected: dict[str, str]) -> None:  # BB-100
    async with serving(Script(refusal=refusal)) as server:
        headers = (await server.ask(CHAT, ASK)).headers
    steering = {name: value for name, value in headers.items() if name in ("retry-after", "retry-after-ms", "x-should-retry")}
    assert steering == expected


@pytest.mark.parametrize("step", [failed(), DeviceFailed("the device failed")], ids=["event", "exception"])
async def test_a_stream_that_fails_ends_with_an_error_the_end_mark_and_nothing_else(step: Any) -> None:  # BB-097
    async with serving(Script([tokens("a"), step])) as server:
        answer = await server.ask(CHAT, STREAM)
        await server.wait_closed()
    assert answer.status == 200
    assert answer.text == "a"
    error, done = answer.events[-2:]
    assert done == "data: [DONE]"
    assert error["error"] == {"message": "the device failed", "type": "server_error", "param": None, "code": "device_failed"}


async def test_tokens_of_the_burst_that_failed_are_not_lost() -> None:
    async with serving(Script([tokens("a", "b") + failed()])) as server:
        assert (await server.ask(CHAT, STREAM)).text == "ab"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_is_an_ordinary_error(stream: bool) -> None:
    async with serving(Script([failed("device_wedged", 500)])) as server:
        answer = await server.ask(CHAT, ASK | {"stream": stream})
    assert (answer.status, answer.error["code"]) == (500, "device_wedged")


async def test_a_whole_answer_that_fails_half_way_is_an_error() -> None:
    async with serving(Script([tokens("a"), failed()])) as server:
        answer = await server.ask(CHAT, ASK)
    assert (answer.status, answer.error["code"]) == (500, "device_failed")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_fault_that_nobody_expected_says_nothing_of_the_inside(
    stream: bool, begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    steps = [tokens("a")] if begun else []
    async with serving(Script([*steps, ZeroDivisionError("secret")])) as server:
        answer = await server.ask(CHAT, ASK | {"stream": stream}, headers={"x-request-id": "my-id"})
        assert (await server.ask(CHAT, ASK)).status == 500  # the server goes on
    error = answer.events[-2]["error"] if stream and begun else answer.error
    assert answer.status == (200 if stream and begun else 500)
    assert error["code"] == "internal_error"
    assert "my-id" in error["message"]
    assert b"secret" not in answer.body
    assert b"ZeroDivision" not in answer.body
    assert "my-id" in caplog.text  # the log knows the rest


async def test_the_generation_is_left_after_every_end() -> None:
    scripts = (HELLO, Script([failed()]), Script([ZeroDivisionError()]))
    async with serving(*scripts) as server:
        for _ in scripts:
            await server.ask(CHAT, STREAM)
        assert server.runtime.running == []
        assert len(server.runtime.ended) == 3
        assert server.statistics().active_requests == 0
