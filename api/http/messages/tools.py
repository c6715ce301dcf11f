"""Tools of a Messages request: functions that the client runs."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tripower.api.http.dialects.decoding import unsupported
from tripower.api.http.dialects.tools import check_names, required
from tripower.runtime.engine import ToolChoice, ToolDefinition
from tripower.runtime.kernel import InvalidRequest


class ToolIn(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. Anthropic's own, which have a type with a date and no schema here, are refused by name."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoiceIn(msgspec.Struct, frozen=True, kw_only=True):
    """Whether tools may, must not or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def tool_definitions(tools: tuple[ToolIn, ...]) -> tuple[ToolDefinition, ...]:
    """Raises `InvalidRequest` for tools that are no functions, and for names that cannot be told apart."""
    return check_names(tuple(_definition(f"tools[{index}]", tool) for index, tool in enumerate(tools)))


def _definition(path: str, tool: ToolIn) -> ToolDefinition:
    if tool.type not in (None, "custom"):
        raise unsupported(
            f"{path}.type: {tool.type[:40]}", "this server knows no such tool; describe it by an input_schema and run it"
        )
    if tool.input_schema is None:
        raise InvalidRequest(f"{path}.input_schema is missing", param=f"{path}.input_schema")
    return ToolDefinition(tool.name, tool.description, tool.input_schema, bool(tool.strict))


def tool_choice(choice: ToolChoiceIn | None, tools: tuple[ToolDefinition, ...]) -> ToolChoice:
    """Raises `InvalidRequest` for a choice that these tools do not allow."""
    if choice is None:
        return ToolChoice()
    parallel = not choice.disable_parallel_tool_use
    match choice.type:
        case "any":
            return required(tools, None, parallel=parallel)
        case "tool":
            return required(tools, choice.name or "", parallel=parallel)
        case "none":
            return ToolChoice(mode="none", parallel=parallel)
    return ToolChoice(parallel=parallel)
