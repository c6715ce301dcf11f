"""What cannot be enforced is refused with its place, within bounded time and stack; other formats go on compiling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.backends.grammar.conftest import compiled
from tripower.backends.grammar import GrammarVocabulary, grammar_vocabulary, json_schema_rule
from tripower.backends.grammar.formats import COMPILED_MAX
from tripower.backends.toy.text import ToyText
from tripower.runtime.engine.constraint import ChoiceFormat, GbnfFormat, LarkFormat, OutputFormat, RegexFormat
from tripower.runtime.kernel.errors import InvalidRequest

UNSUPPORTED, INVALID = "unsupported_schema", "invalid_schema"


def refusal(format: Any, vocabulary: GrammarVocabulary) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        compiled(format, vocabulary)
    assert (caught.value.param or "").partition("/")[0] == "the.field" and caught.value.status == 400
    return caught.value


def inside(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a/b": schema}}


@pytest.mark.parametrize(
    ("schema", "code", "keyword", "behind"),
    [
        ({"not": {"type": "string"}}, UNSUPPORTED, "not", "not"),  # BB-025
        ({"unevaluatedProperties": False}, UNSUPPORTED, "unevaluatedProperties", "unevaluatedProperties"),
        ({"type": "string", "pattern": "^(?=a)b"}, UNSUPPORTED, "pattern", "pattern"),
        ({"type": "string", "pattern": "\\q"}, UNSUPPORTED, "pattern", "pattern"),  # BB-028
        ({"type": "string", "pattern": "(a)\\1"}, UNSUPPORTED, "pattern", "pattern"),
        ({"type": "string", "format": "zip-code"}, UNSUPPORTED, "format", "format"),
        ({"type": "string", "format": "unknown"}, UNSUPPORTED, "format", "format"),
        ({"type": "integer", "format": "int32"}, UNSUPPORTED, "format", "format"),
        ({"type": "array", "uniqueItems": True}, UNSUPPORTED, "uniqueItems", "uniqueItems"),
        ({"type": "array", "contains": {}}, UNSUPPORTED, "contains", "contains"),
        ({"if": {}, "then": {}}, UNSUPPORTED, "if", "if"),
        ({"dependentRequired": {"a": ["b"]}}, UNSUPPORTED, "dependentRequired", "dependentRequired"),
        ({"propertyNames": {"pattern": "a"}}, UNSUPPORTED, "propertyNames", "propertyNames"),
        ({"$dynamicRef": "#x"}, UNSUPPORTED, "$dynamicRef", "$dynamicRef"),
        ({"$id": "http://a.example/b"}, UNSUPPORTED, "$id", "$id"),
        ({"madeUp": 1}, UNSUPPORTED, "madeUp", "madeUp"),
        ({"x-guidance": {"lenient": True}}, UNSUPPORTED, "x-guidance", "x-guidance"),
        ({"type": "string", "nullable": True}, UNSUPPORTED, "nullable", "nullable"),
        ({"$ref": "http://a.example/schema"}, UNSUPPORTED, "$ref", "$ref"),
        ({"$ref": "#word"}, UNSUPPORTED, "$ref", "$ref"),
        ({"type": "object", "minProperties": 2}, UNSUPPORTED, "minProperties", "minProperties"),
        ({"oneOf": [{"type": "string"}, {"minLength": 2}]}, UNSUPPORTED, "oneOf", "oneOf"),
        ({"$ref": "#/$defs/none"}, INVALID, "$ref", "$ref"),
        ({"type": "strin"}, INVALID, "type", "type"),
        ({"type": []}, INVALID, "type", "type"),
        ({"enum": []}, INVALID, "enum", "enum"),
        ({"anyOf": []}, INVALID, "anyOf", "anyOf"),
        ({"properties": []}, INVALID, "object", "properties"),
        ({"required": "a"}, INVALID, "required", "required"),
        ({"minLength": -1}, INVALID, "minLength", "minLength"),
        ({"maxItems": True}, INVALID, "maxItems", "maxItems"),
        ({"minimum": 1, "exclusiveMinimum": True}, INVALID, "exclusiveMinimum", "exclusiveMinimum"),
        ({"multipleOf": 0}, INVALID, "multipleOf", "multipleOf"),
        ({"items": 5}, INVALID, "number", "items"),
    ],
)
def test_a_keyword_that_is_not_enforced_is_named_with_its_place(
    schema: dict[str, Any], code: str, keyword: str, behind: str, toy: GrammarVocabulary
) -> None:
    error = refusal(inside(schema), toy)
    assert error.code == code
    assert keyword in error.message
    assert error.message.endswith(f"(at #/properties/a~1b/{behind})")
    assert error.param == f"the.field/properties/a~1b/{behind}"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 5, "maxLength": 2},
        {"type": "integer", "minimum": 5, "maximum": 2},
        {"type": "string", "format": "date", "pattern": "a"},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
    ],
)
def test_what_contradicts_itself_is_refused(schema: dict[str, Any], toy: GrammarVocabulary) -> None:
    assert refusal(schema, toy).code == INVALID


@pytest.mark.parametrize(
    "schema", [[], 5, None, "x", False, {"const": float("nan")}, {"const": "\ud800"}, {"enum": [2**70]}, {1: 2}]
)
def test_what_is_no_schema_is_refused(schema: Any, toy: GrammarVocabulary) -> None:
    from tripower.backends.grammar import compile_format
    from tripower.runtime.engine.constraint import JsonSchemaFormat

    with pytest.raises(InvalidRequest) as caught:
        compile_format(JsonSchemaFormat(schema), toy)
    assert caught.value.code == INVALID


def chain(length: int, link: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Definitions, each of which refers to the next."""
    links = {f"a{index}": link({"$ref": f"#/$defs/a{index + 1}"}) for index in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{length}": {"type": "string"}}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


CASES = [{"anyOf": [{"type": "object", "properties": {f"k{i}{j}": {}}} for j in range(4)]} for i in range(6)]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"$ref": "#"}, "no finite document"),  # BB-029
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "no finite document"),
        ({"type": "object", "properties": {"c": {"$ref": "#"}}, "required": ["c"]}, "no finite document"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "no finite document"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "no finite document"),
        (nested(5000), "nested more than 100"),
        (chain(5000, lambda reference: reference), "more than 5000 schemas"),
        (chain(2000, lambda reference: {"type": "array", "items": reference}), "256 levels"),
        (chain(400, lambda reference: {"anyOf": [{"type": "null"}, reference]}), "256 levels"),
        (chain(25, lambda reference: {"allOf": [{**reference, "minLength": 1}, {**reference, "maxLength": 9}]}), "512 cases"),
        ({"allOf": CASES}, "512 cases"),
        ({"allOf": [{"properties": {"a": case}} for case in CASES]}, "512 cases"),
        ({"properties": {f"p{index}": {} for index in range(1001)}}, "1000 entries"),
        ({"enum": ["x" * 100_000, "y" * 100_000, "z" * 100_000]}, "262144 bytes"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else "schema",
)
def test_what_would_overwhelm_the_compiler_is_refused_before_it(schema: Any, said: str, toy: GrammarVocabulary) -> None:
    assert said in refusal(schema, toy).message
    compiled({"type": "string"}, toy)


