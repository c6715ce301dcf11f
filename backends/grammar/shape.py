"""What a schema means as a whole: whether any document can satisfy it, and whether it can be multiplied out in bounded time.

A schema may refer to itself where a document can end without it: a list of nodes may be empty. One that must hold itself has no finite
document, and a model that is held to it would write until its tokens are used up.
"""

from __future__ import annotations

from math import prod
from typing import Any

import attrs

from tripower.backends.grammar.limits import ALTERNATIVES_MAX, EXPANSIONS_MAX, LEVELS_MAX, invalid_schema
from tripower.backends.grammar.schema import CheckedSchema, Node, fault

_MERGED = ("$ref", "allOf", "anyOf", "oneOf")
_DEFINITIONS = frozenset({"$defs", "definitions"})


@attrs.frozen
class _Measure:
    """Of one schema: its cases, whether they are a product, schemas met on the way to them, the most cases of any schema inside."""

    cases: int = 1
    multiplied: bool = False
    met: int = 1
    most: int = 1


def check_shape(schema: CheckedSchema) -> None:
    """Raises `InvalidRequest` (`invalid_schema`, `unsupported_schema`). Blocks for milliseconds."""
    _check_levels(schema)
    endless = _endless(schema)
    if "" in endless:
        culprit = next((pointer for pointer in reversed(schema.nodes) if pointer in endless and _refers(schema, pointer)), "")
        raise fault("value has no finite document: it must hold itself, or nothing at all satisfies it", culprit, schema.param)
    _Expansion(schema).check()


def _refers(schema: CheckedSchema, pointer: str) -> bool:
    return "$ref" in schema.nodes[pointer].children


def _check_levels(schema: CheckedSchema) -> None:
    """The compiler's stack can be no deeper than all definitions that are referred to, each inside the next."""
    depth: dict[str, int] = {}
    for node in reversed(schema.nodes.values()):
        inner = [child for key, children in node.children.items() if key != "$ref" for child in children]
        depth[node.pointer] = 1 + max((depth[child] for child in inner), default=0)
    targets = {target for node in schema.nodes.values() for target in node.children.get("$ref", ())}
    if sum(depth[target] for target in targets | {""}) > LEVELS_MAX:
        raise invalid_schema(f"and its `$ref`s are more than {LEVELS_MAX} levels deep: use fewer definitions", schema.param)


def _endless(schema: CheckedSchema) -> set[str]:
    """Nodes without a finite document: the least fixed point of `_can_end`, by passes in both directions in turn."""
    finite: set[str] = set()
    order = list(reversed(schema.nodes.values()))
    while True:
        found = {node.pointer for node in order if node.pointer not in finite and _can_end(node, finite)}
        finite |= found
        if not found:
            return schema.nodes.keys() - finite
        order.reverse()


def _can_end(node: Node, finite: set[str]) -> bool:
    content, children = node.content, node.children
    if not all(child in finite for key in ("$ref", "allOf") for child in children.get(key, ())):
        return False
    if not all(any(child in finite for child in children[key]) for key in ("anyOf", "oneOf") if key in children):
        return False
    if "const" in content or "enum" in content:
        return content.get("enum") != []  # what a schema of `false` is read as
    kinds = _kinds(content)
    if kinds - {"array", "object"}:
        return True
    return ("object" in kinds and _object_can_end(node, finite)) or ("array" in kinds and _array_can_end(node, finite))


def _kinds(content: dict[str, Any]) -> set[str]:
    kinds = content.get("type", ["null", "object", "array"])
    return {kinds} if isinstance(kinds, str) else set(kinds)


def _object_can_end(node: Node, finite: set[str]) -> bool:
    others = node.children.get("additionalProperties", [])
    needed = [node.names.get(name, others[0] if others else None) for name in node.content.get("required", ())]
    return all(each is None or each in finite for each in needed)


def _array_can_end(node: Node, finite: set[str]) -> bool:
    least = node.content.get("minItems", 0)
    first = node.children.get("prefixItems", [])
    items = node.children.get("items", [])
    needed = first[:least] + (items[:1] if least > len(first) else [])
    return all(each in finite for each in needed)


class _Expansion:
    """How many cases a schema has when every choice is multiplied out. Recursion is bounded by `limits.LEVELS_MAX`."""

    def __init__(self, schema: CheckedSchema) -> None:
        self._schema = schema
        self._known: dict[str, _Measure] = {}

    def check(self) -> None:
        for pointer in self._schema.nodes:
            measure = self._measure(pointer)
            if (measure.multiplied and measure.cases > ALTERNATIVES_MAX) or measure.met > EXPANSIONS_MAX:
                reason = f"combination of choices has more than {ALTERNATIVES_MAX} cases: write out the ones that are meant"
                raise fault(reason, pointer, self._schema.param, code="unsupported_schema")

    def _measure(self, pointer: str) -> _Measure:
        if pointer in self._known:
            return self._known[pointer]
        self._known[pointer] = _Measure()  # where it comes back to itself
        inner = {
            key: [self._measure(child) for child in children]
            for key, children in self._schema.nodes[pointer].children.items()
            if key not in _DEFINITIONS
        }
        # Members of `allOf` are merged property by property, so choices deep inside them are multiplied as well; so it is with what
        # stands beside a `$ref`.
        merged = [each for key in ("$ref", "allOf") for each in inner.get(key, ())]
        factors = [each.most for each in merged] if len(inner) > 1 or len(merged) > 1 else [each.cases for each in merged]
        factors += [sum(each.cases for each in inner[key]) for key in ("anyOf", "oneOf") if key in inner]
        cases = min(prod(factors), 10 * ALTERNATIVES_MAX)
        self._known[pointer] = _Measure(
            cases=cases,
            multiplied=len(factors) > 1,
            met=min(1 + sum(each.met for key in _MERGED for each in inner.get(key, ())), 2 * EXPANSIONS_MAX),
            most=max([cases, *(each.most for measures in inner.values() for each in measures)]),
        )
        return self._known[pointer]
