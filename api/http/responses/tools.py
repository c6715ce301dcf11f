"""Tools of a Responses request: functions that the client runs."""

from __future__ import annotations

from typing import Any

import msgspec

from tripower.api.http.dialects.decoding import unsupported
from tripower.api.http.dialects.tools import check_names, required
from tripower.runtime.engine import ToolChoice, ToolDefinition
from tripower.runtime.kernel import InvalidRequest


class FunctionIn(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. Only functions can be called; other types are refused by name."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedToolIn(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that must be called."""

    type: str
    name: str | None = None


def tool_definitions(tools: tuple[FunctionIn, ...]) -> tuple[ToolDefinition, ...]:
    """Raises `InvalidRequest` for hosted tools, and for functions without a name of their own."""
    return check_names(tuple(_definition(f"tools[{index}]", tool) for index, tool in enumerate(tools)))


def _definition(path: str, tool: FunctionIn) -> ToolDefinition:
    if tool.type != "function":
        raise unsupported(f"{path}.type: {tool.type[:40]}", "this server runs no tools; describe it as a function and run it")
    if tool.name is None:
        raise InvalidRequest(f"{path}.name is missing", param=f"{path}.name")
    return ToolDefinition(tool.name, tool.description, tool.parameters, bool(tool.strict))


def tool_choice(choice: str | NamedToolIn | None, tools: tuple[ToolDefinition, ...], *, parallel: bool) -> ToolChoice:
    """Raises `InvalidRequest` for a choice that these tools do not allow."""
    match choice:
        case None | "auto":
            return ToolChoice(mode="auto", parallel=parallel)
        case "none":
            return ToolChoice(mode="none", parallel=parallel)
        case "required":
            return required(tools, None, parallel=parallel)
        case NamedToolIn(type="function"):
            return required(tools, choice.name or "", parallel=parallel)
        case NamedToolIn():
            raise unsupported(f"tool_choice.type: {choice.type[:40]}", "use auto, none, required or a function's name")
        case _:
            raise InvalidRequest("tool_choice is auto, none, required or a function", param="tool_choice")
