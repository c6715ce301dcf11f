"""What web pages may do: nothing that changes something, unless they are listed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.fake_runtime import HELLO
from tests.api.serving import ASK, CHAT, Answer, serving
from tripower.runtime.configuration import load_configuration
from tripower.runtime.configuration.load import InvalidSettings

PAGE = "https://chat.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


def letters(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control") or name == "vary"}


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://localhost:1", "null", "file://", "https://chat.example.evil"]
)
async def test_a_strange_page_may_not_ask_for_work(origin: str) -> None:
    async with serving(HELLO, cors_origins=(PAGE,)) as server:
        answer = await server.ask(CHAT, ASK, headers={"origin": origin})
        assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
        assert letters(answer) == {"vary": "origin"}
        assert server.runtime.requests == []
        assert (await server.ask("/v1/models", headers={"origin": origin})).status == 200  # which its browser keeps from it


async def test_a_strange_page_may_not_ask_for_work_where_no_page_is_listed() -> None:
    async with serving(HELLO) as server:
        assert (await server.ask(CHAT, ASK, headers={"origin": PAGE})).status == 403
        assert letters(await server.ask("/health", headers={"origin": PAGE})) == {}


async def test_our_own_pages_are_no_strangers() -> None:
    async with serving(HELLO) as server:
        host = f"localhost:{server.port}"
        assert (await server.ask(CHAT, ASK, headers={"host": host, "origin": f"http://{host}"})).status == 200


async def test_a_server_for_others_leaves_origins_to_its_keys() -> None:
    async with serving(HELLO, host="0.0.0.0") as server:
        assert (await server.ask(CHAT, ASK, headers={"origin": PAGE})).status == 200


@pytest.mark.parametrize(("path", "status"), [(CHAT, 200), ("/nowhere", 404), ("/v1/models/none", 404)])
async def test_every_answer_says_that_a_listed_page_may_read_it(path: str, status: int) -> None:
    async with serving(HELLO, cors_origins=(PAGE, "https://other.example")) as server:
        answer = await server.ask(path, ASK if path == CHAT else None, headers={"origin": PAGE})
        assert answer.status == status
        expected = {"access-control-allow-origin": PAGE, "access-control-expose-headers": "*", "vary": "origin"}
        assert letters(answer) == expected
        assert letters(await server.ask("/health")) == {"vary": "origin"}


async def test_a_preflight_needs_no_key_and_a_refusal_for_want_of_one_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # BB-086
    monkeypatch.setenv("TRIPOWER_API_KEYS", "sk-" + "x" * 40)
    async with serving(HELLO, cors_origins=(PAGE,)) as server:
        answer = await server.ask(CHAT, method="OPTIONS", headers=PREFLIGHT)
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
        assert "POST" in answer.headers["access-control-allow-methods"]
        refused = await server.ask(CHAT, ASK, headers={"origin": PAGE})
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, PAGE)
        allowed = await server.ask(CHAT, ASK, headers={"origin": PAGE, "authorization": "Bearer sk-" + "x" * 40})
        assert allowed.status == 200


async def test_a_preflight_of_a_stranger_is_refused() -> None:
    async with serving(HELLO, cors_origins=(PAGE,)) as server:
        answer = await server.ask(CHAT, method="OPTIONS", headers=PREFLIGHT | {"origin": "https://evil.example"})
        assert (answer.status, letters(answer)) == (403, {"vary": "origin"})


async def test_a_preflight_cannot_put_words_into_our_headers() -> None:
    async with serving(HELLO, cors_origins=(PAGE,)) as server:
        answer = await server.ask(CHAT, method="OPTIONS", headers=PREFLIGHT | {"access-control-request-headers": "a;b=<c>"})
        assert answer.headers["access-control-allow-headers"] == "authorization, content-type"


@pytest.mark.parametrize(
    "value", ["chat.example", "https://chat.example/", "https://chat.example/path", "HTTPS://X", "null", "", 1]
)
def test_what_is_no_origin_is_refused_at_the_start(value: Any) -> None:
    with pytest.raises(InvalidSettings):
        load_configuration(file=None, environment={}, flags={"server.cors_origins": [value]})


@pytest.mark.parametrize(
    "value", ["https://chat.example", "http://localhost:3000", "chrome-extension://abcdef", "http://[::1]:80", "*"]
)
def test_origins_may_be_listed(value: str) -> None:
    configuration = load_configuration(file=None, environment={}, flags={"server.cors_origins": [value]})
    assert configuration.server.cors_origins == (value,)
