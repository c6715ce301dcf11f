"""What people bring along from OpenAI's API, as the runtime's own words: tools, and what an answer has to look like.

Only what can mean one thing is taken. Everything else is refused in words that name the class to use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tripower.runtime.engine import OutputFormat, ToolDefinition
from tripower.runtime.kernel import InvalidRequest

FORMATS = ("json_object", "json_schema", "regex", "choice", "lark", "gbnf")
SCHEMA_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
SCHEMA_WORDS = frozenset({"properties", "items", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs", "$schema"})
TOOL = "a tool is a tripower.ToolDefinition(name, description, parameters), a mapping of these, or OpenAI's"
FORMAT = (
    'a format is a tripower.JsonSchemaFormat(schema) or another of the …Format classes, a mapping with "type", or a JSON schema'
)


def tools_of(tools: Any) -> tuple[ToolDefinition, ...]:
    """The tools in any of their forms. Raises `InvalidRequest` naming the one that has none of them."""
    if isinstance(tools, str | Mapping | ToolDefinition):
        raise InvalidRequest(f"tools is a list; {TOOL}", param="tools")
    try:
        given = list(tools)
    except TypeError as error:
        raise InvalidRequest(f"tools is a list; {TOOL}", param="tools") from error
    return tuple(_tool(number, tool) for number, tool in enumerate(given))


def _tool(number: int, tool: Any) -> ToolDefinition:
    if isinstance(tool, ToolDefinition):
        return tool
    param = f"tools[{number}]"
    if not isinstance(tool, Mapping):
        raise InvalidRequest(f"{param}: {TOOL}", param=param)
    fields = tool.get("function") if tool.get("type") == "function" and "function" in tool else tool
    if not isinstance(fields, Mapping):
        raise InvalidRequest(f"{param}.function: {TOOL}", param=param)
    unknown = sorted(str(name) for name in fields if name not in ToolDefinition.__struct_fields__ and name != "type")
    if unknown or "name" not in fields:
        wrong = f"{unknown[0]} is no field of it" if unknown else "it has no name"
        raise InvalidRequest(f"{param}: {wrong}; {TOOL}", param=param)
    try:
        return msgspec.convert({name: value for name, value in fields.items() if name != "type"}, ToolDefinition)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{param}: {error}; {TOOL}", param=param) from error


def format_of(given: Any) -> OutputFormat | None:
    """The format in any of its forms; None for OpenAI's `{"type": "text"}`. Raises `InvalidRequest`."""
    if not isinstance(given, Mapping):
        if isinstance(given, OutputFormat):
            return given
        raise InvalidRequest(FORMAT, param="format")
    kind = given.get("type")
    fields = dict(given)
    if kind == "text" and len(given) == 1:
        return None
    if kind == "json_schema" and isinstance(given.get("json_schema"), Mapping):  # OpenAI's, with the schema one level down
        fields = {"type": kind, "schema": given["json_schema"].get("schema", {})}
    elif kind not in FORMATS:
        if not (kind in SCHEMA_TYPES or isinstance(kind, list) or (kind is None and SCHEMA_WORDS & given.keys())):
            raise InvalidRequest(f"{kind!r} cannot be used: {FORMAT}", param="format")
        fields = {"type": "json_schema", "schema": fields}
    try:
        converted: OutputFormat = msgspec.convert(fields, OutputFormat)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the format cannot be used: {error}; {FORMAT}", param="format") from error
    return converted
