"""Schemas that cannot be enforced, by every route: a 400 before anything is streamed, never a free answer, and nobody else notices."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.robustness.routes import ROUTES, Route, serving_small, text_of


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


UNENFORCEABLE: dict[str, dict[str, Any]] = {
    "not": {"not": {"type": "string"}},  # BB-025
    "look-ahead": {"type": "string", "pattern": "^(?=a)b$"},  # BB-025
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},  # BB-025
    "unknown escape": {"type": "string", "pattern": "^\\#\\y$"},  # BB-028
    "reference to itself": {"$ref": "#"},  # BB-029
    "reference in a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},  # BB-029
    "reference to nowhere": {"$ref": "#/$defs/a"},
    "reference elsewhere": {"$ref": "https://example.com/schema.json"},
    "deep": deep(500),  # BB-029
    "no such type": {"type": "thing"},
}
LETTERS = {
    "type": "object",
    "properties": {"größe": {"enum": ["café", "東京"]}},
    "required": ["größe"],
    "additionalProperties": False,
}
TREE = {
    "type": "object",
    "properties": {"n": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}},
    "additionalProperties": False,
}


def asking_for(route: Route, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema in this dialect's words."""
    match route.path:
        case "/v1/responses":
            return {"text": {"format": {"type": "json_schema", "name": "s", "schema": schema, "strict": True}}}
        case "/v1/messages":
            return {"output_format": {"type": "json_schema", "schema": schema}}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}}


# BB-025, BB-028, BB-029, BB-098
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path.rpartition("v1/")[2])
async def test_a_schema_that_cannot_be_enforced_is_400_and_others_go_on(route: Route) -> None:
    async with serving_small(context=8192) as server:
        for case, schema in UNENFORCEABLE.items():
            for stream in (False, True):
                with trio.fail_after(5):
                    answer = await server.ask(route.path, route.body(stream=stream) | asking_for(route, schema))
                assert (answer.status, route.error(answer)["type"]) == (400, "invalid_request_error"), case
        assert server.actors.active() == 0
        assert (await server.ask(route.path, route.body())).status == 200


# BB-026, BB-029
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path.rpartition("v1/")[2])
async def test_letters_and_trees_of_a_schema_come_out_as_they_were_meant(route: Route) -> None:
    async with serving_small(context=8192) as server:
        for escaped in (False, True):
            body = route.body() | {route.limit: 2000} | asking_for(route, LETTERS)
            data = json.dumps(body, ensure_ascii=escaped).encode()
            assert (b"\\u6771" in data) == escaped
            text = text_of(route, await server.ask(route.path, data, headers={"content-length": str(len(data))}))
            assert json.loads(text)["größe"] in ("café", "東京")
        tree = await server.ask(route.path, route.body() | {route.limit: 4000} | asking_for(route, TREE))
        found = json.loads(text_of(route, tree))
        while found:
            assert set(found) == {"n"} and len(found["n"]) <= 1
            found = found["n"][0] if found["n"] else {}
