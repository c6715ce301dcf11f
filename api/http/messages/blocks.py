"""Messages of content blocks, as messages of the runtime."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tripower.api.http.bodies import LISTED_MAX
from tripower.api.http.dialects.decoding import unsupported
from tripower.api.http.text.messages import NAME
from tripower.api.http.text.nesting import check_depth
from tripower.runtime.engine import ChatMessage, ToolCall
from tripower.runtime.kernel import InvalidRequest

TEXT_ONLY = "this model reads text only"
BETWEEN_BLOCKS = "\n"


class BlockIn(msgspec.Struct, frozen=True, kw_only=True):
    """One block: text, a tool's use or result, or a thought."""

    type: str
    text: str | None = None
    thinking: str | None = None
    data: Any = None
    """Of a redacted thought, which nobody here can read."""
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Annotated[tuple[BlockIn, ...], Meta(max_length=LISTED_MAX)] | None = None
    is_error: bool | None = None
    """Templates have no word for it: the text of the result has to say so."""


Blocks = Annotated[tuple[BlockIn, ...], Meta(max_length=LISTED_MAX)]


class MessageIn(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Blocks


def conversation(system: str | tuple[BlockIn, ...] | None, messages: tuple[MessageIn, ...]) -> tuple[ChatMessage, ...]:
    """Messages as the runtime takes them. Raises `InvalidRequest` naming the first block that cannot be taken."""
    translated: list[ChatMessage] = []
    if system:
        translated.append(ChatMessage("system", _text("system", system)))
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        path = f"messages[{index}].content"
        if isinstance(message.content, str):
            translated.append(ChatMessage(message.role, message.content))
        elif message.role == "assistant":
            translated.append(_assistant(path, message.content, names))
        else:
            translated += _user(path, message.role, message.content, names)
    if not translated:
        raise InvalidRequest("messages: there is no content", param="messages")
    return tuple(translated)


def _assistant(path: str, blocks: tuple[BlockIn, ...], names: dict[str, str]) -> ChatMessage:
    texts, thoughts, calls = [], [], []
    for place, block in enumerate(blocks):
        here = f"{path}[{place}]"
        match block.type:
            case "text":
                texts.append(_needed(f"{here}.text", block.text))
            case "thinking":
                thoughts.append(_needed(f"{here}.thinking", block.thinking))
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_call(here, block, names))
            case _:
                raise unsupported(f"{here}.type: {block.type[:40]}", "an assistant's blocks are text, thinking and tool_use")
    reasoning = BETWEEN_BLOCKS.join(thoughts) or None
    return ChatMessage("assistant", BETWEEN_BLOCKS.join(texts), None, tuple(calls), None, reasoning)


def _call(path: str, block: BlockIn, names: dict[str, str]) -> ToolCall:
    call_id, name = _needed(f"{path}.id", block.id), _needed(f"{path}.name", block.name)
    if not NAME.fullmatch(name):
        raise InvalidRequest(f"{path}.name has at most 64 characters, without spaces and any of <|\\/>", param=f"{path}.name")
    check_depth(block.input, f"{path}.input")
    names[call_id] = name
    return ToolCall(call_id, name, msgspec.json.encode(block.input or {}).decode())


def _user(path: str, role: str, blocks: tuple[BlockIn, ...], names: dict[str, str]) -> list[ChatMessage]:
    """Results of tools are messages of their own, in their order; the texts between them stay together."""
    messages: list[ChatMessage] = []
    texts: list[str] = []
    for place, block in enumerate(blocks):
        here = f"{path}[{place}]"
        if block.type == "tool_result":
            if texts:
                messages.append(ChatMessage(role, BETWEEN_BLOCKS.join(texts)))
                texts = []
            call_id = _needed(f"{here}.tool_use_id", block.tool_use_id)
            result = _text(f"{here}.content", block.content or "")
            messages.append(ChatMessage("tool", result, names.get(call_id), (), call_id))
        else:
            texts.append(_text_block(here, block))
    if texts:
        messages.append(ChatMessage(role, BETWEEN_BLOCKS.join(texts)))
    return messages


def _text(path: str, content: str | tuple[BlockIn, ...]) -> str:
    if isinstance(content, str):
        return content
    return BETWEEN_BLOCKS.join(_text_block(f"{path}[{place}]", block) for place, block in enumerate(content))


def _text_block(path: str, block: BlockIn) -> str:
    if block.type != "text":
        raise unsupported(f"{path}.type: {block.type[:40]}", TEXT_ONLY)
    return _needed(f"{path}.text", block.text)


def _needed(path: str, text: str | None) -> str:
    if text is None:
        raise InvalidRequest(f"{path} is missing", param=path)
    return text
