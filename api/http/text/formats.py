"""What an answer has to look like, by whichever of the many names a client has for it.

OpenAI says `response_format`, vLLM `structured_outputs` and once `guided_…`, llama-server `grammar` and `json_schema`. One of them may be
given. Whatever cannot be enforced is refused, and an option of a format that nobody knows too: it might have meant something.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tripower.api.http.text.nesting import check_depth
from tripower.backends.grammar.limits import CHOICES_MAX, FORMAT_BYTES_MAX, NESTING_MAX
from tripower.runtime.engine import OutputFormat
from tripower.runtime.engine.constraint import (
    ChoiceFormat,
    GbnfFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    LarkFormat,
    RegexFormat,
)
from tripower.runtime.kernel import InvalidRequest

Pattern = Annotated[str, Meta(max_length=FORMAT_BYTES_MAX)]
Choices = Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1, max_length=CHOICES_MAX)]
_GBNF_RULE = re.compile(r"^\s*[A-Za-z][A-Za-z0-9-]*\s*::=", re.MULTILINE)


class JsonSchemaIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenAI's wrapper around a schema. It is enforced whether `strict` is said or not."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormatIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`text`, `json_object` or `json_schema`. A `schema` beside `json_object` is llama-server's way to give one."""

    type: str
    json_schema: JsonSchemaIn | None = None
    schema: dict[str, Any] | bool | None = None


class StructuredOutputsIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's way: one of these."""

    json: dict[str, Any] | str | None = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Pattern | None = None
    json_object: bool | None = None


class FormatFields(msgspec.Struct, frozen=True, kw_only=True):
    """Every field of a request that says what the answer looks like."""

    response_format: ResponseFormatIn | None = None
    structured_outputs: StructuredOutputsIn | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: Pattern | None = None
    guided_choice: tuple[str, ...] | None = None
    guided_grammar: Pattern | None = None
    grammar: Pattern | None = None
    json_schema: dict[str, Any] | None = None

    def output_format(self) -> tuple[str, OutputFormat] | None:
        """What is asked for, and the field that says so; None: anything.

        Raises `InvalidRequest` for several, and for one that says too little.
        """
        if not self._asks():
            return None
        found = list(self._formats())
        if len(found) > 1:
            raise InvalidRequest(f"{found[1][0]}: the format is given by {found[0][0]} already; give one", param=found[1][0])
        return found[0] if found else None

    def _asks(self) -> bool:
        """The quick way for a request that says nothing."""
        return not (
            self.response_format is None
            and self.structured_outputs is None
            and self.guided_json is None
            and self.guided_regex is None
            and self.guided_choice is None
            and self.guided_grammar is None
            and self.grammar is None
            and self.json_schema is None
        )

    def _formats(self) -> Iterator[tuple[str, OutputFormat]]:
        if self.response_format is not None and (asked := _from_response_format(self.response_format)) is not None:
            yield asked
        if self.structured_outputs is not None:
            yield from _from_structured_outputs(self.structured_outputs)
        if self.guided_json is not None:
            yield "guided_json", _json_schema("guided_json", self.guided_json)
        if self.guided_regex is not None:
            yield "guided_regex", RegexFormat(_text("guided_regex", self.guided_regex))
        if self.guided_choice is not None:
            yield "guided_choice", ChoiceFormat(_choices("guided_choice", self.guided_choice))
        if self.guided_grammar is not None:
            yield "guided_grammar", _grammar(_text("guided_grammar", self.guided_grammar))
        if self.grammar is not None:
            yield "grammar", GbnfFormat(_text("grammar", self.grammar))
        if self.json_schema is not None:
            yield "json_schema", _json_schema("json_schema", self.json_schema)


def _from_response_format(given: ResponseFormatIn) -> tuple[str, OutputFormat] | None:
    """The place of the schema, and the format."""
    if given.type == "json_schema":
        schema = given.schema if given.json_schema is None else given.json_schema.schema
        path = "response_format.json_schema"
        if schema is None:
            missing = path if given.json_schema is None else f"{path}.schema"
            raise InvalidRequest(f"{missing} is missing", param=missing)
        place = "response_format.schema" if given.json_schema is None else f"{path}.schema"
        return place, _json_schema(place, schema)
    if given.json_schema is not None:
        raise InvalidRequest(
            "response_format.json_schema goes with the type json_schema only", param="response_format.json_schema"
        )
    if given.type == "json_object":
        if given.schema is None:
            return "response_format", JsonObjectFormat()
        return "response_format.schema", _json_schema("response_format.schema", given.schema)
    if given.type != "text" or given.schema is not None:
        raise InvalidRequest("response_format.type is text, json_object or json_schema", param="response_format.type")
    return None


def _from_structured_outputs(given: StructuredOutputsIn) -> Iterator[tuple[str, OutputFormat]]:
    if given.json is not None:
        yield "structured_outputs.json", _json_schema("structured_outputs.json", given.json)
    if given.regex is not None:
        yield "structured_outputs.regex", RegexFormat(_text("structured_outputs.regex", given.regex))
    if given.choice is not None:
        yield "structured_outputs.choice", ChoiceFormat(given.choice)
    if given.grammar is not None:
        yield "structured_outputs.grammar", _grammar(_text("structured_outputs.grammar", given.grammar))
    if given.json_object:
        yield "structured_outputs.json_object", JsonObjectFormat()


def _json_schema(param: str, schema: Any) -> JsonSchemaFormat:
    """vLLM takes the text of a schema too."""
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise InvalidRequest(f"{param}: is not the text of a JSON schema", param=param) from error
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{param}: a JSON schema is an object", param=param)
    check_depth(schema, param, NESTING_MAX)
    return JsonSchemaFormat(schema)


def _choices(param: str, choices: tuple[str, ...]) -> tuple[str, ...]:
    if not choices or "" in choices or len(choices) > CHOICES_MAX:
        raise InvalidRequest(f"{param} has 1 to {CHOICES_MAX} texts, none of them empty", param=param)
    return choices


def _text(param: str, given: str) -> str:
    """An empty pattern or grammar is nobody's wish for an empty answer; null asks for nothing."""
    if not given:
        raise InvalidRequest(f"{param} is empty: give a text, or leave it out", param=param)
    return given


def _grammar(grammar: str) -> OutputFormat:
    """vLLM's grammars come in both notations; only llama.cpp's writes `::=`."""
    return GbnfFormat(grammar) if _GBNF_RULE.search(grammar) else LarkFormat(grammar)
