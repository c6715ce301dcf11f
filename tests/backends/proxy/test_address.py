"""Which addresses of remote models are taken, and what is said of the others."""

from __future__ import annotations

import pytest

from tripower.backends.proxy import Upstream, parse_upstream
from tripower.runtime.kernel import InvalidRequest


@pytest.mark.parametrize(
    ("text", "base", "model"),
    [
        ("proxy:https://host/v1#m", "https://host/v1", "m"),
        ("https://host/v1#org/m:7b", "https://host/v1", "org/m:7b"),
        ("https://host:8443/v1/", "https://host:8443/v1", ""),
        ("https://host", "https://host", ""),
        ("https://host/a%20b//c#m%20n", "https://host/a%20b/c", "m n"),
        ("HTTPS://HOST/v1", "https://host/v1", ""),
        ("http://127.0.0.1:1/v1#m", "http://127.0.0.1:1/v1", "m"),
        ("http://[::1]:1/v1", "http://[::1]:1/v1", ""),
        ("http://localhost/v1", "http://localhost/v1", ""),
    ],
)
def test_an_address_is_a_server_a_path_and_a_model(text: str, base: str, model: str) -> None:
    upstream = parse_upstream(text, allow_plain=False)
    assert (upstream.base, upstream.model) == (base, model)
    assert upstream.url("models") == base + "/models"


@pytest.mark.parametrize("text", ["https://host/v1#m", "http://[::1]:9/v1#a%20b/c:1", "https://host"])
def test_the_canonical_form_reads_back(text: str) -> None:
    upstream = parse_upstream(text, allow_plain=False)
    assert parse_upstream(upstream.text, allow_plain=False) == upstream


def test_plain_http_leaves_the_machine_only_where_that_is_allowed() -> None:
    with pytest.raises(InvalidRequest, match=r"proxy\.allow_plain"):
        parse_upstream("http://host/v1", allow_plain=False)
    assert parse_upstream("http://host/v1", allow_plain=True) == Upstream("http://host/v1", "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ftp://host/v1", "https://"),
        ("https:///v1", "a host"),
        ("host/v1", "https://"),
        ("https://user:secret@host/v1", "TRIPOWER_UPSTREAM_KEY"),
        ("https://host/v1?key=secret", "no query"),
        ("https://host/a/../b", "no dots"),
        ("https://host/a/%2e%2e/b", "no dots"),
        ("https://host/a%2fb", "escaped slashes"),
        ("https://host:port/v1", "malformed"),
        ("https://host/v1\r\nx: y", "characters"),
        ("https://host/a b", "characters"),
        ("https://host/\\a", "characters"),
        ("https://host/" + "a" * 5000, "too long"),
    ],
)
def test_other_addresses_are_refused_with_the_form_and_without_secrets(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        parse_upstream(text, allow_plain=True)
    assert caught.value.code == "invalid_model_reference"
    assert "proxy:https://HOST[:PORT]/v1#MODEL" in caught.value.message and "secret" not in caught.value.message
