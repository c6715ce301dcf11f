"""Documents by schema: whatever is drawn from the masks, the schema accepts it, and it can always come to an end."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.grammar.conftest import accepts, compiled, walk
from tripower.backends.grammar import GrammarVocabulary, compile_format, grammar_vocabulary
from tripower.backends.text.layer import GgufTextLayer
from tripower.backends.toy.text import ToyText
from tripower.runtime.engine.constraint import JsonObjectFormat, JsonSchemaFormat
from tripower.runtime.kernel.errors import InvalidRequest

TREE: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"value": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["value", "children"],
            "additionalProperties": False,
        }
    },
}
STRICT: dict[str, Any] = {  # as OpenAI's clients make them from classes
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Meeting",
    "description": "What was agreed.",
    "type": "object",
    "properties": {
        "title": {"type": "string", "title": "Title", "description": "In a few words."},
        "when": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}], "default": None},
        "kind": {"$ref": "#/$defs/Kind", "description": "Of which sort."},
        "people": {"type": "array", "items": {"$ref": "#/$defs/Person"}},
        "minutes": {"type": ["integer", "null"]},
    },
    "required": ["title", "when", "kind", "people", "minutes"],
    "additionalProperties": False,
    "$defs": {
        "Kind": {"type": "string", "enum": ["call", "visit"], "title": "Kind"},
        "Person": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "number", "examples": [3]}},
            "required": ["name", "age"],
            "additionalProperties": False,
        },
    },
}
SCHEMAS: dict[str, Any] = {
    "anything": {},
    "true": True,
    "tree": TREE,
    "strict": STRICT,
    "open object": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3, "minProperties": 1},
    "named by pattern": {"type": "object", "patternProperties": {"^x": {"type": "boolean"}}, "additionalProperties": False},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "null"}, {"type": "string"}],
        "items": False,
        "minItems": 1,
        "maxItems": 2,
    },
    "counted list": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "counted text": {"type": "string", "minLength": 2, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[a-c]{2}-\\d+$"},
    "loose pattern": {"type": "string", "pattern": "é|\\.", "maxLength": 6},
    "integers": {"type": "integer", "minimum": -3, "exclusiveMaximum": 120},
    "numbers": {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
    "values": {"enum": ["é\n", 1, -2.5, None, True, {"x": [1, "y"]}, []]},
    "value": {"const": {"a": [1, {"b": None}]}},
    "either": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "null"}, "maxItems": 2}]},
    "one of": {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": kind}, kind: {"type": "null"}}, "required": ["k", kind]}
            for kind in ("a", "b")
        ]
    },
    "all of": {"allOf": [{"type": "string", "minLength": 1}, {"maxLength": 3}]},
    "beside a reference": {"$ref": "#/$defs/word", "minLength": 2, "$defs": {"word": {"type": "string", "maxLength": 4}}},
    "recursive choice": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}]},
    "formats": {
        "type": "array",
        "prefixItems": [
            {"type": "string", "format": each}
            for each in ("date", "time", "uuid", "ipv4", "ipv6", "hostname", "email", "duration")
        ],
        "minItems": 8,
        "items": False,
    },
    "escaped names": {
        "type": "object",
        "properties": {'q"/~\\ é': {"type": "null"}},
        "required": ['q"/~\\ é'],
        "maxProperties": 1,
    },
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_text_that_can_be_drawn_is_a_document_of_the_schema(name: str, toy: GrammarVocabulary, toy_text: ToyText) -> None:
    format = compiled(SCHEMAS[name], toy)
    for seed in range(6):
        document = walk(format.new_constraint(), toy_text, seed, wild=(0, 20, 90)[seed % 3]).decode()
        jsonschema.validate(json.loads(document), SCHEMAS[name], jsonschema.Draft202012Validator)


@pytest.mark.parametrize("name", ["strict", "tree", "formats", "anything"])
def test_so_it_is_with_a_real_vocabulary(name: str, smollm2: GrammarVocabulary, smollm2_text: GgufTextLayer) -> None:
    format = compiled(SCHEMAS[name], smollm2)
    for seed in range(2):
        document = walk(format.new_constraint(), smollm2_text, seed, wild=30).decode()
        jsonschema.validate(json.loads(document), SCHEMAS[name], jsonschema.Draft202012Validator)


def test_an_object_is_any_object(toy: GrammarVocabulary, toy_text: ToyText) -> None:
    format = compiled(JsonObjectFormat(), toy)
    for seed in range(6):
        assert isinstance(json.loads(walk(format.new_constraint(), toy_text, seed).decode()), dict)
    assert not accepts(JsonObjectFormat(), "[1]", toy)


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ('{"a": 1, "b": [1, 2], "c": {"d": "e"}}', True),
        ("{}", True),
        ('{"a":1}', False),
        ('{ "a": 1}', False),
        ('{"a": 1}\n', False),
        ('\n{"a": 1}', False),
    ],
)
def test_blanks_stand_in_one_way_only(text: str, accepted: bool, toy: GrammarVocabulary) -> None:
    assert accepts(JsonObjectFormat(), text, toy) is accepted


def test_escaped_letters_of_a_schema_are_the_letters(toy: GrammarVocabulary) -> None:  # BB-026
    plain: dict[str, Any] = {
        "type": "object",
        "properties": {"größe": {"enum": ["café", "東京"]}},
        "required": ["größe"],
        "additionalProperties": False,
    }
    escaped = json.loads(json.dumps(plain, ensure_ascii=True))
    assert compiled(plain, toy) is compiled(escaped, toy)
    assert accepts(escaped, '{"größe": "東京"}', toy)
    assert not accepts(escaped, '{"größe": "?"}', toy)


def test_notes_change_nothing(toy: GrammarVocabulary) -> None:
    notes = {
        "$schema": "http://json-schema.org/draft-07/schema#", "$comment": "c", "title": "t", "description": "d",
        "default": 5, "examples": [{}], "deprecated": True, "readOnly": True, "x-order": 1, "uniqueItems": False, "nullable": False,
    }  # fmt: skip
    schema = {
        **notes,
        "$id": "urn:x",
        "type": "object",
        "properties": {"title": {**notes, "type": "integer"}},
        "required": ["title"],
    }
    assert accepts(schema, '{"title": 1}', toy)
    assert not accepts(schema, '{"title": "1"}', toy)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^\\d$", "1", "٣"),
        ("^\\w$", "a", "é"),
        ("^a\\#$", "a#", "a\\#"),  # BB-028: what can be enforced is
        ("^\\p{L}$", "é", "1"),
        ("^\\u00e9$", "é", "e"),
        ("b", "abc", "ac"),
    ],
)
def test_patterns_mean_what_they_mean_in_a_schema(pattern: str, good: str, bad: str, toy: GrammarVocabulary) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert accepts(schema, json.dumps(good, ensure_ascii=False), toy)
    assert not accepts(schema, json.dumps(bad, ensure_ascii=False), toy)


def test_a_string_may_hold_quotes_but_not_end_its_document(toy: GrammarVocabulary) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
    assert accepts(schema, '{"a": "x\\", \\"b\\": 1"}', toy)
    assert not accepts(schema, '{"a": "x", "b": 1}', toy)


_TEXT = ToyText()
_VOCABULARY = grammar_vocabulary(_TEXT, 257)
_LEAVES = st.sampled_from(
    [
        {"type": "string", "maxLength": 4},
        {"type": "integer", "minimum": -5, "maximum": 5},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": [1, "a", None]},
        {"const": "ß"},
    ]
)


def _grown(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(["a", "b", 'c"', "ä"])
    objects = st.tuples(st.dictionaries(names, inner, max_size=3), st.sets(names), st.booleans()).map(
        lambda parts: {
            "type": "object",
            "properties": parts[0],
            "required": sorted(parts[1] & parts[0].keys()),
            "additionalProperties": parts[2],
        }
    )
    lists = st.tuples(inner, st.integers(0, 2), st.integers(2, 3)).map(
        lambda parts: {"type": "array", "items": parts[0], "minItems": parts[1], "maxItems": parts[2]}
    )
    return st.one_of(objects, lists, st.lists(inner, min_size=1, max_size=3).map(lambda members: {"anyOf": members}))


@settings(deadline=None, max_examples=40)
@given(schema=st.recursive(_LEAVES, _grown, max_leaves=6), seed=st.integers(0, 1000))
def test_whatever_the_schema_its_documents_satisfy_it(schema: dict[str, Any], seed: int) -> None:
    document = walk(compiled(schema, _VOCABULARY).new_constraint(), _TEXT, seed, wild=40).decode()
    jsonschema.validate(json.loads(document), schema, jsonschema.Draft202012Validator)


@settings(deadline=None, max_examples=60)
@given(
    schema=st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(
                    ["type", "properties", "items", "$ref", "anyOf", "pattern", "required", "enum", "$defs", "minLength"]
                ),
                inner,
                max_size=4,
            ),
        ),
        max_leaves=8,
    )
)
def test_any_json_is_a_schema_or_refused_with_a_code(schema: Any) -> None:
    try:
        compile_format(JsonSchemaFormat(schema), _VOCABULARY, param="p").new_constraint().mask()
    except InvalidRequest as error:
        assert error.code in ("invalid_schema", "unsupported_schema") and (error.param or "").partition("/")[0] == "p"
