"""Turns that come back in: what a server has said itself is taken again, in every form in which clients keep it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.fake_runtime import HELLO
from tests.api.serving import CHAT, Answer, serving
from tripower.runtime.engine import ChatMessage

USER = {"role": "user", "content": "weather?"}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
CUT_OFF = ['{"city": "Os', '{"city"', "{", '"', "[1,", "no JSON"]


def turn(arguments: str = '{"city":"Oslo"}', **fields: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}],
    } | fields


async def ask(path: str, *bodies: dict[str, Any]) -> tuple[list[Answer], list[tuple[ChatMessage, ...]]]:
    """The answers, and the conversations that the runtime was given."""
    async with serving(HELLO) as server:
        answers = [await server.ask(path, {"model": "fake"} | body) for body in bodies]
        return answers, [request.messages or () for request in server.runtime.requests]


async def test_a_call_without_a_text_is_the_same_null_absent_or_empty() -> None:  # BB-035
    turns = [turn(content=None), turn(), turn(content=""), turn(content=[])]
    answers, asked = await ask(CHAT, *({"messages": [USER, each, RESULT]} for each in turns))
    assert [answer.status for answer in answers] == [200] * len(turns)
    assert len(asked) == len(turns) and all(each == asked[0] for each in asked)


async def test_what_a_call_was_answered_with_can_be_sent_back() -> None:  # BB-035
    (first,), _ = await ask(CHAT, {"messages": [USER]})
    message = first.json["choices"][0]["message"]
    (again,), ((_, said, _),) = await ask(CHAT, {"messages": [USER, message, USER]})
    assert (again.status, said.content) == (200, message["content"])


@pytest.mark.parametrize("arguments", CUT_OFF)
async def test_arguments_that_were_cut_off_are_answered_or_refused_by_their_place(arguments: str) -> None:  # BB-034
    chat, _ = await ask(CHAT, {"messages": [USER, turn(arguments), RESULT, USER]})
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": arguments}
    output = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
    responses, _ = await ask("/v1/responses", {"input": [USER, call, output, USER]})
    unparsed = {"type": "tool_use", "id": "c1", "name": "f", "input": {"unparsed_arguments": arguments}}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "rain"}]}
    messages, _ = await ask(
        "/v1/messages", {"max_tokens": 5, "messages": [USER, {"role": "assistant", "content": [unparsed]}, result]}
    )
    assert messages[0].status == 200  # in the form in which this dialect gives them out
    for path, answer in (("messages[1]", chat[0]), ("input[1]", responses[0])):
        assert answer.status in (200, 400), answer.body
        assert answer.status == 200 or answer.error["param"].startswith(path)


# BB-041
@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
async def test_parts_of_a_text_reach_the_prompt_in_every_role(role: str) -> None:
    parts = [{"type": "text", "text": "the code "}, {"type": "text", "text": "is 7"}]
    answers, ((said, _),) = await ask(CHAT, {"messages": [{"role": role, "content": parts}, USER]})
    assert answers[0].status == 200 and said.content == "the code is 7"


# BB-041
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "new", "new": 1}, {"text": 5, "type": "text"}, {}]
)
async def test_parts_that_nobody_knows_are_refused_by_their_place(role: str, part: dict[str, Any]) -> None:
    message = {"role": role, "content": [{"type": "text", "text": "a"}, part], "tool_call_id": "c1"}
    answers, asked = await ask(CHAT, {"messages": [USER, message]})
    assert (answers[0].status, asked) == (400, [])
    assert answers[0].error["param"].startswith("messages[1].content")
