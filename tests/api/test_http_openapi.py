"""The document about the service: every route is in it, it is well formed, and answers are what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.routing import Route

from tests.api.serving import ASK, serving
from tripower.api.http.answers import encode
from tripower.api.http.application import routes
from tripower.api.http.observe.keepers import Keepers
from tripower.api.http.openapi.document import openapi_document
from tripower.api.http.openapi.operations import OPERATIONS
from tripower.api.http.service import Service
from tripower.runtime.configuration import SchedulerSettings, ServerSettings

SCHEMAS = "#/components/schemas/"
METHODS = {"get", "post", "put", "delete", "patch", "options"}


def all_routes() -> list[Route]:
    """The table itself: nothing is asked of the runtime."""
    nobody: Any = SimpleNamespace(statistics=list)
    return routes(Service(nobody, ServerSettings(), SchedulerSettings(), Keepers()))


ROUTES = all_routes()
DOCUMENT = json.loads(encode(openapi_document(ROUTES)))


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def values(plain: Any, key: str) -> Iterator[Any]:
    """Everything under this key, however deep."""
    if isinstance(plain, dict):
        for name, inner in plain.items():
            if name == key:
                yield inner
            yield from values(inner, key)
    elif isinstance(plain, list):
        for inner in plain:
            yield from values(inner, key)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_route_is_described_with_all_its_verbs(route: Route) -> None:
    assert route.name in OPERATIONS, f"describe {route.path} in api/http/openapi/operations.py"
    described = DOCUMENT["paths"][route.path_format]
    assert route.methods is not None
    assert {method.lower() for method in route.methods - {"HEAD"}} <= set(described)


def test_nothing_is_described_that_is_no_route() -> None:
    assert set(OPERATIONS) == {route.name for route in ROUTES}
    assert set(DOCUMENT["paths"]) == {route.path_format for route in ROUTES}


def test_the_document_has_the_structure_of_openapi_3_1() -> None:
    assert set(DOCUMENT) == {"openapi", "info", "servers", "paths", "components"}
    assert DOCUMENT["openapi"] == "3.1.0" and {"title", "version"} <= set(DOCUMENT["info"])
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(ids) == len(set(ids))
    for path, method, operation in operations():
        assert path.startswith("/") and method in METHODS
        assert {"operationId", "summary", "responses", "parameters"} <= set(operation)
        assert {"200", "default"} <= set(operation["responses"])
        assert all(response["description"] for response in operation["responses"].values())
        assert ("requestBody" in operation) == (method == "post" and operation["operationId"] != "cancel_request")
        for media in values(operation, "content"):
            assert media and all(set(described) == {"schema"} for described in media.values())


def test_every_parameter_of_a_path_is_declared_and_no_name_twice() -> None:
    for path, _, operation in operations():
        declared = [(parameter["in"], parameter["name"]) for parameter in operation["parameters"]]
        assert len(declared) == len(set(declared))
        assert {name for place, name in declared if place == "path"} == set(re.findall(r"\{(\w+)\}", path))
        for parameter in operation["parameters"]:
            assert parameter["in"] in ("path", "query", "header") and "schema" in parameter
            assert parameter.get("required", False) == (parameter["in"] == "path")


def test_every_reference_leads_somewhere_and_every_schema_is_used() -> None:
    components = DOCUMENT["components"]["schemas"]
    references = set(values(DOCUMENT, "$ref"))
    assert {SCHEMAS + name for name in components} == references
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in components)


def schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and every schema in it."""
    assert isinstance(schema, dict)
    yield schema
    inner = [*schema.get("anyOf", []), *schema.get("properties", {}).values(), *schema.get("prefixItems", [])]
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            inner.append(schema[keyword])
    for each in inner:
        yield from schemas(each)


TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}
TEXTS = {"$ref", "type", "title", "description", "format", "pattern", "contentEncoding"}
NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "minItems", "maxItems"}
OTHERS = {
    "properties",
    "required",
    "additionalProperties",
    "items",
    "prefixItems",
    "anyOf",
    "enum",
    "const",
    "default",
    "discriminator",
}


