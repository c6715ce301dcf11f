"""The items of a Responses conversation, as messages.

An assistant's turn may be spread over several items: what it thought, what it said, what it called. They become one message, in which
templates want them; a second thing said, or a thought after one, begins the next message.
"""

from __future__ import annotations

from typing import Annotated, Any

import attrs
import msgspec
from msgspec import Meta

from tripower.api.http.bodies import LISTED_MAX
from tripower.api.http.dialects.decoding import unsupported
from tripower.api.http.text.arguments import object_text
from tripower.api.http.text.messages import CALLS_MAX, NAME
from tripower.runtime.engine import ChatMessage, ToolCall
from tripower.runtime.kernel import InvalidRequest

ROLES = ("user", "assistant", "system", "developer")
TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})


class ItemPartIn(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of an item's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


ItemParts = Annotated[tuple[ItemPartIn, ...], Meta(max_length=LISTED_MAX)]


class ItemIn(msgspec.Struct, frozen=True, kw_only=True):
    """One item: a message (the only kind that may leave out its type), a function's call or output, or a thought."""

    type: str | None = None
    role: str | None = None
    content: str | ItemParts | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | ItemParts | None = None
    summary: ItemParts | None = None
    encrypted_content: Any = None
    """Of other servers: nobody here could read it."""


def conversation(instructions: str | None, items: str | tuple[ItemIn, ...]) -> tuple[ChatMessage, ...]:
    """Messages as the runtime takes them. Raises `InvalidRequest` naming the first item that cannot be taken."""
    turns = _Turns()
    if instructions:
        turns.add(ChatMessage("system", instructions))
    if isinstance(items, str):
        turns.add(ChatMessage("user", items))
    else:
        for index, item in enumerate(items):
            turns.read(f"input[{index}]", item)
    messages = turns.finish()
    if not items:
        raise InvalidRequest("input is empty", param="input")
    return messages


@attrs.define
class _Turns:
    """Messages so far, and the assistant's one that is not complete."""

    messages: list[ChatMessage] = attrs.Factory(list)
    names: dict[str, str] = attrs.Factory(dict)
    """Of the functions, by the id of their call."""
    open: ChatMessage | None = None

    def finish(self) -> tuple[ChatMessage, ...]:
        if self.open is not None:
            self.messages.append(self.open)
            self.open = None
        return tuple(self.messages)

    def add(self, message: ChatMessage) -> None:
        self.finish()
        self.messages.append(message)

    def read(self, path: str, item: ItemIn) -> None:
        match item.type:
            case None | "message":
                self._message(path, item)
            case "function_call":
                self._call(path, item)
            case "function_call_output":
                call_id = _needed(f"{path}.call_id", item.call_id)
                self.add(ChatMessage("tool", _text(f"{path}.output", item.output), self.names.get(call_id), (), call_id))
            case "reasoning":
                thought = _text(f"{path}.content", item.content or item.summary or ())
                self._continue(fresh=self.open is not None and bool(self.open.content or self.open.tool_calls))
                self._change(reasoning=(self.open.reasoning or "" if self.open is not None else "") + thought or None)
            case "item_reference":
                raise unsupported(f"{path}.type: item_reference", "answers are not kept; send the item itself")
            case _:
                raise unsupported(
                    f"{path}.type: {item.type[:40]}", "use message, function_call, function_call_output, reasoning"
                )

    def _message(self, path: str, item: ItemIn) -> None:
        if item.role not in ROLES:
            raise InvalidRequest(f"{path}.role is one of {', '.join(ROLES)}", param=f"{path}.role")
        text = _text(f"{path}.content", item.content)
        if item.role != "assistant":
            self.add(ChatMessage(item.role, text))
            return
        self._continue(fresh=self.open is not None and bool(self.open.content or self.open.tool_calls))
        self._change(content=text)

    def _call(self, path: str, item: ItemIn) -> None:
        call_id, name = _needed(f"{path}.call_id", item.call_id), _needed(f"{path}.name", item.name)
        if not NAME.fullmatch(name):
            raise InvalidRequest(
                f"{path}.name has at most 64 characters, without spaces and any of <|\\/>", param=f"{path}.name"
            )
        self.names[call_id] = name
        self._continue(fresh=False)
        assert self.open is not None
        if len(self.open.tool_calls) >= CALLS_MAX:
            raise InvalidRequest(f"{path}: one turn has at most {CALLS_MAX} calls", param=path)
        call = ToolCall(call_id, name, object_text(f"{path}.arguments", _needed(f"{path}.arguments", item.arguments)))
        self._change(tool_calls=(*self.open.tool_calls, call))

    def _continue(self, *, fresh: bool) -> None:
        if fresh:
            self.finish()
        self.open = self.open or ChatMessage("assistant")

    def _change(self, **changes: Any) -> None:
        assert self.open is not None
        self.open = msgspec.structs.replace(self.open, **changes)


def _text(path: str, content: str | tuple[ItemPartIn, ...] | None) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        raise InvalidRequest(f"{path} is missing", param=path)
    return "".join(_part(f"{path}[{place}]", part) for place, part in enumerate(content))


def _part(path: str, part: ItemPartIn) -> str:
    if part.type == "refusal":
        return _needed(f"{path}.refusal", part.refusal)
    if part.type not in TEXT_PARTS:
        raise unsupported(f"{path}.type: {part.type[:40]}", "this model reads text only")
    return _needed(f"{path}.text", part.text)


def _needed(path: str, text: str | None) -> str:
    if text is None:
        raise InvalidRequest(f"{path} is missing", param=path)
    return text
