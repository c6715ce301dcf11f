"""`/v1/responses` over a real socket: whole answers, the order of the events, failures in the middle."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from tests.api.dialects.marked import MarkedReader, delta_sequences, named_events, types
from tests.api.fake_runtime import HELLO, PROMPT_TOKENS, Script, failed, finished, tokens
from tests.api.serving import serving, until
from tripower.actors.dialogue import GenerationFinished, Timings, Usage
from tripower.api.http.dialects.following import Following
from tripower.api.http.dialects.parts import PartEvent
from tripower.api.http.responses.requests import RESPONSE
from tripower.api.http.responses.writer import ResponseWriter
from tripower.runtime.engine.answer import AnswerDelta, ContentDelta, PlainReader, ReasoningDelta, ToolCallDelta
from tripower.runtime.kernel import Overloaded

RESPONSES = "/v1/responses"
ASK = {"model": "fake", "input": "Hi"}
STREAM = ASK | {"stream": True}
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
TOOLS = {"tools": [WEATHER], "tool_choice": "auto"}
AGENT = Script([tokens("?hm", "It ", "is", "!weather", '={"city"', '=:"Oslo"}') + finished(generated=6)], reader=MarkedReader)


async def test_a_whole_response_has_the_shape_that_clients_parse() -> None:
    async with serving(HELLO) as server:
        answer = await server.ask(RESPONSES, ASK | {"metadata": {"a": "b"}, "temperature": 0.5})
    body = answer.json
    assert answer.status == 200
    assert body["id"].startswith("resp_") and body["object"] == "response"
    assert (body["status"], body["incomplete_details"], body["error"]) == ("completed", None, None)
    (message,) = body["output"]
    assert message["id"].startswith("msg_")
    assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
    assert message["content"] == [{"type": "output_text", "text": "Hello there", "annotations": [], "logprobs": []}]
    assert body["usage"] == {
        "input_tokens": PROMPT_TOKENS,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": PROMPT_TOKENS + 3,
    }
    assert (body["metadata"], body["temperature"], body["top_p"], body["store"]) == ({"a": "b"}, 0.5, None, False)


async def test_an_answer_that_is_cut_off_says_so_and_so_does_its_last_item() -> None:
    async with serving(Script([tokens("a") + finished("length", generated=1)])) as server:
        whole = (await server.ask(RESPONSES, ASK)).json
        events = named_events((await server.ask(RESPONSES, STREAM)).body)
    for body in (whole, events[-1]["response"]):
        assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert body["output"][-1]["status"] == "incomplete"
    assert events[-1]["type"] == "response.incomplete"
    assert events[-2]["item"]["status"] == "incomplete"


async def test_a_call_that_was_cut_off_is_not_shown_as_complete() -> None:  # BB-017
    script = Script([tokens("!weather", "={}", "!weather", '={"ci') + finished("length", generated=4)], reader=MarkedReader)
    async with serving(script) as server:
        body = (await server.ask(RESPONSES, ASK | TOOLS)).json
    assert body["status"] == "incomplete"
    assert [(item["arguments"], item["status"]) for item in body["output"]] == [("{}", "completed"), ('{"ci', "incomplete")]


async def test_thoughts_texts_and_calls_are_items() -> None:
    async with serving(AGENT) as server:
        body = (await server.ask(RESPONSES, ASK | TOOLS | {"tool_choice": "none"})).json
    thought, message, call = body["output"]
    assert (thought["type"], thought["summary"]) == ("reasoning", [])
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "It is"
    assert (call["type"], call["call_id"], call["name"]) == ("function_call", "call_0", "weather")
    assert call["arguments"] == '{"city":"Oslo"}'
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] == 1
    assert body["tools"] == [WEATHER | {"description": None, "strict": False}]


async def test_a_stream_has_the_official_events_in_the_official_order() -> None:
    async with serving(AGENT) as server:
        answer = await server.ask(RESPONSES, STREAM | TOOLS)
    events = named_events(answer.body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]  # fmt: skip
    assert b"[DONE]" not in answer.body
    assert events[0]["response"]["status"] == "in_progress"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done


async def test_a_failure_in_the_middle_is_the_last_event_and_keeps_what_came_before() -> None:  # BB-097
    async with serving(Script([tokens("a", "b"), failed()])) as server:
        answer = await server.ask(RESPONSES, STREAM)
    *before, last = named_events(answer.body)
    assert answer.status == 200
    assert "".join(event["delta"] for event in before if event["type"] == "response.output_text.delta") == "ab"
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": "device_failed", "message": "the device failed"}
    assert last["response"]["output"][0]["content"][0]["text"] == "ab"


async def test_a_fault_that_nobody_expected_ends_a_stream_without_its_words() -> None:
    async with serving(Script([tokens("a"), ValueError("secret")])) as server:
        answer = await server.ask(RESPONSES, STREAM)
    assert named_events(answer.body)[-1]["response"]["error"]["code"] == "internal_error"
    assert b"secret" not in answer.body


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_before_the_first_token_has_its_real_status(stream: bool) -> None:  # BB-098
    async with serving(Script(refusal=Overloaded("full", retry_after=3.0))) as server:
        answer = await server.ask(RESPONSES, ASK | {"stream": stream})
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "queue_full", "3")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_ends_it(stream: bool, autojump_clock: Any) -> None:
    async with serving(Script([tokens("a"), math.inf]), patience=100.0) as server:
        answer = await server.ask(RESPONSES, ASK | {"stream": stream}, headers={"x-tripower-deadline-ms": "4000"})
    if stream:
        assert named_events(answer.body)[-1]["response"]["error"]["code"] == "deadline_exceeded"
    else:
        assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")


async def test_a_quiet_stream_opens_and_stays_alive(autojump_clock: Any) -> None:
    script = Script([25.0, tokens("a") + finished(generated=1)])
    async with serving(script, patience=100.0, keep_alive_comment_s=10.0) as server:
        answer = await server.ask(RESPONSES, STREAM)
    assert answer.body.count(b": keep-alive\n\n") == 2
    assert types(answer)[:2] == ["response.created", "response.in_progress"]
    assert types(answer).count("response.created") == 1


async def test_a_client_that_leaves_frees_its_seat() -> None:  # BB-001
    async with serving(Script([tokens("a"), math.inf])) as server:
        client = await server.open_client()
        await client.send_request(RESPONSES, STREAM)
        await client.read_until(b"output_text.delta")
        await client.stream.aclose()
        await until(lambda: not server.runtime.running)


@settings(deadline=None, max_examples=40)
@given(delta_sequences())
def test_any_deltas_give_a_well_formed_stream(deltas: list[AnswerDelta]) -> None:
    events = written(deltas)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added = [event for event in events if event["type"] == "response.output_item.added"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in added] == [event["output_index"] for event in done] == list(range(len(added)))
    assert [event["item"]["id"] for event in added] == [event["item"]["id"] for event in done]
    assert events[-1]["response"]["output"] == [event["item"] for event in done]
    joined = {"response.output_text": "", "response.reasoning_text": "", "response.function_call_arguments": ""}
    for event in events:
        name, _, change = event["type"].rpartition(".")
        if name in joined and change == "delta":
            joined[name] += event["delta"]
    assert joined == {
        "response.output_text": "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta)),
        "response.reasoning_text": "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)),
        "response.function_call_arguments": "".join(delta.arguments for delta in deltas if isinstance(delta, ToolCallDelta)),
    }


def written(deltas: list[AnswerDelta]) -> list[dict[str, Any]]:
    """The stream that a writer makes of these deltas."""
    asked, _ = RESPONSE.decode(json.dumps(ASK).encode(), strict=False)
    writer = ResponseWriter(asked, asked.generation("fake"), None)  # type: ignore[arg-type]
    generation: Any = SimpleNamespace(prompt_tokens=1, new_reader=PlainReader)
    following = Following(generation, None)  # type: ignore[arg-type]
    stream = writer.opening(following)
    events: list[PartEvent] = [event for delta in deltas for event in following.parts.add(delta)]
    for event in [*events, *following.parts.end()]:
        stream += writer.event(event)
    following.finished = GenerationFinished("stop", "", Usage(1, len(deltas)), Timings(0, 0, 0))
    assert msgspec.json.decode(writer.whole(following))["status"] == "completed"
    return named_events(stream + writer.end(following))
