"""Routes that are not about text, and the layers around every route."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.api.fake_runtime import HELLO, Script, finished, tokens
from tests.api.serving import ASK, CHAT, COMPLETIONS, request_bytes, serving
from tripower.actors.models import EngineReport
from tripower.actors.runtime import Health
from tripower.api.http.hosts import host_name, is_loopback
from tripower.runtime.engine import Certificate

STREAM = ASK | {"stream": True}


# Models.


async def test_models_are_listed_by_name_with_what_clients_read() -> None:
    async with serving(HELLO, models=("b", "a")) as server:
        answer = await server.ask("/v1/models")
    assert answer.json["object"] == "list"
    assert [model["id"] for model in answer.json["data"]] == ["a", "b"]
    assert answer.json["data"][0] == {
        "id": "a",
        "object": "model",
        "created": 1_790_000_000,
        "owned_by": "tripower",
        "status": {"value": "loaded"},
        "max_model_len": 512,
        "meta": {"n_ctx_train": 512, "n_params": 1000, "size": 4000},
    }
    assert b"/secret" not in answer.body


@pytest.mark.parametrize("name", ["a", "org/model:Q4", "org/model", "a b&c"])
@pytest.mark.parametrize("quoted", [False, True])
async def test_one_model_is_found_by_its_name_whatever_is_in_it(name: str, quoted: bool) -> None:
    from urllib.parse import quote

    path = quote(name, safe="" if quoted else "/:&")
    async with serving(HELLO, models=("a", "org/model:Q4", "org/model", "a b&c")) as server:
        answer = await server.ask(f"/v1/models/{path}")
    assert (answer.status, answer.json["id"]) == (200, name)


@pytest.mark.parametrize("name", ["none", "..%2f..%2fetc", "%ff%fe", "a" * 5000])
async def test_a_model_that_is_not_there_is_not_found(name: str) -> None:
    async with serving(HELLO) as server:
        answer = await server.ask(f"/v1/models/{name}")
    assert (answer.status, answer.error["code"], answer.error["type"]) == (404, "model_not_found", "not_found_error")
    assert len(answer.body) < 1000


# Health.


@pytest.mark.parametrize(
    ("status", "healthy", "ready"),
    [("ok", 200, 200), ("loading", 200, 503), ("draining", 200, 503), ("failing", 503, 503)],
)
async def test_health_is_about_faults_and_readiness_about_work(status: str, healthy: int, ready: int) -> None:  # BB-082
    async with serving(HELLO) as server:
        server.runtime.health_now = Health(status, ("because",))
        health, readiness = await server.ask("/health"), await server.ask("/ready")
    assert (health.status, readiness.status) == (healthy, ready)
    assert health.json == {"status": status, "reasons": ["because"], "engines": []}
    assert readiness.json["ready"] == (ready == 200)


async def test_health_shows_how_each_loaded_model_computes_and_what_was_measured_of_it() -> None:
    certificate = Certificate(row_counts=16, positions=24, mismatches=0)
    report = EngineReport("smollm2", "picolm", "native code", "exact", certificate)
    async with serving(HELLO) as server:
        server.runtime.health_now = Health("ok", (), (report,))
        health = await server.ask("/health")
    shown = {"model": "smollm2", "backend": "picolm", "kernels": "native code", "determinism": "exact"}
    assert health.json["engines"] == [shown | {"certificate": {"row_counts": 16, "positions": 24, "mismatches": 0}}]


# What is nowhere.


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v2/chat/completions", "/V1/models", "//v1/models", "/v1/chat/completions/more", "/%2e"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "BREW"])
async def test_an_unknown_path_is_not_found_in_json(path: str, method: str) -> None:  # BB-116
    async with serving(HELLO) as server:
        answer = await server.ask(path, method=method)
    assert (answer.status, answer.error["code"], answer.error["type"]) == (404, "route_not_found", "not_found_error")


@pytest.mark.parametrize(
    ("path", "cure"),
    [
        ("/", "GET /v1/models lists the models, and GET /openapi.json describes every route"),
        ("/chat/completions", "use /v1/chat/completions"),
        ("/chat/completions/", "use /v1/chat/completions"),
        ("/v1/v1/chat/completions", "use /v1/chat/completions"),
        ("/v1/tokenize", "use /tokenize"),
        ("/v1", "GET /v1/models lists the models, and GET /openapi.json describes every route"),
    ],
)
async def test_a_path_that_is_nearly_right_is_told_the_right_one(path: str, cure: str) -> None:
    async with serving(HELLO) as server:
        answer = await server.ask(path, ASK)
    assert answer.error["message"] == f"there is no route {path!r}: {cure}"


@pytest.mark.parametrize(
    ("path", "method", "right"),
    [
        (CHAT, "GET", "POST"),
        (COMPLETIONS, "PUT", "POST"),
        ("/v1/models", "POST", "GET or HEAD"),
        ("/health", "DELETE", "GET or HEAD"),
    ],
)
async def test_a_known_path_with_another_verb_says_which_would_do(path: str, method: str, right: str) -> None:
    async with serving(HELLO) as server:
        answer = await server.ask(path, method=method)
    assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
    assert answer.error["message"] == f"{method} is not possible here: use {right}"
    assert set(answer.headers["allow"].split(", ")) <= {"GET", "HEAD", "POST"}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_trailing_slash_is_answered_directly_with_its_body(path: str) -> None:  # BB-115, BB-116
    async with serving(HELLO) as server:
        assert (await server.ask(f"{path}/", ASK | {"prompt": "Hi"})).status == 200
        assert (await server.ask("/v1/models/")).json["object"] == "list"
        assert (await server.ask("/v1/models/fake/")).json["id"] == "fake"


async def test_a_query_does_not_change_the_route() -> None:
    async with serving(HELLO) as server:
        assert (await server.ask(f"{CHAT}?api-version=1", ASK)).status == 200


# Ids, types, ignored fields.


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc", True), ("A.b_c:1-2", True), ("x" * 128, True), ("x" * 129, False), ("", False), ("a b", False), ("a/b", False), ("é", False)],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/health", "/nowhere", CHAT])
async def test_a_request_id_is_kept_when_it_is_harmless_and_given_otherwise(given: str, kept: bool, path: str) -> None:
    async with serving(HELLO) as server:
        answer = await server.ask(path, headers={"x-request-id": given})
    if kept:
        assert answer.headers["x-request-id"] == given
    else:
        assert len(answer.headers["x-request-id"]) == 32


async def test_ids_are_on_streams_and_differ() -> None:
    async with serving(HELLO) as server:
        ids = {(await server.ask(CHAT, STREAM)).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_fields_without_effect_are_named_in_a_header_and_in_the_log(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tripower.http")
    async with serving(HELLO) as server:
        answer = await server.ask(CHAT, ASK | {"stream": stream, "top_secret": 1, "mood\r\nx: y": 2})
        plain = await server.ask(CHAT, ASK)
    assert answer.headers["x-tripower-ignored"] == "top_secret,mood??x??y"
    assert "x-tripower-ignored" not in plain.headers
    assert "top_secret" in caplog.text


async def test_thousands_of_unknown_fields_are_one_short_header() -> None:  # BB-089
    async with serving(HELLO) as server:
        answer = await server.ask(CHAT, ASK | {f"field{number}" * 20: 1 for number in range(5000)})
    assert answer.status == 200
    assert len(answer.headers["x-tripower-ignored"]) < 2000
    assert answer.headers["x-tripower-ignored"].endswith("and-many-more")


async def test_a_word_that_is_neither_strict_nor_lenient_is_refused() -> None:
    async with serving() as server:
        answer = await server.ask(CHAT, ASK, headers={"x-tripower-strict": "yes please"})
    assert (answer.status, answer.error["param"]) == (400, "x-tripower-strict")


@pytest.mark.parametrize(("header", "status"), [("1", 400), ("true", 400), ("0", 200), ("", 200)])
async def test_a_strict_client_is_refused_instead(header: str, status: int) -> None:
    async with serving(HELLO) as server:
        answer = await server.ask(CHAT, ASK | {"top_secret": 1}, headers={"x-tripower-strict": header})
    assert answer.status == status
    if status == 400:
        assert (answer.error["code"], answer.error["param"]) == ("unsupported_parameter", "top_secret")


@pytest.mark.parametrize(
    ("content_type", "origin", "status"),
    [
        ("application/json", None, 200),
        ("application/json; charset=utf-8", "https://chat.example", 200),
        ("application/vnd.api+json", None, 200),
        ("", None, 200),
        ("application/x-www-form-urlencoded", None, 200),  # curl -d
        ("text/plain", None, 200),
        ("text/plain", "https://chat.example", 415),
        ("TEXT/PLAIN;charset=UTF-8", "https://chat.example", 415),
        ("application/x-www-form-urlencoded", "https://chat.example", 415),
        ("", "https://chat.example", 415),
        ("multipart/form-data; boundary=x", None, 415),
    ],
)
async def test_a_body_is_json_whatever_it_is_called_unless_a_browser_sent_it_unasked(
    content_type: str, origin: str | None, status: int
) -> None:
    headers = {"content-type": content_type} | ({"origin": origin} if origin else {})
    async with serving(HELLO, cors_origins=("https://chat.example",)) as server:
        answer = await server.ask(CHAT, ASK, headers=headers)
    assert answer.status == status
    if status == 415:
        assert answer.error["code"] == "unsupported_media_type"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'"Hi"', b"null", b"\xff", b'{"messages": NaN}', b"[" * 50_000])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_body_that_is_no_request_is_refused(path: str, body: bytes) -> None:
    async with serving(HELLO) as server:
        answer = await server.ask(path, body)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    "change",
    [{"stream": "False"}, {"max_tokens": "10"}, {"messages": "hi"}, {"temperature": "hot"}, {"n": 0, "stream": True}, {"seed": 2**70}],
)  # fmt: skip
async def test_a_refusal_of_a_field_names_it(change: dict[str, Any]) -> None:  # BB-097, BB-107
    async with serving(HELLO) as server:
        answer = await server.ask(CHAT, ASK | change)
        assert server.runtime.requests == []
    assert (answer.status, answer.error["param"]) == (400, next(iter(change)))


async def test_null_where_a_number_would_be_is_fine() -> None:  # BB-107
    async with serving(HELLO) as server:
        assert (await server.ask(CHAT, ASK | {"temperature": None})).status == 200


# Hosts.


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("localhost:8420", 200), ("LOCALHOST:1", 200), ("127.0.0.1:8420", 200), ("127.5.6.7", 200), ("[::1]:8420", 200),
        ("my.localhost", 200), ("friend.example:80", 200), ("localhost.", 200),
        ("evil.example", 403), ("evil.example:8420", 403), ("localhost.evil.example", 403), ("127.0.0.1.evil.example", 403),
        ("192.168.1.5", 403), ("0.0.0.0", 403), ("[::2]", 403), ("", 403),
    ],
)  # fmt: skip
async def test_on_loopback_only_names_of_this_machine_are_answered(host: str, status: int) -> None:
    async with serving(HELLO, allowed_hosts=("friend.example",)) as server:
        for path in ("/health", "/nowhere"):
            answer = await server.ask(path, headers={"host": host})
            assert answer.status == (404 if status == 200 and path == "/nowhere" else status)
        if status == 403:
            assert (answer.error["code"], answer.error["type"]) == ("host_not_allowed", "permission_error")


async def test_a_public_address_is_answered_under_any_name() -> None:
    async with serving(HELLO, host="0.0.0.0") as server:
        assert (await server.ask("/health", headers={"host": "example.com"})).status == 200


async def test_a_client_that_sends_no_host_is_no_browser() -> None:
    async with serving(HELLO) as server, server.client() as client:
        await client.send(b"GET /health HTTP/1.0\r\n\r\n")
        assert (await client.read_answer()).status == 200


@pytest.mark.parametrize(
    ("host", "name"),
    [("a.b:1", "a.b"), ("[::1]:1", "::1"), ("[::1]", "::1"), ("A.", "a"), (" a ", "a"), ("", ""), ("a:", "a"), ("a_b", "a_b")],
)
def test_a_host_header_is_taken_apart(host: str, name: str) -> None:
    assert host_name(host) == name


NO_HOSTS = ("localhost:8512@evil", "[::1", "[", "::1", "localhost:x", "localhost:1:2", "localhost/evil", "localhost evil", "[::1]evil", "me@localhost",
            "localhost,evil", "[::1%25lo]", "\xe9", "localhost:123456")  # fmt: skip


@pytest.mark.parametrize("host", NO_HOSTS)
async def test_a_host_that_is_none_is_refused_under_any_address(host: str) -> None:
    assert host_name(host) is None
    for address in ("127.0.0.1", "0.0.0.0"):
        async with serving(HELLO, host=address) as server, server.client() as client:
            await client.send(b"GET /health HTTP/1.1\r\nhost: " + host.encode("latin-1") + b"\r\n\r\n")
            answer = await client.read_answer()
            assert (answer.status, answer.error["code"]) == (400, "invalid_host")


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "content-type", "Authorization"])
async def test_a_header_that_says_two_things_is_refused(name: str) -> None:
    async with serving(HELLO) as server, server.client() as client:
        whole = request_bytes(CHAT, ASK).replace(b"content-type: application/json", b"x-one: a")
        both = f"{name}: Bearer one\r\n{name}: Bearer two\r\n".encode()
        await client.send(whole.replace(b"host:", both + b"host:"))
        answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (400, "ambiguous_header")
        assert name.lower() in answer.error["message"] and server.runtime.requests == []


@pytest.mark.parametrize(
    ("content_type", "status"),
    [("application/json; charset=utf-8", 200), ('application/json; Charset="UTF-8"', 200), ("text/plain", 200), ("", 200),
     ("application/json; charset=us-ascii", 200), ("text/plain; charset=utf-16", 415), ("application/json; charset=latin-1", 415),
     ("application/json;x=y ; charset = 'utf-7'", 415)],
)  # fmt: skip
async def test_a_body_is_read_as_utf_8_and_not_under_another_name(content_type: str, status: int) -> None:
    async with serving(HELLO) as server:
        assert (await server.ask(CHAT, ASK, headers={"content-type": content_type})).status == status


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("localhost", True), ("a.localhost", True), ("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False),
     ("localhost.example", False), ("", False)],
)  # fmt: skip
def test_a_loopback_host_is_known(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


# The log.


async def test_each_request_is_one_line_without_its_prompt(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tripower.http")
    secret = {"model": "fake", "messages": [{"role": "user", "content": "MARKER"}]}
    script = Script([tokens("MARKER"), finished("length", generated=1)])
    async with serving(script) as server, server.client() as client:
        await client.send(request_bytes(CHAT, secret, headers={"x-request-id": "one"}))
        await client.read_answer()
        await client.ask("/v1/models/MARKER", headers={"x-request-id": "two"})
        await client.ask(CHAT, b"MARKER", headers={"x-request-id": "three"})
        await client.ask("/MARKER", headers={"x-request-id": "four"})
    lines = [record.getMessage() for record in caplog.records if record.name == "tripower.http"]
    assert len(lines) == 4
    assert lines[0].startswith(f"POST {CHAT} 200 ")
    assert "3+1 tokens, id one, length" in lines[0]
    assert lines[1].startswith("GET /v1/models/{id} 404 ")
    assert "invalid_json" in lines[2]
    assert lines[3].startswith("GET unmatched 404 ")
    assert "MARKER" not in caplog.text
