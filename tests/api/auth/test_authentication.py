"""Who gets in: every route in every spelling, with and without a key."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from tests.api.fake_runtime import HELLO, Script, finished, tokens
from tests.api.serving import ASK, CHAT, Server, serving, serving_toy
from tripower.api.http.actor import ReloadKeys
from tripower.api.http.application import routes
from tripower.api.http.auth.keyring import Keyring
from tripower.api.http.auth.middleware import OPEN, Authentication, route_path
from tripower.api.http.observe.keepers import Keepers
from tripower.api.http.service import Service
from tripower.runtime.configuration import AuthSettings, SchedulerSettings, ServerSettings
from tripower.runtime.kernel import InvalidConfiguration

KEY, OTHER, ADMIN = "tp-the-first-key", "tp-another-key", "tp-the-admin-key"
SERVICE = Service(cast(Any, SimpleNamespace(statistics=list)), ServerSettings(), SchedulerSettings(), Keepers())
ROUTES = [
    (method, route.path_format.replace("{id}", "some")) for route in routes(SERVICE) for method in sorted(route.methods or ())
]


def key_file(folder: Path, *keys: str, more: str = "") -> AuthSettings:
    path = folder / "keys.toml"
    entries = [
        f'[[key]]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n{"admin = true" if key == ADMIN else ""}\n{more}\n'
        for key in keys
    ]
    path.write_text("".join(entries))
    path.chmod(0o600)
    return AuthSettings(keys_file=str(path))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def spellings(path: str) -> Iterator[str]:
    """The same path as people write it who look for a way around a check."""
    yield path
    yield path + "/"
    yield path + "//"
    yield "/" + path
    yield path.upper()
    yield "/." + path
    yield "/x/.." + path
    yield path.replace("/", "//")
    yield path + "/."
    yield path + "/../" + path.rpartition("/")[2]
    yield path[:1] + f"%{ord(path[1]):02x}" + path[2:]
    yield path.replace("/", "%2f")
    yield path + "%00"
    yield path + ";x=1"
    yield path + "%20"
    yield "http://localhost" + path


async def test_every_route_in_every_spelling_needs_a_key(tmp_path: Path) -> None:  # BB-085
    assert len(ROUTES) > 15
    async with serving(auth=key_file(tmp_path, KEY)) as server:
        for method, path in ROUTES:
            for spelling in spellings(path):
                if spelling in OPEN:
                    continue
                answer = await server.ask(spelling, {} if method == "POST" else None, method=method)
                if method != "HEAD":
                    assert answer.status == 401, (method, spelling)
                    assert answer.error["type"] == "authentication_error"
                assert answer.headers["www-authenticate"] == "Bearer"
        assert server.runtime.requests == []


@pytest.mark.parametrize(
    "path", ["/", "/none", "/v1", "/v1/none", "/healthz", "/health/x", "/health/", "/ready?x=1/", "/docs", "*"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PATCH", "BREW"])
async def test_what_is_no_route_needs_a_key_too(tmp_path: Path, path: str, method: str) -> None:
    async with serving(auth=key_file(tmp_path, KEY)) as server:
        answer = await server.ask(path, method=method)
    assert answer.status == (200 if path.startswith("/ready?") and method == "GET" else 401)


@pytest.mark.parametrize("path", sorted(OPEN))
async def test_whether_it_lives_can_be_asked_without_a_key(tmp_path: Path, path: str) -> None:
    async with serving(auth=key_file(tmp_path, KEY)) as server:
        assert (await server.ask(path)).status == 200
        assert (await server.ask(path, {}, method="POST")).status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (bearer(KEY), 200),
        ({"authorization": f"bEARER   {KEY} "}, 200),
        ({"x-api-key": KEY}, 200),
        ({"authorization": "Basic eDp5", "x-api-key": KEY}, 200),
        ({"authorization": "Bearer wrong", "x-api-key": KEY}, 200),
        (bearer(KEY + "x"), 401),
        (bearer(""), 401),
        ({"authorization": KEY}, 401),
        ({"authorization": f"Basic {KEY}"}, 401),
        ({"x-api-key": hashlib.sha256(KEY.encode()).hexdigest()}, 401),
        ({"authorization": "Bearer \xff\xfe"}, 401),
    ],
)
async def test_a_key_comes_as_a_bearer_token_or_in_its_own_header(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    async with serving(HELLO, auth=key_file(tmp_path, KEY)) as server:
        answer = await server.ask(CHAT, ASK, headers=headers)
        assert answer.status == status
        if status == 200:
            assert server.runtime.requests[0].caller.identity == f"key-{hashlib.sha256(KEY.encode()).hexdigest()[:12]}"
        else:
            metrics = (await server.ask("/metrics", headers=bearer(KEY))).body.decode()
            assert "tripower_auth_failures_total" in metrics and KEY not in metrics


@pytest.mark.parametrize(("key", "status"), [(KEY, 403), (ADMIN, 200), ("", 401)])
async def test_loading_and_unloading_is_for_administrators(tmp_path: Path, key: str, status: int) -> None:
    async with serving(auth=key_file(tmp_path, KEY, ADMIN)) as server:
        for path in ("/models/load", "/models/unload"):
            answer = await server.ask(path, {"model": "fake"}, headers=bearer(key))
            assert answer.status == status
            if status == 403:
                assert (answer.error["code"], answer.error["type"]) == ("admin_key_required", "permission_error")


@pytest.mark.parametrize("header", ["forwarded", "x-forwarded-for", "x-real-ip"])
async def test_without_keys_this_machine_administers_and_nobody_behind_a_proxy(header: str) -> None:
    async with serving() as server:
        assert (await server.ask("/models/unload", {"model": "fake"})).status == 200
        assert (await server.ask("/models/unload", {"model": "fake"}, headers={header: "203.0.113.7"})).status == 403


async def test_without_keys_a_foreign_address_does_not_administer() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["tripower.exchange"].admin)

    for client in (("203.0.113.7", 9), ("127.0.0.1", 9), ("::1", 9), None):
        scope = {"client": client, "tripower.exchange": SimpleNamespace(admin=False, headers={})}
        await Authentication(app, SERVICE)(scope, None, None)
    assert seen == [False, True, True, True]


@pytest.mark.parametrize(
    ("raw", "prefix", "path"),
    [
        (b"/health", "", "/health"),
        (b"/api/health", "/api", "/health"),
        (b"/health", "/api", "/health"),
        (b"/apihealth", "/api", "/apihealth"),
        (b"/api/%68ealth", "/api", "/%68ealth"),
        (b"/api/api/health", "/api", "/api/health"),
    ],
)
def test_what_is_open_is_told_by_the_path_behind_the_proxys_prefix(raw: bytes, prefix: str, path: str) -> None:
    assert route_path({"raw_path": raw, "root_path": prefix}) == path


async def test_a_reload_stops_a_key_for_new_requests_and_lets_running_ones_finish(tmp_path: Path) -> None:
    end = trio.Event()
    script = Script([tokens("a"), end, tokens("b") + finished(generated=2)])
    async with serving(script, HELLO, auth=key_file(tmp_path, KEY)) as server, server.client() as client:
        await client.send_request(CHAT, ASK, headers=bearer(KEY))
        await server.runtime.wait_until(lambda: bool(server.runtime.running))
        key_file(tmp_path, OTHER)
        reloaded = await server.api.ask(ReloadKeys())
        assert reloaded.keys == 1
        assert (await server.ask(CHAT, ASK, headers=bearer(KEY))).status == 401
        assert (await server.ask(CHAT, ASK, headers=bearer(OTHER))).status == 200
        end.set()
        assert (await client.read_answer()).json["choices"][0]["message"]["content"] == "ab"


async def test_a_reload_of_a_broken_file_keeps_the_keys_and_says_so(tmp_path: Path) -> None:
    async with serving(auth=key_file(tmp_path, KEY)) as server:
        (tmp_path / "keys.toml").write_text("[[")
        with pytest.raises(InvalidConfiguration, match="no valid TOML"):
            await server.api.ask(ReloadKeys())
        assert (await server.ask("/v1/models", headers=bearer(KEY))).status == 200


async def rated(server: Server, key: str) -> Any:
    return await server.ask(CHAT, ASK, headers=bearer(key))


async def test_a_key_over_its_rate_hears_when_to_come_again_and_others_do_not(tmp_path: Path) -> None:
    settings = key_file(tmp_path, KEY, OTHER, more="requests_per_minute = 2")
    async with serving(HELLO, auth=settings) as server:
        first = await rated(server, KEY)
        assert first.status == 200 and first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert (await rated(server, KEY)).status == 200
        refused = await rated(server, KEY)
        assert (refused.status, refused.error["code"], refused.error["type"]) == (
            429,
            "rate_limit_exceeded",
            "rate_limit_error",
        )
        assert refused.headers["retry-after"] == "30" and 29_000 < int(refused.headers["retry-after-ms"]) <= 30_000
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert (await rated(server, OTHER)).status == 200
        looking = await server.ask("/metrics", headers=bearer(KEY))  # looking is not rated
        assert looking.status == 200 and 'tripower_rate_limited_total{reason="rate"} 1.0' in looking.body.decode()


async def test_who_is_refused_before_the_router_is_counted_and_logged_by_its_route(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tripower.http")
    async with serving(HELLO, auth=key_file(tmp_path, KEY, more="requests_per_minute = 1")) as server:
        assert (await rated(server, KEY)).status == 200
        assert (await rated(server, KEY)).status == 429
        assert (await server.ask(CHAT + "/", ASK)).status == 401
        assert (await server.ask("/v1/models/a/b")).status == 401
        assert (await server.ask("/nowhere")).status == 401
        metrics = (await server.ask("/metrics", headers=bearer(KEY))).body.decode()
    for labels in (
        'method="POST",route="/v1/chat/completions",status="429"',
        'method="POST",route="/v1/chat/completions",status="401"',
        'method="GET",route="/v1/models/{id}",status="401"',
        'method="GET",route="unmatched",status="401"',
    ):
        assert f"tripower_http_requests_total{{{labels}}} 1.0" in metrics
    lines = [record.getMessage() for record in caplog.records if record.name == "tripower.http"]
    starts = [f"POST {CHAT} 200", f"POST {CHAT} 429", f"POST {CHAT} 401", "GET /v1/models/{id} 401", "GET unmatched 401"]
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=False)] == [True] * 5


async def test_tokens_of_prompts_and_answers_are_charged(tmp_path: Path) -> None:
    settings = key_file(tmp_path, KEY, more="tokens_per_minute = 10")
    async with serving(HELLO, auth=settings) as server:
        await rated(server, KEY)
        stream = await server.ask(CHAT, ASK | {"stream": True}, headers=bearer(KEY))
        assert stream.headers["x-ratelimit-limit-tokens"] == "10"  # 3 + 3 tokens each: 2 are owed
        refused = await rated(server, KEY)
        assert refused.status == 429 and 17 <= int(refused.headers["retry-after"]) <= 18


async def test_keys_are_read_again_beside_the_loop_and_a_pipe_in_their_place_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    read = Keyring.read

    def reading(ring: Keyring) -> Any:
        threads.append(threading.current_thread())
        return read(ring)

    monkeypatch.setattr(Keyring, "read", reading)
    async with serving(HELLO, auth=key_file(tmp_path, KEY)) as server:
        threads.clear()
        await server.api.ask(ReloadKeys())
        (tmp_path / "keys.toml").unlink()
        os.mkfifo(tmp_path / "keys.toml", 0o600)
        with pytest.raises(InvalidConfiguration, match="no regular file"):
            await server.api.ask(ReloadKeys())
        assert (await server.ask(CHAT, ASK, headers={"authorization": f"Bearer {KEY}"})).status == 200
    assert len(threads) == 2 and threading.main_thread() not in threads


async def test_more_answers_than_a_key_may_ever_have_at_once_are_a_fault_of_the_request(tmp_path: Path) -> None:
    asking = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    headers = {"authorization": f"Bearer {KEY}"}
    async with serving_toy(auth=key_file(tmp_path, KEY, more="concurrency = 1")) as server:
        answer = await server.ask(CHAT, asking | {"n": 8}, headers=headers)
        assert (answer.status, answer.error["param"]) == (400, "n")
        assert "8 answers" in answer.error["message"] and "the 1 that" in answer.error["message"]
        assert (await server.ask(CHAT, asking, headers=headers)).status == 200
