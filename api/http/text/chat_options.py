"""What a request about a conversation may say besides its messages: tools, and variables of the template."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from tripower.api.http.text.nesting import check_depth
from tripower.api.http.text.tools import (
    ChoiceIn,
    FunctionIn,
    Functions,
    NamedFunction,
    ToolIn,
    Tools,
    definitions,
    tool_choice,
)
from tripower.runtime.engine import ChatOptions, ToolChoice

Effort = Annotated[str, Meta(max_length=16)]


class ChatOptionFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields, the same wherever a conversation is taken."""

    tools: Tools | None = None
    tool_choice: str | ChoiceIn | None = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None
    function_call: str | NamedFunction | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: Effort | None = None


class HasChatOptions(Protocol):
    """A request with these fields, whatever it descends from."""

    @property
    def tools(self) -> tuple[ToolIn, ...] | None: ...
    @property
    def tool_choice(self) -> str | ChoiceIn | None: ...
    @property
    def parallel_tool_calls(self) -> bool | None: ...
    @property
    def functions(self) -> tuple[FunctionIn, ...] | None: ...
    @property
    def function_call(self) -> str | NamedFunction | None: ...
    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...
    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def reasoning_effort(self) -> str | None: ...


def options_of(asked: HasChatOptions) -> ChatOptions | None:
    """What the template gets; None: nothing. Raises `InvalidRequest`."""
    fields: dict[str, Any] = {}
    if asked.tools or asked.functions:
        tools = definitions(asked.tools, asked.functions)
        if "none" not in (asked.tool_choice, asked.function_call):
            fields["tools"] = tools
    arguments = dict(asked.chat_template_kwargs or {})
    if arguments:
        check_depth(arguments, "chat_template_kwargs")
    if asked.reasoning_effort is not None:
        arguments.setdefault("reasoning_effort", asked.reasoning_effort)
    if arguments:
        fields["arguments"] = arguments
    if asked.continue_final_message:
        fields |= {"continue_final_message": True, "add_generation_prompt": bool(asked.add_generation_prompt)}
    elif asked.add_generation_prompt is False:
        fields["add_generation_prompt"] = False
    return ChatOptions(**fields) if fields else None


def choice_of(asked: HasChatOptions) -> ToolChoice | None:
    """Which tool must be called; None: nothing is said. Raises `InvalidRequest`."""
    if asked.tools or asked.functions or asked.tool_choice is not None or asked.function_call is not None:
        return tool_choice(asked.tool_choice, asked.function_call, asked.parallel_tool_calls)
    return None
