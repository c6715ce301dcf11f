"""Whom a download trusts: a hub that is secure, a token that is one, a redirect that does not give up encryption."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tripower.api.pull import pull, responses
from tripower.api.pull.from_web import HUB, hub_address, hub_credentials
from tripower.runtime.kernel.errors import InvalidRequest, Unavailable
from tripower.runtime.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def test_the_hub_and_the_token_follow_the_environment() -> None:
    assert hub_address({}) == HUB
    assert hub_address({"HF_ENDPOINT": "https://mirror.example/hub/"}) == "https://mirror.example/hub"
    assert hub_credentials({}) == {}
    assert hub_credentials({"HF_TOKEN": "a", "TRIPOWER_HUB_TOKEN": ""}) == {"authorization": "Bearer a"}
    assert hub_credentials({"HF_TOKEN": "a", "TRIPOWER_HUB_TOKEN": "b "}) == {"authorization": "Bearer b"}


def test_a_redirect_from_https_to_plain_http_is_refused() -> None:
    secure, plain = httpx.Request("GET", "https://h.example/m"), httpx.Request("GET", "http://h.example/m")
    with pytest.raises(Unavailable, match="from https to plain http"):
        responses._refuse_downgrade(secure, plain, "hf:o/r/m")
    responses._refuse_downgrade(secure, secure, "hf:o/r/m")
    responses._refuse_downgrade(plain, plain, "hf:o/r/m")


@pytest.mark.parametrize("endpoint", ["http://hub.example", "ftp://x", "nonsense"])
async def test_a_hub_that_is_not_secure_is_refused(store: Store, endpoint: str) -> None:
    with pytest.raises(InvalidRequest, match="HF_ENDPOINT"):
        await pull("hf:org/repo/m.gguf", store=store, environment={"HF_ENDPOINT": endpoint})


async def test_a_token_with_line_breaks_is_refused_without_being_shown(store: Store) -> None:
    with pytest.raises(InvalidRequest, match="token") as error:
        await pull("hf:org/repo/m.gguf", store=store, environment={"HF_TOKEN": "secret\r\nx: y"})
    assert "secret" not in error.value.message