@pytest.mark.parametrize(
    "schema",
    [
        nested(40),
        chain(100, lambda reference: {"type": "array", "items": reference}),
        {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
        {"enum": [f"value {index}" for index in range(3000)]},
        {"anyOf": [{"type": "object", "properties": {"k": {"const": index}}, "required": ["k"]} for index in range(600)]},
        {"type": "string", "maxLength": 10_000_000},
        {"type": "array", "items": {}, "minItems": 1_000_000},
        {"const": "lorem ipsum " * 16_000},
    ],
    ids=lambda schema: str(schema)[:30],
)
def test_large_schemas_within_the_limits_compile(schema: Any, toy: GrammarVocabulary) -> None:
    compiled(schema, toy).new_constraint().mask()


@pytest.mark.parametrize(
    ("format", "said"),
    [
        (RegexFormat("["), "unclosed character class"),
        (RegexFormat("(?=a)b"), "look-around"),
        (RegexFormat("a\\q"), "unrecognized escape"),
        (RegexFormat("\ud800"), "surrogate"),
        (RegexFormat("a" * 300_000), "262144"),
        (RegexFormat("(" * 60_000 + "a" + ")" * 60_000), "nested"),
        (ChoiceFormat(()), "0 choices"),
        (ChoiceFormat(("x",) * 2001), "2001 choices"),
        (ChoiceFormat(("\ud800",)), "surrogate"),
        (LarkFormat(""), "no start rule"),
        (LarkFormat("start: foo"), 'unknown name: "foo" (line 1, column 8)'),
        (LarkFormat("start: start"), "no text satisfies it"),
        (LarkFormat("start: <|none|>"), "unknown special token"),
        (LarkFormat("start: @other"), "unknown grammar"),
        (LarkFormat('start: %json {"a":'), "no JSON"),
        (LarkFormat('%llguidance none\nstart: "a"'), "no JSON"),
        (LarkFormat('%llguidance 5\nstart: "a"'), "no object"),
        (LarkFormat("start: " + "(" * 5000 + '"a"' + ")" * 5000), "levels deep"),
        (LarkFormat("start: a0\n" + "\n".join(f"a{i}: a{i + 1}" for i in range(5000)) + '\na5000: "x"'), "500 rules"),
        (
            LarkFormat("start: a0\n" + "\n".join(f"a{i}: " + "(" * 20 + f"a{i + 1}" + ")" * 20 for i in range(400))),
            "levels deep",
        ),
        (GbnfFormat("root ::= foo"), "no GBNF"),
        (GbnfFormat('root ::= "a'), "no GBNF"),
        (GbnfFormat("root ::= " + "(" * 3000 + '"a"' + ")" * 3000), "nested too deeply"),
    ],
    ids=lambda value: str(value)[:30].encode("ascii", "replace").decode() if not isinstance(value, str) else "said",
)
def test_patterns_choices_and_grammars_are_refused_likewise(format: OutputFormat, said: str, toy: GrammarVocabulary) -> None:
    error = refusal(format, toy)
    assert error.code == "invalid_grammar" and said in error.message
    assert len(error.message) < 600


@pytest.mark.parametrize("schema", ['{"not": {}}', '{"x-guidance": {"lenient": true}, "not": {}}', '{"$ref": "#"}'])
def test_a_schema_inside_a_grammar_is_held_to_the_same_rules(schema: str, toy: GrammarVocabulary) -> None:
    assert refusal(LarkFormat(f'start: "a" %json {schema}'), toy).code in (UNSUPPORTED, INVALID)


def test_a_rule_for_an_unenforceable_schema_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        json_schema_rule({"not": {}}, "tools[0].parameters")
    assert caught.value.param == "tools[0].parameters/not"


def test_what_was_compiled_is_kept_within_a_bound() -> None:
    vocabulary = grammar_vocabulary(layer := ToyText(), 257)
    first = compiled({"const": 0}, vocabulary)
    assert compiled({"const": 0}, vocabulary) is first
    for number in range(1, COMPILED_MAX + 1):
        compiled({"const": number}, vocabulary)
    assert len(vocabulary.compiled) == COMPILED_MAX
    assert compiled({"const": 0}, vocabulary) is not first
    assert layer.end_tokens
