"""Checks a JSON Schema before it becomes a grammar, and leaves in it only what is enforced.

llguidance refuses what it knows that it cannot enforce, but takes keywords that it does not know for notes, has options that switch the
refusals off, and does not say where in a schema a fault is. Here every keyword is one that is enforced, a note, or an error with its
place as a JSON pointer. What the compiler cannot bear is refused as well: see `limits` and `shape`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

import attrs

from tripower.backends.grammar import keywords
from tripower.backends.grammar.limits import (
    FORMAT_BYTES_MAX,
    PROPERTIES_MAX,
    SCHEMAS_MAX,
    check_json,
    invalid_schema,
)
from tripower.backends.grammar.patterns import PatternRefused, portable_pattern, unspelt
from tripower.runtime.kernel.errors import InvalidRequest

NOTHING: dict[str, Any] = {"enum": []}
"""What a schema of `false` is read as."""
BOUND_MAX = 2**63 - 1024
"""The largest float64 below what the compiler's integers hold."""


@attrs.frozen
class Node:
    """A schema inside a schema: what is enforced of it, and the places of the schemas in it by keyword."""

    pointer: str
    content: dict[str, Any]
    children: dict[str, list[str]] = attrs.Factory(dict)
    """`anyOf` → the pointers of its members, and so on. `$ref` → the one that it points at."""
    names: dict[str, str] = attrs.Factory(dict)
    """Properties by name → pointer."""


@attrs.frozen
class CheckedSchema:
    """A schema that may be given to the compiler: its nodes by JSON pointer, a parent before its children, and its text."""

    nodes: dict[str, Node]
    document: dict[str, Any]
    param: str | None

    @property
    def text(self) -> str:
        """Compact JSON without anything that is not enforced. One text for one meaning, whatever was escaped or in what order notes
        stood."""
        return json.dumps(self.document, ensure_ascii=False, separators=(",", ":"))


def read_schema(schema: Any, param: str | None = None) -> CheckedSchema:
    """Check every keyword. Raises `InvalidRequest`: `invalid_schema`, `unsupported_schema`. Blocks for milliseconds."""
    check_json(schema, param)
    reader = _Reader(param)
    document = reader.read(schema, "")
    if isinstance(document, bool):
        document = {} if document else {"enum": []}
    checked = CheckedSchema(reader.nodes, document, param)
    if len(checked.text.encode()) > FORMAT_BYTES_MAX:
        raise invalid_schema(f"has more than {FORMAT_BYTES_MAX} bytes: make it smaller, or use `$ref`", param)
    reader.link()
    return checked


def place(pointer: str) -> str:
    """A JSON pointer for people: `#` is the whole schema."""
    return f"#{pointer}"


def fault(reason: str, pointer: str, param: str | None, *, code: str = "invalid_schema") -> InvalidRequest:
    """The error of one place in a schema: `param` is the field that holds the schema."""
    where = None if param is None else f"{param}{pointer}"
    return InvalidRequest(f"the schema's {reason} (at {place(pointer)})", code=code, param=where)


