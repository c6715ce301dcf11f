"""Messages of a conversation as clients send them, and what they become for the runtime.

* Parts of a message's content are joined as they are, without anything between them.
* `function` is the older word for `tool`, and `function_call` for a single call: they become the newer ones.
* The arguments of a call in the history are the text of a JSON object, or the object itself; an empty text is an empty object.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tripower.api.http.bodies import LISTED_MAX
from tripower.api.http.text.arguments import object_text
from tripower.api.http.text.nesting import check_depth
from tripower.runtime.engine import ChatMessage, ToolCall
from tripower.runtime.kernel import InvalidRequest

ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
NAME = re.compile(r"[^\s<|\\/>]{1,64}")
"""What OpenAI allows; above all nothing that a control token is made of."""
CALLS_MAX = 128
CALL_ID_CHARACTERS_MAX = 256


class PartIn(msgspec.Struct, frozen=True):
    """A piece of a message's content."""

    type: str
    text: str | None = None


class FunctionCallIn(msgspec.Struct, frozen=True):
    """What an assistant called, in the history."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCallIn(msgspec.Struct, frozen=True):
    """One call in the history."""

    function: FunctionCallIn
    id: str | None = None
    type: str | None = None


Parts = Annotated[tuple[PartIn, ...], Meta(max_length=LISTED_MAX)]


class MessageIn(msgspec.Struct, frozen=True):
    """One message of a conversation. `reasoning_content` and `reasoning` are two names of one thing."""

    role: str
    content: str | Parts | None = None
    name: str | None = None
    tool_calls: tuple[ToolCallIn, ...] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCallIn | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ExactPart(PartIn, frozen=True, forbid_unknown_fields=True):
    """The same, and nothing else."""


class ExactFunctionCall(FunctionCallIn, frozen=True, forbid_unknown_fields=True):
    """The same, and nothing else."""


class ExactToolCall(ToolCallIn, frozen=True, forbid_unknown_fields=True):
    """The same, and nothing else."""

    function: ExactFunctionCall


class ExactMessage(MessageIn, frozen=True, forbid_unknown_fields=True):
    """The same, and nothing else."""

    content: str | Annotated[tuple[ExactPart, ...], Meta(max_length=LISTED_MAX)] | None = None
    tool_calls: tuple[ExactToolCall, ...] | None = None
    function_call: ExactFunctionCall | None = None


def conversation(messages: tuple[MessageIn, ...]) -> tuple[ChatMessage, ...]:
    """Messages as the runtime takes them. Raises `InvalidRequest` naming the first that it cannot take."""
    return tuple(_message(f"messages[{index}]", message) for index, message in enumerate(messages))


def _message(path: str, message: MessageIn) -> ChatMessage:
    role = ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"{path}.role is one of {', '.join(ROLES)}", param=f"{path}.role")
    if message.name is not None and not NAME.fullmatch(message.name):
        raise InvalidRequest(
            f"{path}.name has at most 64 characters, without spaces and any of <|\\/>",
            param=f"{path}.name",
        )
    content = _content(path, role, message.content)
    if message.tool_calls or message.function_call or message.tool_call_id or message.reasoning or message.reasoning_content:
        return _with_calls(path, role, content, message)
    return ChatMessage(role, content, message.name)


def _content(path: str, role: str, content: str | tuple[PartIn, ...] | None) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if role == "assistant":
            return ""
        raise InvalidRequest(f"{path}.content is missing", param=f"{path}.content")
    return "".join([_part(f"{path}.content[{place}]", part) for place, part in enumerate(content)])


def _part(path: str, part: PartIn) -> str:
    if part.type != "text":
        raise InvalidRequest(
            f"{path}: parts of type {part.type[:40]} are not supported: this model reads text only",
            code="unsupported_parameter",
            param=path,
        )
    if part.text is None:
        raise InvalidRequest(f"{path}.text is missing", param=f"{path}.text")
    return part.text


def _with_calls(path: str, role: str, content: str, message: MessageIn) -> ChatMessage:
    """A message that calls, answers a call, or was thought about."""
    calls = list(message.tool_calls or ())
    field = "tool_calls"
    if message.function_call is not None:
        calls, field = [*calls, ToolCallIn(message.function_call)], field if calls else "function_call"
    reasoning = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    for name, given in ((field, calls), ("reasoning_content", reasoning)):
        if given and role != "assistant":
            raise InvalidRequest(f"{path}.{name}: only an assistant has them", param=f"{path}.{name}")
    if message.tool_call_id is not None and len(message.tool_call_id) > CALL_ID_CHARACTERS_MAX:
        raise InvalidRequest(f"{path}.tool_call_id is too long", param=f"{path}.tool_call_id")
    if len(calls) > CALLS_MAX:
        raise InvalidRequest(f"{path}.tool_calls has at most {CALLS_MAX} entries", param=f"{path}.tool_calls")
    return ChatMessage(
        role,
        content,
        message.name,
        tool_calls=tuple(_call(f"{path}.{field}[{place}]", place, call) for place, call in enumerate(calls)),
        tool_call_id=message.tool_call_id if role == "tool" else None,
        reasoning=reasoning or None,
    )


def _call(path: str, place: int, call: ToolCallIn) -> ToolCall:
    if call.type not in (None, "function"):
        raise InvalidRequest(f"{path}.type: only functions can be called", param=f"{path}.type")
    if not NAME.fullmatch(call.function.name):
        raise InvalidRequest(
            f"{path}.function.name has 1 to 64 characters, without spaces and any of <|\\/>", param=f"{path}.function.name"
        )
    if call.id is not None and len(call.id) > CALL_ID_CHARACTERS_MAX:
        raise InvalidRequest(f"{path}.id is too long", param=f"{path}.id")
    return ToolCall(call.id or f"call_{place}", call.function.name, _arguments(f"{path}.function", call.function.arguments))


def _arguments(path: str, given: str | dict[str, Any] | None) -> str:
    param = f"{path}.arguments"
    if not given:
        return "{}"
    if isinstance(given, str):
        return object_text(param, given)
    check_depth(given, param)
    return msgspec.json.encode(given).decode()
