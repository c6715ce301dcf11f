"""A response, whole or at any moment of its stream, as the official client parses it."""

from __future__ import annotations

import secrets
import time
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tripower.actors.dialogue import GenerationFinished, GenerationRequest
from tripower.api.http.dialects.following import Following
from tripower.api.http.dialects.parts import Part
from tripower.api.http.responses.requests import ResponseIn
from tripower.api.http.responses.tools import tool_definitions
from tripower.runtime.engine import ToolChoice
from tripower.runtime.engine.constraint import JsonObjectFormat, JsonSchemaFormat
from tripower.runtime.kernel import TripowerError


class TextOut(msgspec.Struct, frozen=True, tag="output_text"):
    """What is said."""

    text: str
    annotations: tuple[Any, ...] = ()
    logprobs: tuple[Any, ...] = ()


class ThoughtOut(msgspec.Struct, frozen=True, tag="reasoning_text"):
    """What is thought."""

    text: str


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    id: str
    status: str
    role: str = "assistant"
    content: tuple[TextOut, ...]


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    id: str
    status: str
    summary: tuple[Any, ...] = ()
    content: tuple[ThoughtOut, ...]


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    id: str
    status: str
    call_id: str
    name: str
    arguments: str


OutputItem = MessageItem | ReasoningItem | FunctionCallItem


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputDetails = InputDetails()
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseErrorOut(msgspec.Struct, frozen=True):
    code: str
    message: str


class IncompleteOut(msgspec.Struct, frozen=True):
    reason: str


class ResponseOut(msgspec.Struct, frozen=True, kw_only=True):
    """Settings come back as they were asked for; null leaves them to the model's recommendation."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    background: bool = False
    error: ResponseErrorOut | None = None
    incomplete_details: IncompleteOut | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: tuple[OutputItem, ...] = ()
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: dict[str, Any]
    store: bool = False
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: tuple[dict[str, Any], ...]
    top_p: float | None
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | UnsetType = UNSET


class ResponseBuilder:
    """One response: its id, what was asked, and the ids of its items."""

    def __init__(self, asked: ResponseIn, request: GenerationRequest) -> None:
        self._ids: dict[int, str] = {}
        choice = request.tool_choice
        self.blank = ResponseOut(
            id="resp_" + secrets.token_hex(16),
            created_at=int(time.time()),
            status="in_progress",
            instructions=asked.instructions,
            max_output_tokens=asked.max_output_tokens,
            metadata=asked.metadata or {},
            model=request.model,
            parallel_tool_calls=choice.parallel,
            reasoning={"effort": asked.reasoning.effort if asked.reasoning else None, "summary": None},
            temperature=asked.temperature,
            text={"format": _format_out(asked, request)},
            tool_choice=_choice_out(choice),
            tools=tuple({"type": "function", **msgspec.structs.asdict(tool)} for tool in tool_definitions(asked.tools or ())),
            top_p=asked.top_p,
        )

    def item(self, part: Part, status: str) -> OutputItem:
        """The item that a part is. While it is `in_progress` it is shown empty, as it began."""
        id = self.item_id(part)
        text = "" if status == "in_progress" else part.text
        if part.kind == "call":
            return FunctionCallItem(id=id, status=status, call_id=part.call_id, name=part.name, arguments=text)
        shown = status != "in_progress"
        if part.kind == "text":
            return MessageItem(id=id, status=status, content=(TextOut(text),) if shown else ())
        return ReasoningItem(id=id, status=status, content=(ThoughtOut(text),) if shown else ())

    def item_id(self, part: Part) -> str:
        prefix = {"text": "msg_", "reasoning": "rs_", "call": "fc_"}[part.kind]
        return self._ids.setdefault(part.index, prefix + secrets.token_hex(16))

    def complete(self, following: Following) -> ResponseOut:
        """The response at the regular end. Its last item is incomplete where the answer is."""
        finished = following.finished
        assert finished is not None
        reason = incomplete_reason(finished)
        status = "incomplete" if reason else "completed"
        parts = following.parts.all
        items = [self.item(part, status if part is parts[-1] else "completed") for part in parts]
        return msgspec.structs.replace(
            self.blank,
            status=status,
            completed_at=None if reason else int(time.time()),
            incomplete_details=IncompleteOut(reason) if reason else None,
            output=tuple(items),
            usage=_usage(following, finished),
        )

    def failed(self, error: TripowerError, following: Following) -> ResponseOut:
        """The response that could not be completed, with what it had so far."""
        items = [
            self.item(part, "incomplete" if part is following.parts.all[-1] else "completed") for part in following.parts.all
        ]
        fault = ResponseErrorOut(error.code, error.message.encode(errors="replace").decode()[:2000])
        return msgspec.structs.replace(self.blank, status="failed", error=fault, output=tuple(items))


def incomplete_reason(finished: GenerationFinished) -> str | None:
    """OpenAI's word for what an answer lacks; None for one that is complete."""
    return {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finished.reason)


def _usage(following: Following, finished: GenerationFinished) -> ResponseUsage:
    usage = finished.usage
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputDetails(usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputDetails(following.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )


def _choice_out(choice: ToolChoice) -> str | dict[str, Any]:
    return choice.mode if choice.name is None else {"type": "function", "name": choice.name}


def _format_out(asked: ResponseIn, request: GenerationRequest) -> dict[str, Any]:
    match request.format:
        case JsonObjectFormat():
            return {"type": "json_object"}
        case JsonSchemaFormat(schema):
            given = asked.text.format if asked.text is not None else None
            name, strict = (given.name, given.strict) if given is not None else (None, None)
            return {"type": "json_schema", "name": name or "schema", "schema": schema, "strict": bool(strict)}
    return {"type": "text"}