class _Reader:
    """One walk over a schema. Recursion is bounded by `limits.NESTING_MAX`."""

    def __init__(self, param: str | None) -> None:
        self.nodes: dict[str, Node] = {}
        self._param = param

    def read(self, schema: Any, pointer: str) -> Any:
        """The same schema without notes."""
        if isinstance(schema, bool):
            self._add(Node(pointer, {} if schema else NOTHING))
            return schema
        if not isinstance(schema, dict):
            raise fault(f"value is a {_kind(schema)} where an object or a boolean belongs", pointer, self._param)
        node = self._add(Node(pointer, {}))
        for key, value in schema.items():
            if not self._is_note(key, value, pointer):
                node.content[key] = self._read_keyword(node, key, value)
        self._check_counts(node)
        return node.content

    def _add(self, node: Node) -> Node:
        if len(self.nodes) >= SCHEMAS_MAX:
            raise invalid_schema(f"has more than {SCHEMAS_MAX} schemas inside it: make it smaller", self._param)
        self.nodes[node.pointer] = node
        return node

    def _is_note(self, key: str, value: Any, pointer: str) -> bool:
        if key in ("$id", "id") and pointer and isinstance(value, str) and not value.startswith("#"):
            reason = f"keyword `{key}` inside a schema would change what `$ref` means: leave it out"
            raise fault(reason, f"{pointer}/{_escaped(key)}", self._param, code="unsupported_schema")
        if key in keywords.ANNOTATIONS or (key.startswith("x-") and key != keywords.OPTIONS):
            return True
        return any(
            value is harmless or (value == harmless and isinstance(value, dict)) for harmless in keywords.HARMLESS.get(key, ())
        )

    def _read_keyword(self, node: Node, key: str, value: Any) -> Any:
        here = f"{node.pointer}/{_escaped(key)}"
        if key in keywords.SCHEMA_MAPS:
            return self._read_map(node, key, self._of(dict, value, here), here)
        if key in keywords.SCHEMA_LISTS or (key == "items" and isinstance(value, list)):
            return self._read_list(node, key, self._of(list, value, here), here)
        if key in keywords.SCHEMAS:
            node.children[key] = [here]
            return self.read(value, here)
        if (check := _CHECKS.get(key)) is None:
            cure = keywords.CURES.get(key, keywords.NO_CURE)
            raise fault(f"keyword `{key[:60]}` cannot be enforced: {cure}", here, self._param, code="unsupported_schema")
        if complaint := check(value):
            unsupported = key in ("format", "$ref") and isinstance(value, str)
            code = "unsupported_schema" if unsupported else "invalid_schema"
            raise fault(f"keyword `{key}` {complaint}", here, self._param, code=code)
        return self._enforceable(key, value, here)

    def _enforceable(self, key: str, value: Any, here: str) -> Any:
        """The value as the compiler can hold to it exactly."""
        if key == "pattern":
            return self._pattern(key, value, here)
        if key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            return inner_bound(value, upper=key.endswith("aximum"))
        for each in value if key == "enum" else [value] if key == "const" else ():
            if _has_unspelt(each):
                reason = f"keyword `{key}` holds a control character, which answers do not: leave it out"
                raise fault(reason, here, self._param, code="unsupported_schema")
        return value

    def _pattern(self, key: str, pattern: str, here: str) -> str:
        try:
            return portable_pattern(pattern)
        except PatternRefused as refused:
            reason = f"keyword `{key}` {refused}"
            raise fault(reason, here, self._param, code="unsupported_schema") from refused

    def _of(self, kind: type, value: Any, here: str) -> Any:
        if not isinstance(value, kind):
            expected = "an object" if kind is dict else "a list"
            raise fault(f"value is a {_kind(value)} where {expected} belongs", here, self._param)
        return value

    def _read_map(self, node: Node, key: str, schemas: dict[str, Any], here: str) -> dict[str, Any]:
        if len(schemas) > PROPERTIES_MAX and key not in ("$defs", "definitions"):
            raise fault(f"keyword `{key}` has more than {PROPERTIES_MAX} entries", here, self._param)
        places = {name: f"{here}/{_escaped(name)}" for name in schemas}
        node.children[key] = list(places.values())
        if key == "properties":
            node.names.update(places)
        inner = {name: self.read(schema, places[name]) for name, schema in schemas.items()}
        if key != "patternProperties":
            return inner
        patterns = {name: self._pattern(key, name, places[name]) for name in schemas}
        if len(set(patterns.values())) < len(patterns):
            raise fault(f"keyword `{key}` has one pattern twice", here, self._param, code="unsupported_schema")
        return {patterns[name]: schema for name, schema in inner.items()}

    def _read_list(self, node: Node, key: str, schemas: list[Any], here: str) -> list[Any]:
        if not schemas and key != "items":
            raise fault(f"keyword `{key}` has no schema in its list", here, self._param)
        places = [f"{here}/{index}" for index in range(len(schemas))]
        node.children[key] = places
        return [self.read(schema, pointer) for schema, pointer in zip(schemas, places, strict=True)]

    def _check_counts(self, node: Node) -> None:
        """A name may come twice in a JSON text, so properties can be counted only as far as their names are known."""
        least = node.content.get("minProperties", 0)
        if least > max(1, len(set(node.content.get("required", ())))):
            reason = "keyword `minProperties` cannot be enforced beyond the properties that are `required`: name them there"
            raise fault(reason, f"{node.pointer}/minProperties", self._param, code="unsupported_schema")

    def link(self) -> None:
        """Find what every `$ref` points at."""
        for node in self.nodes.values():
            if (reference := node.content.get("$ref")) is not None:
                target = unquote(reference[1:])
                if target not in self.nodes:
                    raise fault(
                        f"keyword `$ref` points at {reference[:80]!r}, where no schema is", f"{node.pointer}/$ref", self._param
                    )
                node.children["$ref"] = [target]


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def inner_bound(value: float, *, upper: bool) -> float:
    """The nearest bound on the inner side that the compiler holds exactly: it counts in float64, and its integers have 64 bits."""
    value = min(value, BOUND_MAX) if upper else max(value, -BOUND_MAX)
    if isinstance(value, float) or int(float(value)) == value:
        return value
    near = float(value)
    outside = near > value if upper else near < value
    return int(math.nextafter(near, -math.inf if upper else math.inf) if outside else near)


