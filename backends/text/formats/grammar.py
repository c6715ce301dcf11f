"""Grammars that hold an answer to its calls, in llguidance's dialect of Lark.

An answer is reasoning, where the model does that, and then calls, the caller's document, or text with calls whose arguments are
checked. Reasoning and text are free up to the marker that ends them. A marker that is a control token of the vocabulary is written
as that token (`<[17]>`), since control tokens have no text in a grammar; any other is written as its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tripower.backends.grammar.lark import gbnf_as_lark, json_schema_rule
from tripower.backends.text.formats.family import ThoughtFormat, ToolFormat
from tripower.runtime.engine.constraint import (
    ChoiceFormat,
    GbnfFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    LarkFormat,
    OutputFormat,
    RegexFormat,
)
from tripower.runtime.engine.contract import ToolDefinition
from tripower.runtime.kernel.errors import InvalidRequest

PARALLEL_CALLS_MAX = 16
"""Of one enforced answer: a small model does not stop by itself."""
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
ASKED = "response_format"
_ANYTHING = "/(?s:.*)/"
_SLASH = re.compile(r"\\.|/|\n", re.DOTALL)

Markers = Mapping[str, int]
"""Markers that are control tokens of the vocabulary."""


class AnswerGrammar:
    """Rules of one grammar, collected under `start`."""

    def __init__(self, markers: Markers) -> None:
        self._markers = markers
        self._rules: list[str] = []

    def lark(self, start: str) -> LarkFormat:
        """The whole grammar."""
        return LarkFormat("\n".join([f"start: {start}", *self._rules]) + "\n")

    def thought(self, form: ThoughtFormat, *, opened: bool) -> str:
        """Reasoning before the answer: already opened by the prompt, or as the model likes."""
        self._rules.append(self._up_to("thought", form.end))
        self._rules.append("SPACE: /[ \\n]{0,4}/")
        return "thought SPACE" if opened else f"({self._marker(form.begin)} thought SPACE)?"

    def calls(self, form: ToolFormat, tools: Sequence[ToolDefinition], *, parallel: bool) -> str:
        """One call of one of these tools, or several."""
        self._add_call(form, tools)
        more = PARALLEL_CALLS_MAX - 1 if parallel and form.between is not None else 0
        begin = "" if form.bare else self._marker(form.begin)
        before, after = _literal(form.before), f"{_literal(form.after)} {self._marker(form.end)}"
        repeated = f"({_literal(form.between or '')} {{}}){{{{0,{more}}}}}" if more else ""
        if form.listed:
            return f"{begin} {before} call {repeated.format('call')} {after}"
        self._rules.append(f"one_call: {begin} {before} call {after}")
        return f"one_call {repeated.format('one_call')}"

    def text_with_calls(self, form: ToolFormat, tools: Sequence[ToolDefinition], *, parallel: bool) -> str:
        """Text in which whatever follows a call's marker is a call of one of these tools."""
        self._add_call(form, tools)
        self._rules.append(self._up_to("lead", form.begin))
        self._rules.append("GAP: /[ \\n]{0,4}/")
        rest = "" if form.begin in self._markers else f" & ~/(?s:.*){_escaped(form.begin)}(?s:.*)/"
        self._rules.append(f"TAIL: {_ANYTHING}{rest}")
        closing = f"GAP {self._marker(form.end)}" if form.end else ""
        inner = f'"[" GAP call (GAP "," GAP call){{0,{PARALLEL_CALLS_MAX - 1}}} GAP "]"' if form.listed and parallel else "call"
        inner = '"[" GAP call GAP "]"' if form.listed and not parallel else inner
        return f"(lead GAP {inner} {closing}){'*' if parallel else '?'} TAIL"

    def document(self, asked: OutputFormat) -> str:
        """The caller's own format. Raises `InvalidRequest` for one that cannot be enforced."""
        match asked:
            case JsonObjectFormat():
                rule = json_schema_rule({"type": "object"}, ASKED)
            case JsonSchemaFormat(schema):
                rule = json_schema_rule(schema, ASKED)
            case RegexFormat(pattern):
                rule = f"/{_SLASH.sub(_protect, pattern)}/"
            case ChoiceFormat(choices):
                rule = " | ".join(map(_literal, choices))
            case LarkFormat(grammar):
                rule = f"%lark {{\n{grammar}\n}}"
            case GbnfFormat(grammar):
                rule = f"%lark {{\n{gbnf_as_lark(grammar, ASKED)}\n}}"
        self._rules.append(f"document: {rule}")
        return "document"

    def _add_call(self, form: ToolFormat, tools: Sequence[ToolDefinition]) -> None:
        self._rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
        for index, tool in enumerate(tools):
            head = f'{{"name": {json.dumps(tool.name)}, "{form.arguments}": '
            as_object = f'{_literal(head)} arguments_{index} "}}"'
            as_named = f"{_literal(tool.name)} {self._marker(form.named)} arguments_{index}"
            self._rules.append(f"call_{index}: {as_named if form.named else as_object}")
            rule = json_schema_rule(arguments_schema(tool, index), f"tools[{index}].function.parameters")
            self._rules.append(f"arguments_{index}: {rule}")

    def _marker(self, text: str) -> str:
        return f"<[{self._markers[text]}]>" if text in self._markers else _literal(text)

    def _up_to(self, rule: str, marker: str) -> str:
        """A rule for any text up to a marker and with it."""
        if marker in self._markers:
            return f"{rule}: {_ANYTHING} {self._marker(marker)}"
        return f"{rule}[suffix={_literal(marker)}]: {_ANYTHING}"


def arguments_schema(tool: ToolDefinition, index: int) -> dict[str, Any]:
    """The schema of a tool's arguments, which are an object always."""
    if not tool.parameters:
        return NO_ARGUMENTS
    schema = dict(tool.parameters)
    if schema.setdefault("type", "object") != "object":
        raise InvalidRequest(
            f"the arguments of {tool.name} have to be an object: give parameters the type object",
            param=f"tools[{index}].function.parameters.type",
        )
    return schema


def _literal(text: str) -> str:
    return json.dumps(text) if text else ""


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", "\\/")


def _protect(found: re.Match[str]) -> str:
    text = found[0]
    return {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}.get(text, text)
