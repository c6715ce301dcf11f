"""A whole message, as Anthropic's client parses it."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from tripower.actors.dialogue import GenerationFinished, GenerationRequest, Usage
from tripower.api.http.dialects.following import Following
from tripower.api.http.dialects.parts import Part


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    thinking: str
    signature: str = ""
    """Empty: nothing here checks thoughts that come back."""


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class MessageOut(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/messages`. `stop_reason` is null where a stream begins."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: tuple[Block, ...] = ()
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessagesUsage


class TokenCountOut(msgspec.Struct, frozen=True):
    """How many tokens the prompt has."""

    input_tokens: int


def usage_of(usage: Usage) -> MessagesUsage:
    """The three numbers of input add up to the prompt."""
    cached = usage.cached_tokens
    return MessagesUsage(usage.prompt_tokens - cached, usage.completion_tokens, cache_read_input_tokens=cached)


def begun(request: GenerationRequest, following: Following) -> MessageOut:
    """The message as a stream begins."""
    usage = MessagesUsage(following.generation.prompt_tokens, 0)
    return MessageOut(id="msg_" + secrets.token_hex(12), model=request.model, usage=usage)


def complete(request: GenerationRequest, following: Following) -> MessageOut:
    """The message at its regular end."""
    finished = following.finished
    assert finished is not None
    reason, sequence = stop_reason(request, finished)
    return MessageOut(
        id="msg_" + secrets.token_hex(12),
        model=request.model,
        content=tuple(map(block_out, following.parts.all)),
        stop_reason=reason,
        stop_sequence=sequence,
        usage=usage_of(finished.usage),
    )


def block_out(part: Part) -> Block:
    """A part as a block. Arguments that are no JSON object, since they were cut off, are kept as a text that no tool takes."""
    if part.kind == "text":
        return TextBlock(part.text)
    if part.kind == "reasoning":
        return ThinkingBlock(part.text)
    return ToolUseBlock(part.call_id, part.name, _arguments(part.text))


def _arguments(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        arguments = msgspec.json.decode(text.encode(errors="replace"))
    except (msgspec.DecodeError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"unparsed_arguments": text}


def stop_reason(request: GenerationRequest, finished: GenerationFinished) -> tuple[str, str | None]:
    """Why the answer ended, in Anthropic's words, and the stop sequence if it was one."""
    if finished.reason == "length":
        return ("max_tokens" if request.max_tokens is not None else "model_context_window_exceeded"), None
    if finished.reason == "content_filter":
        return "refusal", None
    if isinstance(finished.stopped_by, str):
        return "stop_sequence", finished.stopped_by
    if finished.reason == "tool_calls":
        return "tool_use", None
    return "end_turn", None