def _has_unspelt(value: Any) -> bool:
    """Recursion is bounded by `limits.NESTING_MAX`."""
    if isinstance(value, str):
        return unspelt(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(map(_has_unspelt, inner))


def _kind(value: Any) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "boolean", int: "number", float: "number", type(None): "null"}
    return names.get(type(value), "value")


def _complain_count(value: Any) -> str:
    return "" if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else "must be a whole number from 0 on"


def _complain_number(value: Any) -> str:
    return "" if isinstance(value, int | float) and not isinstance(value, bool) else "must be a number"


def _complain_multiple(value: Any) -> str:
    return _complain_number(value) or ("" if value > 0 else "must be above 0")


def _complain_type(value: Any) -> str:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name in keywords.TYPES for name in names):
        return f"must be one of {', '.join(sorted(keywords.TYPES))}, or a list of them"
    return ""


def _complain_format(value: Any) -> str:
    if not isinstance(value, str):
        return "must be a text"
    known = ", ".join(sorted(keywords.FORMATS))
    return "" if value in keywords.FORMATS else f"{value[:60]!r} cannot be enforced: {known} can, others need a `pattern`"


def _complain_reference(value: Any) -> str:
    if not isinstance(value, str):
        return "must be a text"
    inside = value == "#" or value.startswith("#/")
    return "" if inside else f"{value[:80]!r} is outside of this schema: copy it to `$defs` and write `#/$defs/…`"


def _complain_required(value: Any) -> str:
    fits = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return "" if fits else "must be a list of texts"


def _complain_text(value: Any) -> str:
    return "" if isinstance(value, str) else "must be a text"


def _complain_enum(value: Any) -> str:
    return "" if isinstance(value, list) and value else "must be a list with at least one value"


_CHECKS: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(keywords.COUNTS, _complain_count),
    **dict.fromkeys(keywords.NUMBERS, _complain_number),
    "$ref": _complain_reference,
    "const": lambda _: "",
    "enum": _complain_enum,
    "format": _complain_format,
    "multipleOf": _complain_multiple,
    "pattern": _complain_text,
    "required": _complain_required,
    "type": _complain_type,
}
"""What a value has against it; empty if nothing."""


def simple_subschemas(schema: CheckedSchema) -> Iterator[Node]:
    """Nodes that say all they say without a `$ref`, the innermost first: each can be compiled on its own."""
    referring: set[str] = set()
    for node in reversed(schema.nodes.values()):
        inner = [child for children in node.children.values() for child in children]
        if "$ref" in node.children or any(child in referring for child in inner):
            referring.add(node.pointer)
        else:
            yield node
