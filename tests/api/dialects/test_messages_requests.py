"""What a Messages request becomes for the runtime, and what it is refused for."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.fake_runtime import HELLO
from tests.api.serving import serving
from tests.api.strategies import json_values
from tripower.actors.dialogue import GenerationRequest
from tripower.api.http.messages.requests import MESSAGES
from tripower.runtime.engine import ChatMessage, ToolCall, ToolChoice, ToolDefinition
from tripower.runtime.engine.constraint import JsonSchemaFormat
from tripower.runtime.kernel import InvalidRequest

LOOK = {"name": "look", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}}
CACHED = {"cache_control": {"type": "ephemeral"}}
SCHEMA = {"type": "object"}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def translated(*messages: Any, strict: bool = True, **fields: Any) -> GenerationRequest:
    body = {"max_tokens": 5, "messages": list(messages) or [user(text("Hi"))]} | fields
    asked, _ = MESSAGES.decode(json.dumps(body).encode(), strict=strict)
    return asked.generation("m")


def test_blocks_become_messages_in_their_order() -> None:
    request = translated(
        {"role": "user", "content": "Hi"},
        assistant({"type": "thinking", "thinking": "hm", "signature": "s"}, text("I look"), USE, USE | {"id": "t2"}),
        user(
            {"type": "tool_result", "tool_use_id": "t1", "content": "sun"},
            {"type": "tool_result", "tool_use_id": "t2", "content": [text("r"), text("ain")], "is_error": True} | CACHED,
            text("a") | CACHED,
            text("b"),
        ),
        assistant({"type": "redacted_thinking", "data": "zz"}, text("Sun.")),
        user(text("Thanks")),
        system=[text("x") | CACHED, text("y")],
    )
    arguments = '{"a":1}'
    assert request.messages == (
        ChatMessage("system", "x\ny"),
        ChatMessage("user", "Hi"),
        ChatMessage(
            "assistant", "I look", None, (ToolCall("t1", "look", arguments), ToolCall("t2", "look", arguments)), None, "hm"
        ),
        ChatMessage("tool", "sun", "look", (), "t1"),
        ChatMessage("tool", "r\nain", "look", (), "t2"),
        ChatMessage("user", "a\nb"),
        ChatMessage("assistant", "Sun."),
        ChatMessage("user", "Thanks"),
    )
    assert not request.chat.continue_final_message


def test_a_last_word_of_the_assistant_is_continued() -> None:
    chat = translated(user(text("Hi")), assistant(text("It is"))).chat
    assert chat.continue_final_message and not chat.add_generation_prompt


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "any"}, ToolChoice(mode="required")),
        ({"type": "tool", "name": "look"}, ToolChoice(mode="required", name="look")),
    ],
)
def test_tools_and_the_choice_among_them_reach_the_runtime(choice: Any, expected: ToolChoice) -> None:
    request = translated(tools=[LOOK | CACHED], tool_choice=choice)
    assert request.chat.tools == (ToolDefinition("look", None, SCHEMA),)
    assert request.tool_choice == expected


def test_a_template_hears_nothing_of_tools_that_must_not_be_called() -> None:
    request = translated(tools=[LOOK], tool_choice={"type": "none"})
    assert (request.chat.tools, request.tool_choice.mode) == ((), "none")


def test_limits_sampling_and_formats_reach_the_runtime() -> None:
    asked: Any = {"type": "json_schema", "schema": SCHEMA}
    request = translated(max_tokens=7, temperature=0.5, top_p=0.9, top_k=3, stop_sequences=["x"], output_format=asked)
    assert (request.max_tokens, request.stop, request.format) == (7, ("x",), JsonSchemaFormat(SCHEMA))
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.5, 0.9, 3)
    assert translated(output_config={"format": asked}).format == JsonSchemaFormat(SCHEMA)


async def test_what_claude_code_sends_besides_is_taken() -> None:
    body = {
        "model": "fake", "max_tokens": 32000, "stream": True, "metadata": {"user_id": "u"},
        "system": [text("You are an agent") | CACHED], "messages": [user(text("Hi") | CACHED)], "tools": [LOOK],
        "thinking": {"type": "enabled", "budget_tokens": 31999}, "context_management": {"edits": []}, "betas": ["x"],
    }  # fmt: skip
    async with serving(HELLO) as server:
        answer = await server.ask("/v1/messages?beta=true", body, headers={"anthropic-beta": "claude-code", "x-api-key": "k"})
    assert answer.status == 200
    assert answer.headers["x-tripower-ignored"] == "context_management,betas,thinking.budget_tokens,thinking"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": [user({"type": "image", "source": {}})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "document", "source": {}})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text"),
        ({"messages": [user({"type": "tool_result", "content": "x"})]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [assistant({"type": "server_tool_use"})]}, "messages[0].content[0].type"),
        ({"messages": [assistant(USE | {"name": "a b"})]}, "messages[0].content[0].name"),
        ({"messages": [user(text("x")), assistant(USE)]}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [user()]}, "messages"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "look"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice.name"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"output_format": {"type": "regex"}}, "output_format.type"),
        ({"zz": 1}, "zz"),
        ({"messages": [user(text("x") | {"zz": 1})]}, "messages.content.zz"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        translated(strict="zz" in json.dumps(fields), **fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("template", "fields", "arguments", "told"),
    [
        ("{{ enable_thinking }}", {"thinking": {"type": "adaptive"}}, {"enable_thinking": True}, False),
        ("{{ enable_thinking }}", {"thinking": {"type": "disabled"}}, {"enable_thinking": False}, False),
        ("{{ reasoning_effort }}", {"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}, False),
        ("{{ reasoning_effort }}", {"thinking": {"type": "adaptive"}}, {}, False),
        ("{{ reasoning_effort }}", {"thinking": {"type": "disabled"}}, {}, True),
        ("", {"thinking": {"type": "disabled"}}, {}, False),
        ("", {"thinking": {"type": "adaptive"}}, {}, True),
    ],
)
async def test_thinking_goes_where_the_template_knows_it(template: str, fields: Any, arguments: Any, told: bool) -> None:
    async with serving(HELLO) as server:
        server.runtime.text = SimpleNamespace(chat_template=template)
        answer = await server.ask("/v1/messages", {"model": "fake", "max_tokens": 5, "messages": [user(text("x"))]} | fields)
    assert server.runtime.requests[0].chat.arguments == arguments
    assert ("x-tripower-ignored" in answer.headers) == told


names = st.sampled_from(["messages", "system", "tools", "tool_choice", "thinking", "content", "role", "type", "text", "zz"])


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(names, json_values, max_size=5), st.lists(st.dictionaries(names, json_values), max_size=2))
def test_no_json_whatever_is_more_than_refused(fields: dict[str, Any], messages: list[Any]) -> None:
    for body in (fields, {"max_tokens": 5, "messages": messages}, {"max_tokens": 5, "messages": [user(*messages)]} | fields):
        try:
            asked, _ = MESSAGES.decode(json.dumps(body).encode(), strict=False)
            asked.generation("m")
        except InvalidRequest:
            continue
