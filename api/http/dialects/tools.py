"""What every dialect asks of tools and of the choice between them, however it writes them."""

from __future__ import annotations

from tripower.api.http.text.nesting import check_depth
from tripower.runtime.engine import ToolChoice, ToolDefinition
from tripower.runtime.engine.tool_names import check_tool_name
from tripower.runtime.kernel import InvalidRequest


def check_names(tools: tuple[ToolDefinition, ...]) -> tuple[ToolDefinition, ...]:
    """Each name once and such as tools have, and no schema too deep. Raises `InvalidRequest`."""
    names: set[str] = set()
    for index, tool in enumerate(tools):
        check_tool_name(tool.name, f"tools[{index}].name")
        check_depth(tool.parameters, f"tools[{index}]")
        if tool.name in names:
            raise InvalidRequest(f"tools[{index}].name: {tool.name} is there twice", param=f"tools[{index}].name")
        names.add(tool.name)
    return tools


def required(tools: tuple[ToolDefinition, ...], name: str | None, *, parallel: bool) -> ToolChoice:
    """A tool must be called: any of them, or the one with this name. Raises `InvalidRequest` where there is none."""
    if not tools:
        raise InvalidRequest("tool_choice asks for a call, and there are no tools", param="tool_choice")
    if name is not None and name not in [tool.name for tool in tools]:
        raise InvalidRequest(f"tool_choice.name: there is no tool {name[:64]!r}", param="tool_choice.name")
    return ToolChoice(mode="required", name=name, parallel=parallel)
