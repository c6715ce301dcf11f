"""The schemas of `tripower bench structured`, and its judge."""

from __future__ import annotations

import pytest

from tests.backends.grammar.conftest import walk
from tripower.backends.grammar import compile_format, grammar_vocabulary
from tripower.backends.toy.text import ToyText
from tripower.bench.structured.command import fault_of
from tripower.bench.structured.schemas import bench_schemas, endless_schema
from tripower.runtime.engine.constraint import JsonSchemaFormat


def test_there_are_fifty_schemas_and_every_document_of_them_is_accepted_by_the_judge() -> None:
    layer = ToyText()
    vocabulary = grammar_vocabulary(layer, 257)
    schemas = [schema for _, schema in bench_schemas()]
    assert len({str(schema) for schema in schemas}) == 50
    for number, schema in enumerate(schemas):
        text = walk(compile_format(JsonSchemaFormat(schema), vocabulary).new_constraint(), layer, number, wild=40).decode()
        assert fault_of(text, schema) == ""


@pytest.mark.parametrize(
    ("text", "fault"), [('{"name": 1}', "is not of type"), ('{"name": "a', "no JSON"), ("{}", "required"), ("", "no JSON")]
)
def test_the_judge_says_what_is_wrong(text: str, fault: str) -> None:
    _, schema = next(bench_schemas())
    assert fault in fault_of(text, schema)


def test_an_answer_that_shall_not_end_cannot() -> None:
    layer = ToyText()
    constraint = compile_format(JsonSchemaFormat(endless_schema()), grammar_vocabulary(layer, 257)).new_constraint()
    for byte in b'[{"name": "x", "kind": "a", "count": 1, "tags": []}':
        assert not constraint.mask()[256 // 32] & 1
        constraint.accept(byte)
    constraint.mask()
    constraint.accept(ord("]"))
    assert not constraint.mask()[256 // 32] & 1
