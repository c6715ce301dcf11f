"""A prefix in front of every path, with proxies that strip it and with proxies that do not."""

from __future__ import annotations

import pytest

from tests.api.fake_runtime import HELLO
from tests.api.serving import ASK, CHAT, serving


@pytest.mark.parametrize("prefix", ["/llm", ""], ids=["kept", "stripped"])
@pytest.mark.parametrize("slash", ["", "/"])
async def test_paths_are_answered_directly_with_and_without_the_prefix(prefix: str, slash: str) -> None:  # BB-115, BB-116
    async with serving(HELLO, root_path="/llm") as server:
        assert (await server.ask(f"{prefix}{CHAT}{slash}", ASK)).status == 200
        assert (await server.ask(f"{prefix}/v1/models{slash}")).status == 200
        assert (await server.ask(f"{prefix}/v1/models/fake{slash}")).json["id"] == "fake"
        assert (await server.ask(f"{prefix}/health{slash}")).status == 200
        unknown = await server.ask(f"{prefix}/v1/nothing{slash}")
        assert (unknown.status, unknown.error["code"]) == (404, "route_not_found")


@pytest.mark.parametrize("path", ["/llm", "/llm/", "/llmx/health", "/LLM/health", "/llm/llm/health", "/x/llm/health"])
async def test_what_only_looks_like_the_prefix_is_none(path: str) -> None:
    async with serving(HELLO, root_path="/llm") as server:
        answer = await server.ask(path)
        assert (answer.status, answer.error["code"]) == (404, "route_not_found")


async def test_a_prefix_opens_nothing_to_those_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:  # BB-085
    monkeypatch.setenv("TRIPOWER_API_KEYS", "sk-" + "x" * 40)
    async with serving(HELLO, root_path="/llm") as server:
        assert (await server.ask("/llm/health")).status == 200
        for path in ("/llm/v1/models", "/llm/llm/health", "/llm//health", "/llm/../v1/models", "/llm/%68ealth"):
            assert (await server.ask(path)).status == 401


async def test_the_description_works_behind_the_prefix() -> None:
    async with serving(HELLO, root_path="/llm") as server:
        assert (await server.ask("/llm/openapi.json")).json["servers"] == [{"url": "/llm"}]


async def test_words_of_a_proxy_are_not_believed() -> None:
    """Whoever asks could have written them."""
    headers = {"x-forwarded-host": "evil.example", "x-forwarded-prefix": "/x", "x-forwarded-for": "10.0.0.1"}
    async with serving(HELLO) as server:
        assert (await server.ask("/health", headers=headers)).status == 200
        assert (await server.ask("/health", headers=headers | {"host": "evil.example"})).status == 403
