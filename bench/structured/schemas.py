"""Fifty schemas as services send them: ten shapes about five things each. All are bounded, so that every document ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

THINGS: tuple[tuple[str, str, tuple[str, ...], int], ...] = (
    ("person", "name", ("friend", "colleague", "stranger"), 120),
    ("book", "title", ("novel", "poetry", "travel", "science"), 900),
    ("city", "place", ("small", "large"), 40),
    ("meal", "dish", ("breakfast", "lunch", "dinner"), 12),
    ("Gerät", "größe", ("klein", "mittel", "groß"), 77),
)
"""A thing, a property of it, kinds of it, how many of it there are at most."""
NOTE: Schema = {"type": "string", "maxLength": 24}


def bench_schemas() -> Iterator[tuple[str, Schema]]:
    """A prompt and a schema for each of them."""
    for thing, label, kinds, most in THINGS:
        for number, schema in enumerate(_shapes(thing, label, kinds, most), 1):
            yield f"Describe a {thing} as JSON, form {number}:\n", schema


def _shapes(thing: str, label: str, kinds: tuple[str, ...], most: int) -> Iterator[Schema]:
    kind: Schema = {"type": "string", "enum": list(kinds)}
    count: Schema = {"type": "integer", "minimum": 0, "maximum": most}
    one = _object({label: NOTE, "kind": kind, "count": count})
    yield _object({label: NOTE})
    yield one
    yield _object({"thing": {"const": thing}, "kind": kind, "known": {"type": "boolean"}})
    yield {"type": "array", "items": one, "minItems": 1, "maxItems": 3}
    yield _object({thing: one, "next": {"anyOf": [one, {"type": "null"}]}})
    yield _object(
        {"since": {"type": "string", "format": "date"}, "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}, label: NOTE}
    )
    yield {"oneOf": [_object({"is": {"const": each}, label: NOTE}) for each in kinds]}
    yield {**_object({"root": {"$ref": "#/$defs/node"}}), "$defs": {"node": _node(label, depth=0)}}
    named = {"^[a-z]{1,12}$": count}
    yield {"type": "object", "patternProperties": named, "additionalProperties": False, "minProperties": 1, "maxProperties": 3}
    yield {
        "type": "array",
        "prefixItems": [kind, {"type": ["integer", "null"], "minimum": -9, "maximum": 9}, NOTE],
        "items": False,
        "minItems": 3,
    }


def _object(properties: dict[str, Schema]) -> Schema:
    """As OpenAI's strict mode wants it."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _node(label: str, depth: int) -> Schema:
    """A tree of at most three levels."""
    if depth == 2:
        return _object({label: NOTE})
    return _object({label: NOTE, "inside": {"type": "array", "items": _node(label, depth + 1), "maxItems": 2}})


def endless_schema() -> Schema:
    """A list of small objects that is longer than any answer of the bench."""
    item = _object(
        {
            "name": NOTE,
            "kind": {"enum": ["a", "b", "c"]},
            "count": {"type": "integer"},
            "tags": {"type": "array", "items": NOTE},
        }
    )
    return {"type": "array", "items": item, "minItems": 10_000}
