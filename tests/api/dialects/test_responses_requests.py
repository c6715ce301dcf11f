"""What a Responses request becomes for the runtime, and what it is refused for."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.fake_runtime import HELLO
from tests.api.serving import serving
from tests.api.strategies import json_values
from tripower.actors.dialogue import GenerationRequest
from tripower.api.http.responses.answer import ResponseBuilder
from tripower.api.http.responses.requests import RESPONSE
from tripower.runtime.engine import ChatMessage, ToolCall, ToolChoice, ToolDefinition
from tripower.runtime.engine.constraint import JsonObjectFormat, JsonSchemaFormat
from tripower.runtime.kernel import InvalidRequest

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def translated(*, strict: bool = True, **fields: Any) -> GenerationRequest:
    asked, _ = RESPONSE.decode(json.dumps({"input": "Hi"} | fields).encode(), strict=strict)
    return asked.generation("m")


def said(*items: Any, **fields: Any) -> tuple[ChatMessage, ...] | None:
    return translated(input=list(items), **fields).messages


def test_text_and_instructions_are_a_conversation() -> None:
    assert translated(instructions="Be brief.").messages == (ChatMessage("system", "Be brief."), ChatMessage("user", "Hi"))


def test_items_of_one_turn_are_one_message() -> None:
    assert said(
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look", "annotations": []}]},
        CALL,
        CALL | {"call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}], "encrypted_content": "zz"},
        {"role": "assistant", "content": "Sun."},
        {"role": "assistant", "content": "And rain."},
    ) == (
        ChatMessage("developer", "d"),
        ChatMessage("user", "ab"),
        ChatMessage("assistant", "I look", None, (ToolCall("c1", "look", "{}"), ToolCall("c2", "look", "{}")), None, "hm"),
        ChatMessage("tool", "sun", "look", (), "c1"),
        ChatMessage("tool", "rain", "look", (), "c2"),
        ChatMessage("assistant", "Sun.", reasoning="so"),
        ChatMessage("assistant", "And rain."),
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("required", ToolChoice(mode="required")),
        ({"type": "function", "name": "look"}, ToolChoice(mode="required", name="look")),
    ],
)
def test_tools_and_the_choice_among_them_reach_the_runtime(choice: Any, expected: ToolChoice) -> None:
    request = translated(tools=[LOOK], tool_choice=choice)
    assert request.chat.tools == (ToolDefinition("look", None, {"type": "object"}),)
    assert request.tool_choice == expected


def test_a_template_hears_nothing_of_tools_that_must_not_be_called() -> None:
    request = translated(tools=[LOOK], tool_choice="none", parallel_tool_calls=False)
    assert request.chat.tools == ()
    assert request.tool_choice == ToolChoice(mode="none", parallel=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ({"format": {"type": "text"}}, None),
        ({"format": {"type": "json_object"}}, JsonObjectFormat()),
        ({"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}, JsonSchemaFormat(SCHEMA)),
    ],
)
def test_a_format_reaches_the_runtime(text: Any, expected: Any) -> None:
    assert translated(text=text).format == expected


def test_limits_and_sampling_reach_the_runtime() -> None:
    request = translated(max_output_tokens=5, temperature=0.5, top_p=0.9, seed=-1, stop=["x"], top_k=-1)
    assert (request.max_tokens, request.stop) == (5, ("x",))
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.top_k) == (0.5, 0.9, 2**64 - 1, 0)


def test_what_codex_sends_besides_is_taken() -> None:
    translated(
        store=False, include=["reasoning.encrypted_content"], prompt_cache_key="k", parallel_tool_calls=True, stream=True,
        reasoning={"effort": "medium", "summary": "auto"}, service_tier="auto", client_metadata={"a": "b"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [LOOK, LOOK]}, "tools[1].name"),
        ({"tools": [LOOK | {"name": "<|im_end|>"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [LOOK], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
        ({"tools": [LOOK], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"input": []}, "input"),
        ({"input": [{"role": "robot", "content": ""}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [CALL | {"arguments": "{"}]}, "input[0].arguments"),
        ({"input": [CALL | {"name": "a b"}]}, "input[0].name"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"seed": 2**64}, "seed"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"zz": 1}, "zz"),
        ({"text": {"zz": 1}}, "text.zz"),
        ({"input": [{"role": "user", "content": "x", "zz": 1}]}, "input.zz"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:  # BB-034
    with pytest.raises(InvalidRequest) as refused:
        translated(strict="zz" in json.dumps(fields), **fields)
    assert refused.value.param == param


async def test_what_has_no_effect_is_told() -> None:
    body = {"model": "fake", "input": "Hi", "store": True, "truncation": "auto", "zz": 1}
    async with serving(HELLO) as server:
        answer = await server.ask("/v1/responses", body)
        strict = await server.ask("/v1/responses", body, headers={"x-tripower-strict": "1"})
    assert (answer.status, answer.headers["x-tripower-ignored"]) == (200, "zz,store,truncation")
    assert (strict.status, strict.error["param"]) == (400, "zz")


@pytest.mark.parametrize(
    ("template", "effort", "arguments", "told"),
    [
        ("{{ enable_thinking }}", "high", {"enable_thinking": True}, False),
        ("{{ enable_thinking }}", "none", {"enable_thinking": False}, False),
        ("{{ reasoning_effort }}", "low", {"reasoning_effort": "low"}, False),
        ("", "none", {}, False),
        ("", "low", {}, True),
    ],
)
async def test_effort_goes_where_the_template_knows_it(template: str, effort: str, arguments: Any, told: bool) -> None:
    body = {"model": "fake", "input": "Hi", "reasoning": {"effort": effort}}
    async with serving(HELLO) as server:
        server.runtime.text = SimpleNamespace(chat_template=template)
        answer = await server.ask("/v1/responses", body)
        strict = await server.ask("/v1/responses", body, headers={"x-tripower-strict": "1"})
    assert server.runtime.requests[0].chat.arguments == arguments
    assert ("x-tripower-ignored" in answer.headers) == told
    assert strict.status == (400 if told else 200)


names = st.sampled_from(
    ["input", "instructions", "tools", "tool_choice", "text", "reasoning", "include", "metadata", "stream", "zz"]
)


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(names, json_values, max_size=5), st.lists(st.dictionaries(names, json_values), max_size=2))
def test_no_json_whatever_is_more_than_refused(fields: dict[str, Any], items: list[Any]) -> None:
    for body in (fields, fields | {"input": items}):
        try:
            asked, _ = RESPONSE.decode(json.dumps(body).encode(), strict=False)
            request = asked.generation("m")
            msgspec.json.encode(ResponseBuilder(asked, request).blank)
        except InvalidRequest:
            continue
