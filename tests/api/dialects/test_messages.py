"""`/v1/messages` over a real socket: whole answers, the order of the events, errors in Anthropic's shape, counting."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings

from tests.api.dialects.marked import MarkedReader, delta_sequences, named_events, types
from tests.api.fake_runtime import HELLO, PROMPT_TOKENS, Script, failed, finished, tokens
from tests.api.serving import Answer, serving, serving_toy, until
from tripower.actors.dialogue import GenerationFinished, Timings, Usage
from tripower.api.http.dialects.following import Following
from tripower.api.http.dialects.parts import PartEvent
from tripower.api.http.messages.requests import MESSAGES as DECODER
from tripower.api.http.messages.writer import MessageWriter
from tripower.runtime.engine.answer import AnswerDelta, ContentDelta, PlainReader, ReasoningDelta, ToolCallDelta
from tripower.runtime.kernel import DeviceFailed, InvalidRequest, NotFound, Overloaded, TripowerError

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
TURN = {"messages": [{"role": "user", "content": "Hi"}]}
ASK = {"model": "fake", "max_tokens": 100} | TURN
STREAM = ASK | {"stream": True}
AGENT = Script([tokens("?hm", "It ", "is", "!weather", '={"city"', '=:"Oslo"}') + finished(generated=6)], reader=MarkedReader)


async def test_a_whole_message_has_the_shape_that_clients_parse() -> None:
    async with serving(HELLO) as server:
        answer = await server.ask(MESSAGES, ASK, headers={"anthropic-version": "2023-06-01", "anthropic-beta": "x-2026"})
    body = answer.json
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert body.pop("id").startswith("msg_")
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [{"type": "text", "text": "Hello there"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": PROMPT_TOKENS, "output_tokens": 3,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        },
    }  # fmt: skip


def ended(reason: str, stopped_by: str | int | None = None) -> Script:
    return Script([tokens("a"), [GenerationFinished(reason, "", Usage(3, 1), Timings(0, 0, 0), stopped_by)]])


@pytest.mark.parametrize(
    ("script", "reason", "sequence"),
    [
        (ended("stop"), "end_turn", None),
        (ended("stop", 7), "end_turn", None),
        (ended("stop", "END"), "stop_sequence", "END"),
        (ended("length"), "max_tokens", None),
        (AGENT, "tool_use", None),
    ],
)
async def test_the_reason_of_the_end_is_the_same_whole_and_streamed(script: Script, reason: str, sequence: str | None) -> None:
    async with serving(script) as server:
        whole = (await server.ask(MESSAGES, ASK | {"stop_sequences": ["END"]})).json
        events = named_events((await server.ask(MESSAGES, STREAM | {"stop_sequences": ["END"]})).body)
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    assert events[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}
    assert server.runtime.requests[0].stop == ("END",)


async def test_thoughts_texts_and_calls_are_blocks() -> None:
    async with serving(AGENT) as server:
        body = (await server.ask(MESSAGES, ASK)).json
    assert body["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "It is"},
        {"type": "tool_use", "id": "call_0", "name": "weather", "input": {"city": "Oslo"}},
    ]


async def test_arguments_that_were_cut_off_are_not_shown_as_complete() -> None:  # BB-017
    async with serving(Script([tokens("!weather", '={"ci') + finished("length", generated=2)], reader=MarkedReader)) as server:
        body = (await server.ask(MESSAGES, ASK)).json
    assert body["content"][0]["input"] == {"unparsed_arguments": '{"ci'}
    assert body["stop_reason"] == "max_tokens"


async def test_a_stream_has_the_official_events_in_the_official_order() -> None:
    async with serving(AGENT) as server:
        answer = await server.ask(MESSAGES, STREAM)
    events = named_events(answer.body)
    assert types(answer) == [
        "message_start",
        "content_block_start", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[0]["message"]["usage"]["input_tokens"] == PROMPT_TOKENS
    assert events[0]["message"]["content"] == []
    assert events[2]["delta"] == {"type": "thinking_delta", "thinking": "hm"}
    assert events[5]["delta"] == {"type": "text_delta", "text": "It "}
    assert events[8]["content_block"] == {"type": "tool_use", "id": "call_0", "name": "weather", "input": {}}
    assert events[9]["delta"] == {"type": "input_json_delta", "partial_json": '{"city"'}
    assert events[-2]["usage"] == {
        "input_tokens": PROMPT_TOKENS, "output_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0
    }  # fmt: skip


async def test_a_failure_in_the_middle_is_the_last_event() -> None:  # BB-097
    async with serving(Script([tokens("a"), failed()])) as server:
        answer = await server.ask(MESSAGES, STREAM)
    *before, last = named_events(answer.body)
    assert before[2]["delta"]["text"] == "a"
    assert (last["error"]["type"], last["error"]["message"]) == ("api_error", "the device failed")
    assert last["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("no"), 400, "invalid_request_error"),
        (NotFound("no"), 404, "not_found_error"),
        (Overloaded("full", retry_after=3.0), 503, "overloaded_error"),
        (TripowerError("no", code="unauthorized", status=401), 401, "authentication_error"),
        (TripowerError("no", code="share_exceeded", status=429), 429, "rate_limit_error"),
        (DeviceFailed("broken"), 500, "api_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_have_their_status_and_anthropics_words(
    error: TripowerError, status: int, kind: str, stream: bool
) -> None:
    async with serving(Script(refusal=error)) as server:
        answer = await server.ask(MESSAGES, ASK | {"stream": stream}, headers={"x-request-id": "mine"})
    assert answer.status == status
    fault = {"type": kind, "message": error.message, "code": error.code, "param": error.param}
    assert answer.json == {"type": "error", "error": fault, "request_id": "mine"}
    assert answer.headers["request-id"] == "mine"


@pytest.mark.parametrize(
    ("body", "status"), [(b"{", 400), (TURN, 400), (None, 405), (ASK | {"model": "fake", "messages": []}, 400)]
)
async def test_faults_that_other_layers_find_have_the_same_shape(body: Any, status: int) -> None:
    async with serving(HELLO) as server:
        answer = await server.ask(MESSAGES, body)
    assert answer.status == status
    assert set(answer.json) == {"type", "error", "request_id"}


async def test_a_quiet_stream_opens_and_pings(autojump_clock: Any) -> None:
    script = Script([25.0, tokens("a") + finished(generated=1)])
    async with serving(script, patience=100.0, keep_alive_comment_s=10.0) as server:
        answer = await server.ask(MESSAGES, STREAM)
    assert types(answer)[:4] == ["message_start", "ping", "ping", "content_block_start"]


async def test_a_deadline_ends_a_stream_with_an_error(autojump_clock: Any) -> None:
    async with serving(Script([tokens("a"), math.inf]), patience=100.0) as server:
        answer = await server.ask(MESSAGES, STREAM, headers={"x-tripower-deadline-ms": "4000"})
    assert named_events(answer.body)[-1]["error"]["type"] == "timeout_error"


async def test_a_client_that_leaves_frees_its_seat() -> None:  # BB-001
    async with serving(Script([tokens("a"), math.inf])) as server:
        client = await server.open_client()
        await client.send_request(MESSAGES, STREAM)
        await client.read_until(b"text_delta")
        await client.stream.aclose()
        await until(lambda: not server.runtime.running)


async def test_more_tokens_than_fit_become_those_that_do() -> None:
    async with serving_toy() as server:
        context = (await server.actors.ready("toy")).info.context_max
        prompt = {"model": "toy", "messages": [{"role": "user", "content": "x" * (context - 40)}], "top_k": 1}
        body = (await server.ask(MESSAGES, prompt | {"max_tokens": 10 * context})).json
        too_long = await server.ask(MESSAGES, ASK | {"model": "toy", "messages": [{"role": "user", "content": "x" * context}]})
    assert body["stop_reason"] in ("model_context_window_exceeded", "end_turn")
    assert body["usage"]["input_tokens"] + body["usage"]["output_tokens"] <= context + 1
    assert (too_long.status, too_long.json["error"]["type"]) == (400, "invalid_request_error")


async def count(server: Any, **fields: Any) -> Answer:
    answer: Answer = await server.ask(COUNT, {"model": "toy"} | TURN | fields)
    return answer


async def test_tokens_are_counted_as_the_message_would_begin() -> None:
    async with serving_toy() as server:
        counted = await count(server, system="Be brief.")
        message = await server.ask(MESSAGES, ASK | {"model": "toy", "system": "Be brief.", "max_tokens": 1})
        ignored = await count(server, betas=["x"])
        wrong = await count(server, messages=[])
    assert counted.json == {"input_tokens": message.json["usage"]["input_tokens"]}
    assert ignored.headers["x-tripower-ignored"] == "betas"
    assert (wrong.status, wrong.json["type"]) == (400, "error")


@settings(deadline=None, max_examples=40)
@given(delta_sequences())
def test_any_deltas_give_a_well_formed_stream(deltas: list[AnswerDelta]) -> None:
    first, *blocks, delta, last = written(deltas)
    assert (first["type"], delta["type"], last["type"]) == ("message_start", "message_delta", "message_stop")
    joined = {"text": "", "thinking": "", "partial_json": ""}
    index = -1
    for event in blocks:
        index += event["type"] == "content_block_start"
        assert event["index"] == index
        for field in joined.keys() & event.get("delta", {}).keys():
            joined[field] += event["delta"][field]
    edges = [event["type"] for event in blocks if event["type"] != "content_block_delta"]
    assert edges == ["content_block_start", "content_block_stop"] * (index + 1)
    assert joined == {
        "text": "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta)),
        "thinking": "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)),
        "partial_json": "".join(delta.arguments for delta in deltas if isinstance(delta, ToolCallDelta)),
    }


def written(deltas: list[AnswerDelta]) -> list[dict[str, Any]]:
    """The stream that a writer makes of these deltas."""
    asked, _ = DECODER.decode(json.dumps(ASK).encode(), strict=False)
    exchange: Any = SimpleNamespace(request_id=b"r")
    writer = MessageWriter(asked, asked.generation("fake"), exchange)
    generation: Any = SimpleNamespace(prompt_tokens=1, new_reader=PlainReader)
    following = Following(generation, None)  # type: ignore[arg-type]
    stream = writer.opening(following)
    events: list[PartEvent] = [event for delta in deltas for event in following.parts.add(delta)]
    for event in [*events, *following.parts.end()]:
        stream += writer.event(event)
    following.finished = GenerationFinished("stop", "", Usage(1, len(deltas)), Timings(0, 0, 0))
    return named_events(stream + writer.end(following))
