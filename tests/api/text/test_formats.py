"""Formats of answers: the many ways to ask for one, and that the answer has it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.serving import CHAT, COMPLETIONS, serving_toy
from tripower.api.http.wire import CHAT as DECODER
from tripower.backends.grammar import formats
from tripower.backends.grammar.limits import CHOICES_MAX, FORMAT_BYTES_MAX, NESTING_MAX
from tripower.runtime.engine.constraint import (
    ChoiceFormat,
    GbnfFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    LarkFormat,
    RegexFormat,
)
from tripower.runtime.kernel import InvalidRequest

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
WRAPPED = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
GBNF = 'root ::= "yes" | "no"'
LARK = 'start: "yes" | "no"'
TALK = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], "seed": 7, "max_tokens": 200}


def asked_for(**fields: Any) -> Any:
    return DECODER.decode(json.dumps({"messages": TALK["messages"]} | fields).encode(), strict=True)[0].generation("m").format


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, JsonObjectFormat()),
        ({"response_format": WRAPPED}, JsonSchemaFormat(SCHEMA)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": False}}},
            JsonSchemaFormat(SCHEMA),
        ),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, JsonSchemaFormat(SCHEMA)),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": True}}}, JsonSchemaFormat(True)),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"json": SCHEMA}}, JsonSchemaFormat(SCHEMA)),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, JsonSchemaFormat(SCHEMA)),
        ({"structured_outputs": {"regex": "a+"}}, RegexFormat("a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, ChoiceFormat(("a", "b"))),
        ({"structured_outputs": {"grammar": GBNF}}, GbnfFormat(GBNF)),
        ({"structured_outputs": {"json_object": True}}, JsonObjectFormat()),
        ({"guided_json": SCHEMA}, JsonSchemaFormat(SCHEMA)),
        ({"guided_regex": "a+"}, RegexFormat("a+")),
        ({"guided_choice": ["a", "b"]}, ChoiceFormat(("a", "b"))),
        ({"guided_grammar": LARK}, LarkFormat(LARK)),
        ({"guided_regex": None, "guided_choice": None, "grammar": None, "json_schema": None, "guided_json": None}, None),
        ({"guided_json": {}}, JsonSchemaFormat({})),
        ({"json_schema": {}}, JsonSchemaFormat({})),
        ({"structured_outputs": {"json": {}}}, JsonSchemaFormat({})),
        ({"grammar": GBNF}, GbnfFormat(GBNF)),
        ({"json_schema": SCHEMA}, JsonSchemaFormat(SCHEMA)),
    ],
)
def test_every_name_of_a_format_is_known(fields: Any, expected: Any) -> None:
    assert asked_for(**fields) == expected


DEEP: Any = {}
for _ in range(NESTING_MAX):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize("name", ["structured_outputs", "guided_choice"])
def test_the_limits_of_a_format_are_those_of_the_compiler(name: str) -> None:
    texts = [f"text {number}" for number in range(CHOICES_MAX)]

    def asked(texts: list[str]) -> Any:
        return asked_for(**{name: {"choice": texts} if name == "structured_outputs" else texts})

    assert asked(texts) == ChoiceFormat(tuple(texts))
    with pytest.raises(InvalidRequest) as caught:
        asked([*texts, "one more"])
    assert (caught.value.param or "").startswith(name) and str(CHOICES_MAX) in caught.value.message
    assert asked_for(guided_regex="a" * FORMAT_BYTES_MAX) == RegexFormat("a" * FORMAT_BYTES_MAX)
    assert asked_for(guided_json=DEEP["items"]) == JsonSchemaFormat(DEEP["items"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object", "strictly": True}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": DEEP}}}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice[0]"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_json": "5"}, "guided_json"),
        ({"guided_json": ""}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_grammar": ""}, "guided_grammar"),
        ({"grammar": ""}, "grammar"),
        ({"structured_outputs": {"json": ""}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"grammar": GBNF, "json_schema": SCHEMA}, "json_schema"),
    ],
)
def test_a_format_that_says_too_little_or_too_much_is_refused(fields: Any, param: str) -> None:  # BB-028
    with pytest.raises(InvalidRequest) as caught:
        asked_for(**fields)
    assert caught.value.param == param and len(caught.value.message) < 300


@pytest.mark.parametrize(
    "fields", [{"response_format": WRAPPED}, {"guided_json": SCHEMA, "temperature": 0}, {"json_schema": SCHEMA, "n": 3}]
)
async def test_an_answer_has_the_schema_that_was_asked_for(fields: Any) -> None:
    async with serving_toy() as server:
        whole = (await server.ask(CHAT, TALK | fields)).json
        stream = await server.ask(CHAT, TALK | fields | {"stream": True, "n": 1})
    for choice in whole["choices"]:
        assert json.loads(choice["message"]["content"])["a"] in ("x", "y") and choice["finish_reason"] == "stop"
    assert stream.text == whole["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"guided_choice": ["red", "green"]}, ("red", "green")),
        ({"guided_regex": "(yes|no)!"}, ("yes!", "no!")),
        ({"grammar": GBNF}, ("yes", "no")),
        ({"guided_grammar": LARK}, ("yes", "no")),
    ],
)
async def test_a_completion_is_held_to_its_grammar(fields: Any, expected: tuple[str, ...]) -> None:
    async with serving_toy() as server:
        answer = await server.ask(COMPLETIONS, {"model": "toy", "prompt": "abc", "max_tokens": 50} | fields)
    assert answer.json["choices"][0]["text"] in expected


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields",
    [{"guided_regex": "("}, {"grammar": "root ::= ("}, {"json_schema": {"type": "thing"}}, {"guided_grammar": "start: %"}],
)
async def test_a_format_that_cannot_be_enforced_is_refused_before_anything_is_streamed(fields: Any, stream: bool) -> None:
    """With its real status. BB-098"""
    async with serving_toy() as server:
        answer = await server.ask(CHAT, TALK | fields | {"stream": stream})
        assert server.actors.active() == 0
    assert answer.status == 400 and answer.error["type"] == "invalid_request_error" and len(answer.body) < 2000


async def test_an_answer_whose_format_reaches_a_limit_is_a_bad_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LEXER_STATES_MAX", 2000)
    heavy = "(" + "|".join(f"[a-z ]*{letter}[a-z ]{{{60 + at}}}" for at, letter in enumerate("abcdefghij")) + ")*x{9000}"
    async with serving_toy() as server:
        answer = await server.ask(COMPLETIONS, {"model": "toy", "prompt": "x", "max_tokens": 600, "guided_regex": heavy})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "format_exhausted", "guided_regex")


async def test_a_refused_schema_is_named_by_its_place_in_the_field() -> None:
    wrapped = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"properties": {"a": {"not": {}}}}}}
    async with serving_toy() as server:
        answer = await server.ask(CHAT, TALK | {"response_format": wrapped})
    assert answer.error["param"] == "response_format.json_schema.schema/properties/a/not"
