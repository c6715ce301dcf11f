"""An OpenAPI 3.1 document from the route table and the structs that requests are decoded into.

Nothing in it is written twice: paths and verbs are the router's, schemas those of the types (msgspec's are JSON Schema 2020-12, which
OpenAPI 3.1 takes as they are). What types cannot know is in `operations`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec
from starlette.routing import Route

from tripower.api.http.auth.middleware import OPEN
from tripower.api.http.errors import ErrorBody
from tripower.api.http.openapi.operations import OPERATIONS, Operation
from tripower.api.version import VERSION

REFERENCE = "#/components/schemas/{name}"
PRIORITY = "x-tripower-priority"
HEADERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "x-request-id": ("an id of the client's own, which comes back", {"type": "string"}),
    "x-tripower-deadline-ms": ("milliseconds after which the answer is not wanted any more", {"type": "integer", "minimum": 1}),
    PRIORITY: ("among the caller's own requests, higher first", {"type": "integer", "minimum": -100, "maximum": 100}),
    "x-tripower-strict": ("1 refuses fields that nobody knows", {"type": "string", "enum": ["0", "1", "false", "true"]}),
}
SCHEMES: Mapping[str, dict[str, str]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
"""Either will do, where there are keys."""
_PARAMETER = re.compile(r"\{(\w+)\}")


LISTED_ITEMS_MAX = 256
"""Longest list whose bound the document tells."""


def openapi_document(routes: Iterable[Route], prefix: str = "", *, keys: bool = False) -> dict[str, Any]:
    """The document, as plain data, for clients that see every path behind `prefix`; `keys` says whether they need one.

    A route that `operations` does not know is described by its name alone.
    """
    described = [(route, OPERATIONS.get(route.name) or Operation(summary=route.name, tag="other")) for route in routes]
    types = [
        kind
        for _, operation in described
        for kind in (operation.request, operation.answer, operation.error)
        if kind is not None
    ]
    schemas, components = msgspec.json.schema_components([ErrorBody, *_structs(types)], ref_template=REFERENCE)
    _leave_out_long_lists([*schemas, components])
    by_type = dict(zip([ErrorBody, *_structs(types)], schemas, strict=True))
    paths: dict[str, Any] = {}
    for route, operation in described:
        for method in sorted((route.methods or set()) - {"HEAD"}):
            paths.setdefault(route.path_format, {})[method.lower()] = _operation(route, operation, by_type)
            if keys and route.path_format in OPEN:
                paths[route.path_format][method.lower()]["security"] = []
    secured: dict[str, Any] = {"security": [{name: []} for name in SCHEMES]} if keys else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": "tripower", "version": VERSION, "description": "An OpenAI-compatible inference service."},
        "servers": [{"url": prefix or "/"}],
        "paths": paths,
        "components": {"schemas": components} | ({"securitySchemes": dict(SCHEMES)} if keys else {}),
        **secured,
    }


def _leave_out_long_lists(schema: Any) -> None:
    """Take bounds out that only an attack meets: tools that read the document would make lists of that length, again and again."""
    if isinstance(schema, dict):
        if isinstance(bound := schema.get("maxItems"), int) and bound > LISTED_ITEMS_MAX:
            del schema["maxItems"]
        for inner in schema.values():
            _leave_out_long_lists(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _leave_out_long_lists(inner)


def _structs(types: Iterable[Any]) -> list[Any]:
    """Each type once; of a union its members, since several structs are no type for msgspec."""
    members = [member for kind in types for member in (get_args(kind) if _is_union(kind) else (kind,))]
    return list(dict.fromkeys(members))


def _is_union(kind: Any) -> bool:
    return get_origin(kind) is UnionType and all(
        isinstance(member, type) and issubclass(member, msgspec.Struct) for member in get_args(kind)
    )


def _operation(route: Route, operation: Operation, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {
        "operationId": route.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": _parameters(route, operation),
        "responses": _responses(operation, schemas),
    }
    if operation.request is not None:
        content = {"application/json": {"schema": schemas[operation.request]}}
        out["requestBody"] = {"required": True, "content": content}
    return out


def _parameters(route: Route, operation: Operation) -> list[dict[str, Any]]:
    path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(route.path_format)
    ]
    query = [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in operation.query.items()
    ]
    names = ["x-request-id"] if operation.request is None else [name for name in HEADERS if name != PRIORITY or operation.waits]
    headers = [{"name": name, "in": "header", "description": HEADERS[name][0], "schema": HEADERS[name][1]} for name in names]
    return [*path, *query, *headers]


def _responses(operation: Operation, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {name: {"schema": {}} for name in operation.also}  # an event is no JSON of its own
    if operation.answer is not None:
        content = {"application/json": {"schema": _schema(operation.answer, schemas)}} | content
    out: dict[str, Any] = {"200": {"description": operation.summary, "content": content}}
    if operation.unavailable:
        out["503"] = {"description": "The answer is no", "content": content}
    out["default"] = {
        "description": "What is wrong, and with which field",
        "content": {"application/json": {"schema": schemas[operation.error]}},
    }
    return out


def _schema(kind: Any, schemas: Mapping[Any, Any]) -> Any:
    return {"anyOf": [schemas[member] for member in get_args(kind)]} if _is_union(kind) else schemas[kind]
