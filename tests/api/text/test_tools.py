"""Tools, calls and reasoning: what is asked, and how an answer that has them comes out, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.fake_runtime import Script, finished, tokens
from tests.api.serving import ASK, CHAT, COMPLETIONS, serving, serving_toy
from tripower.api.http.wire import CHAT as DECODER
from tripower.runtime.engine import (
    AnswerDelta,
    ChatOptions,
    ContentDelta,
    ReasoningDelta,
    ToolCallDelta,
    ToolChoice,
    ToolDefinition,
)
from tripower.runtime.kernel import InvalidRequest

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": PARAMETERS}}
OTHER = {"type": "function", "function": {"name": "g"}}
DEFINED = ToolDefinition("f", "d", PARAMETERS)


class MarkedReader:
    """Reads a made-up notation: `r:` thinks, `f:` begins a call of f, `,` goes on with it, everything else is said."""

    def __init__(self) -> None:
        self.complete_calls = 0

    def push(self, text: str) -> list[AnswerDelta]:
        if text.startswith("r:"):
            return [ReasoningDelta(text[2:])]
        if text.startswith("f:"):
            self.complete_calls += 1
            return [ToolCallDelta(self.complete_calls - 1, f"call_{self.complete_calls}", "f", text[2:])]
        if text.startswith(","):
            return [ToolCallDelta(self.complete_calls - 1, arguments=text[1:])]
        return [ContentDelta(text)] if text else []

    def finish(self, text: str = "") -> list[AnswerDelta]:
        return self.push(text)


def script(*texts: str, reason: str = "stop") -> Script:
    return Script([tokens(*texts), finished(reason, generated=len(texts))], reader=MarkedReader)


def request(**fields: Any) -> Any:
    return DECODER.decode(json.dumps(ASK | fields).encode(), strict=True)[0].generation("m")


@pytest.mark.parametrize(
    ("fields", "chat", "choice"),
    [
        ({"tools": [TOOL]}, ChatOptions(tools=(DEFINED,)), ToolChoice()),
        ({"tools": []}, ChatOptions(), ToolChoice()),
        ({"tools": [TOOL], "tool_choice": "required"}, ChatOptions(tools=(DEFINED,)), ToolChoice(mode="required")),
        ({"tools": [TOOL], "tool_choice": "none"}, ChatOptions(), ToolChoice(mode="none")),
        ({"tools": [TOOL, OTHER], "tool_choice": {"type": "function", "function": {"name": "g"}}},
         ChatOptions(tools=(DEFINED, ToolDefinition("g"))), ToolChoice(mode="required", name="g")),
        ({"tools": [TOOL], "parallel_tool_calls": False}, ChatOptions(tools=(DEFINED,)), ToolChoice(parallel=False)),
        ({"tool_choice": "auto", "parallel_tool_calls": True}, ChatOptions(), ToolChoice()),
        ({"functions": [TOOL["function"]], "function_call": {"name": "f"}}, ChatOptions(tools=(DEFINED,)), ToolChoice(mode="required", name="f")),
        ({"functions": [TOOL["function"]], "function_call": "none"}, ChatOptions(), ToolChoice(mode="none")),
        ({"chat_template_kwargs": {"a": 1}, "reasoning_effort": "low"}, ChatOptions(arguments={"a": 1, "reasoning_effort": "low"}), ToolChoice()),
        ({"add_generation_prompt": False}, ChatOptions(add_generation_prompt=False), ToolChoice()),
        ({"continue_final_message": True}, ChatOptions(continue_final_message=True, add_generation_prompt=False), ToolChoice()),
    ],
)  # fmt: skip
def test_tools_and_the_choice_among_them_reach_the_runtime(fields: Any, chat: ChatOptions, choice: ToolChoice) -> None:
    assert (request(**fields).chat, request(**fields).tool_choice) == (chat, choice)


DEEP: Any = {}
for _ in range(100):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}, "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}]}, "tools[0].function.parameters"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tools": "f"}, "tools"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [TOOL], "functions": [TOOL["function"]]}, "functions"),
        ({"tool_choice": "auto", "function_call": "auto"}, "function_call"),
        ({"chat_template_kwargs": DEEP}, "chat_template_kwargs"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ],
)
def test_tools_that_cannot_be_are_refused_by_their_place(fields: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "zz"}}}, "tool_choice"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_makes_no_sense_together_is_refused_with_its_real_status(fields: Any, param: str, stream: bool) -> None:
    async with serving_toy() as server:
        answer = await server.ask(CHAT, ASK | {"model": "toy", "stream": stream} | fields)
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_tools_belong_to_a_conversation() -> None:
    async with serving_toy() as server:
        answer = await server.ask(COMPLETIONS, {"model": "toy", "prompt": "a", "tools": [TOOL]})
    assert (answer.status, answer.error["param"]) == (400, "tools")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, ASK | {"tools": [{"type": "function", "function": {"name": "a.b"}}]}, "tools[0].function.name"),
        (CHAT, ASK | {"functions": [{"name": "a.b"}]}, "functions[0].name"),
        ("/v1/responses", {"input": "Hi", "tools": [{"type": "function", "name": "a.b"}]}, "tools[0].name"),
        ("/v1/messages", ASK | {"max_tokens": 1, "tools": [{"name": "a.b", "input_schema": {}}]}, "tools[0].name"),
    ],
)
async def test_names_of_tools_have_one_rule_in_all_dialects(path: str, body: Any, param: str) -> None:
    async with serving_toy() as server:
        answer = await server.ask(path, body | {"model": "toy"})
    assert (answer.status, answer.error["param"]) == (400, param)
    assert (
        answer.error["message"] == f"{param}: 'a.b' is no name of a tool: use 1 to 64 letters of a-z and A-Z, digits, _ and -"
    )


def test_unknown_fields_of_tools_are_named() -> None:
    body = ASK | {"tools": [TOOL | {"cache_control": {}}, {"type": "function", "function": {"name": "g", "icon": "x"}}]}
    body["messages"] = [
        *ASK["messages"],
        {"role": "assistant", "tool_calls": [{"index": 0, "function": {"name": "f", "x": 1}}]},
    ]
    _, names = DECODER.decode(json.dumps(body).encode(), strict=False)
    assert names == (
        "messages.tool_calls.index",
        "messages.tool_calls.function.x",
        "tools.cache_control",
        "tools.function.icon",
    )


async def test_calls_are_in_the_message_and_nothing_is_said() -> None:
    async with serving(script("f:{", ',"a":1}', "f:{}")) as server:
        (choice,) = (await server.ask(CHAT, ASK | {"tools": [TOOL]})).json["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "call_2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        ],
    }


async def test_reasoning_has_both_names_and_its_tokens_are_counted() -> None:
    async with serving(script("r:hm", "r: well", "Hi", "!")) as server:
        body = (await server.ask(CHAT, ASK)).json
        events = (await server.ask(CHAT, ASK | {"stream": True, "stream_options": {"include_usage": True}})).events
    message = body["choices"][0]["message"]
    assert (message["content"], message["reasoning"], message["reasoning_content"]) == ("Hi!", "hm well", "hm well")
    assert "tool_calls" not in message and body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert events[-2]["usage"] == body["usage"]


async def test_a_stream_of_calls_begins_each_with_its_name_and_goes_on_with_arguments() -> None:
    async with serving(script("r:hm", "ok", "f:", ",{", ",}", "f:{}", "")) as server:
        *chunks, done = (await server.ask(CHAT, ASK | {"stream": True})).events
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"content": "ok"},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
        {"tool_calls": [{"index": 1, "id": "call_2", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
        {},
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls" and done == "data: [DONE]"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_was_cut_off_says_so_whatever_it_called(stream: bool) -> None:
    async with serving(script("f:{", reason="length")) as server:
        answer = await server.ask(CHAT, ASK | {"stream": stream})
    choice = answer.events[-2]["choices"][0] if stream else answer.json["choices"][0]
    assert choice["finish_reason"] == "length"
