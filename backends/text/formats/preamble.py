"""Tools for templates that know none: their description as system text, calls and results of the history as text.

The description is the one that Hermes models were trained on, in few words, with the markers of the format in which calls are read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from tripower.backends.text.formats.family import ToolFormat
from tripower.runtime.engine.contract import ChatMessage, ToolCall, ToolDefinition

SYSTEM_ROLES = ("system", "developer")
RESULT_ROLES = ("tool", "function")


def describe(tools: Sequence[ToolDefinition], form: ToolFormat) -> str:
    """What a model has to know to call these."""
    listed = "\n".join(json.dumps(tool_object(tool), ensure_ascii=False) for tool in tools)
    pattern = f'{{"name": <function-name>, "{form.arguments}": <arguments-as-a-JSON-object>}}'
    return (
        "You may call functions to help with the user's question. They are listed here with the JSON schemas of their arguments:\n"
        f"<tools>\n{listed}\n</tools>\n\n"
        "To call one, answer with a JSON object of its name and arguments in this form:\n"
        f"{form.begin}{form.before}{pattern}{form.after}{form.end}"
    )


def tool_object(tool: ToolDefinition) -> dict[str, Any]:
    """A tool as OpenAI's API writes it, which is what templates expect."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def as_plain_conversation(
    messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition], form: ToolFormat, *, has_system: bool = True
) -> list[ChatMessage]:
    """The conversation in nothing but system, user and assistant texts.

    The description joins the first system message, or becomes one; without `has_system` it joins the first message there is.
    Results of tools become a user's turn, together with what the user says next: many templates want turns to alternate.
    """
    plain: list[ChatMessage] = []
    for index, message in enumerate(messages):
        written = _as_text(message, form)
        follows_result = index > 0 and messages[index - 1].role in RESULT_ROLES
        if follows_result and written.role == "user" and plain[-1].role == "user":
            plain[-1] = msgspec.structs.replace(plain[-1], content=f"{plain[-1].content}\n{written.content}")
        else:
            plain.append(written)
    return _with_description(plain, describe(tools, form), has_system=has_system) if tools else plain


def _with_description(messages: list[ChatMessage], text: str, *, has_system: bool) -> list[ChatMessage]:
    first = messages[0] if messages else None
    if first is not None and (first.role in SYSTEM_ROLES or (not has_system and first.role == "user")):
        parts = (first.content, text) if first.role in SYSTEM_ROLES else (text, first.content)
        joined = "\n\n".join(part for part in parts if part)
        return [msgspec.structs.replace(first, content=joined), *messages[1:]]
    return [ChatMessage("system" if has_system else "user", text), *messages]


def _as_text(message: ChatMessage, form: ToolFormat) -> ChatMessage:
    if message.role in RESULT_ROLES:
        return ChatMessage("user", f"<tool_response>\n{message.content}\n</tool_response>")
    if not message.tool_calls:
        return message
    calls = (_call_text(call, form) for call in message.tool_calls)
    content = "\n".join(part for part in (message.content, *calls) if part)
    return msgspec.structs.replace(message, content=content, tool_calls=())


def _call_text(call: ToolCall, form: ToolFormat) -> str:
    """The call as the model is asked to write it; arguments that are cut off stay as they are."""
    written = f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "{form.arguments}": {call.arguments or "{}"}}}'
    return f"{form.begin}{form.before}{written}{form.after}{form.end}"