@pytest.mark.parametrize("name", DOCUMENT["components"]["schemas"])
def test_schemas_are_json_schema(name: str) -> None:
    for schema in schemas(DOCUMENT["components"]["schemas"][name]):
        assert set(schema) <= TEXTS | NUMBERS | OTHERS
        assert schema.get("type", "null") in TYPES
        assert all(isinstance(schema[keyword], str) for keyword in TEXTS & set(schema))
        assert all(isinstance(schema[keyword], int | float) for keyword in NUMBERS & set(schema))
        assert schema.get("anyOf", [{}]) and set(schema.get("required", [])) <= set(schema.get("properties", {}))


def test_refusals_of_fields_and_limits_are_in_the_schemas() -> None:
    chat = DOCUMENT["components"]["schemas"]["ChatIn"]
    assert chat["required"] == ["messages"]
    assert chat["properties"]["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}


def test_where_there_are_keys_each_operation_but_the_open_ones_asks_for_one() -> None:
    document = openapi_document(ROUTES, keys=True)
    assert {name for need in document["security"] for name in need} == set(document["components"]["securitySchemes"])
    unguarded = {path for path, methods in document["paths"].items() for told in methods.values() if told.get("security") == []}
    assert unguarded == {"/health", "/ready", "/ui", "/ui/page.css", "/ui/page.js"}


async def test_it_is_served_and_says_the_same() -> None:
    async with serving() as server:
        first, second = await server.ask("/openapi.json"), await server.ask("/openapi.json")
    assert first.status == 200 and first.headers["content-type"] == "application/json"
    assert first.json == DOCUMENT and first.body == second.body


BODIES: dict[str, Any] = {
    "/v1/chat/completions": ASK,
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions/input_tokens": ASK,
    "/tokenize": {"content": "Hi"},
    "/detokenize": {"tokens": [72]},
    "/apply-template": {"messages": ASK["messages"]},
    "/v1/responses": {"input": "Hi"},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/messages": {"max_tokens": 5, "messages": ASK["messages"]},
    "/v1/messages/count_tokens": {"messages": ASK["messages"]},
    "/models/load": {"model": "fake"},
    "/models/unload": {"model": "fake"},
}


ANSWERED = [route for route in ROUTES if "GET" in (route.methods or ()) or route.path in BODIES]
"""The others are not answered by a scripted runtime."""


@pytest.mark.parametrize("route", ANSWERED, ids=lambda route: route.path)
async def test_an_answer_has_the_fields_that_are_described(route: Route) -> None:
    (method,) = (route.methods or set()) - {"HEAD"}
    path = route.path_format.replace("{id}", "fake")
    async with serving() as server:
        answer = await server.ask(path, BODIES.get(path) if method == "POST" else None, method=method)
    described = DOCUMENT["paths"][route.path_format][method.lower()]["responses"][str(answer.status)]["content"]
    media = answer.headers["content-type"].partition(";")[0]
    assert answer.status == 200 and media in described
    if media == "application/json":
        assert any(
            fits(schema, answer.json) for schema in described[media]["schema"].get("anyOf", [described[media]["schema"]])
        )


def fits(schema: dict[str, Any], plain: Any) -> bool:
    """Whether an object has what is required of it and nothing that is not described."""
    if "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].removeprefix(SCHEMAS)]
    properties = schema.get("properties")
    return properties is None or (set(schema.get("required", ())) <= set(plain) <= set(properties))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
async def test_every_route_is_guarded_against_foreign_pages(route: Route) -> None:
    """By enumeration: a new route is asked too."""
    (method,) = (route.methods or set()) - {"HEAD"}
    path = route.path_format.replace("{id}", "fake")
    body = BODIES.get(path, {}) if method == "POST" else None
    async with serving(cors_origins=("https://chat.example",)) as server:
        foreign = await server.ask(path, body, method=method, headers={"host": "evil.example"})
        assert (foreign.status, foreign.error["code"]) == (403, "host_not_allowed")
        if method != "GET":
            strange = await server.ask(path, body, method=method, headers={"origin": "https://evil.example"})
            assert (strange.status, strange.error["code"]) == (403, "origin_not_allowed")
        if method == "POST":
            unasked = {"origin": "https://chat.example", "content-type": "text/plain"}
            posted = await server.ask(path, body, method=method, headers=unasked)
            assert (posted.status, posted.error["code"]) == (415, "unsupported_media_type")
        assert server.runtime.unloaded == [] and server.runtime.requests == []
