"""Tools that a client offers, and which of them must be called.

`functions` and `function_call` are the older names of `tools` and `tool_choice`; an answer has `tool_calls` in any case.
With `tool_choice: "none"` the template is not told of the tools either: a model that does not know them calls none.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tripower.api.http.text.nesting import check_depth
from tripower.runtime.engine import ToolChoice, ToolDefinition
from tripower.runtime.engine.tool_names import TOOLS_MAX, check_tool_name
from tripower.runtime.kernel import InvalidRequest


class FunctionIn(msgspec.Struct, frozen=True):
    """A function that may be called."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolIn(msgspec.Struct, frozen=True):
    """A tool; only functions are known."""

    type: str
    function: FunctionIn | None = None


class NamedFunction(msgspec.Struct, frozen=True):
    """A function by its name."""

    name: str


class ChoiceIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tool that must be called."""

    type: str
    function: NamedFunction | None = None


class ExactFunction(FunctionIn, frozen=True, forbid_unknown_fields=True):
    """The same, and nothing else."""


class ExactTool(ToolIn, frozen=True, forbid_unknown_fields=True):
    """The same, and nothing else."""

    function: ExactFunction | None = None


Tools = Annotated[tuple[ToolIn, ...], Meta(max_length=TOOLS_MAX)]
ExactTools = Annotated[tuple[ExactTool, ...], Meta(max_length=TOOLS_MAX)]
Functions = Annotated[tuple[FunctionIn, ...], Meta(max_length=TOOLS_MAX)]
ExactFunctions = Annotated[tuple[ExactFunction, ...], Meta(max_length=TOOLS_MAX)]


def definitions(tools: tuple[ToolIn, ...] | None, functions: tuple[FunctionIn, ...] | None) -> tuple[ToolDefinition, ...]:
    """What may be called, by either name. Raises `InvalidRequest` naming the first that cannot."""
    if tools and functions:
        raise InvalidRequest("functions is the older name of tools: give one of them", param="functions")
    if functions:
        return tuple(_definition(f"functions[{place}]", function) for place, function in enumerate(functions))
    return tuple(_definition(f"tools[{place}].function", _function(place, tool)) for place, tool in enumerate(tools or ()))


def tool_choice(given: str | ChoiceIn | None, older: str | NamedFunction | None, parallel: bool | None) -> ToolChoice:
    """Which must be called. Raises `InvalidRequest`."""
    if given is not None and older is not None:
        raise InvalidRequest("function_call is the older name of tool_choice: give one of them", param="function_call")
    several = parallel is not False
    if isinstance(older, NamedFunction):
        return ToolChoice(mode="required", name=older.name, parallel=several)
    if isinstance(given, ChoiceIn):
        if given.type != "function" or given.function is None:
            raise InvalidRequest(
                'tool_choice is "auto", "none", "required" or {"type": "function", "function": {"name": …}}',
                param="tool_choice",
            )
        return ToolChoice(mode="required", name=given.function.name, parallel=several)
    param, mode = ("tool_choice", given) if given is not None else ("function_call", older)
    if mode is None or mode == "auto":
        return ToolChoice(parallel=several)
    if mode == "none":
        return ToolChoice(mode="none", parallel=several)
    if mode == "required" and param == "tool_choice":
        return ToolChoice(mode="required", parallel=several)
    raise InvalidRequest(f'{param} is "auto", "none", "required" or names a function', param=param)


def _function(place: int, tool: ToolIn) -> FunctionIn:
    if tool.type != "function":
        raise InvalidRequest(
            f"tools[{place}].type: only functions can be offered here, not {tool.type[:40]}",
            code="unsupported_parameter",
            param=f"tools[{place}].type",
        )
    if tool.function is None:
        raise InvalidRequest(f"tools[{place}].function is missing", param=f"tools[{place}].function")
    return tool.function


def _definition(path: str, function: FunctionIn) -> ToolDefinition:
    check_tool_name(function.name, f"{path}.name")
    if function.parameters is not None:
        check_depth(function.parameters, f"{path}.parameters")
    return ToolDefinition(function.name, function.description, function.parameters, bool(function.strict))
