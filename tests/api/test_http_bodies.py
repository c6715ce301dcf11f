"""Long bodies are read beside the loop, and none has more in it than can be read."""

from __future__ import annotations

import json
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from tests.api.auth.test_authentication import KEY, bearer, key_file
from tests.api.fake_runtime import HELLO
from tests.api.serving import serving
from tests.api.strategies import json_values
from tripower.api.http import bodies
from tripower.api.http.bodies import COST_MAX, INLINE_BYTES, LISTED_MAX, check_cost
from tripower.api.http.decoding import RequestDecoder
from tripower.api.http.fields import NAMES_MAX
from tripower.api.http.messages.requests import COUNT_TOKENS
from tripower.api.http.wire import CHAT
from tripower.runtime.kernel import InvalidRequest

HI = [{"role": "user", "content": "Hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/embeddings": {"model": "fake", "input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": HI},
    "/v1/responses": {"input": "Hi"},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/chat/completions/input_tokens": {"messages": HI},
    "/tokenize": {"content": "Hi"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": HI},
    "/models/load": {"model": "fake"},
}


@pytest.mark.parametrize("path", ROUTES)
async def test_only_a_long_body_is_read_in_a_worker(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    decode = RequestDecoder.decode

    def noting(self: Any, body: bytes, *, strict: bool) -> Any:
        threads.append(threading.get_ident())
        return decode(self, body, strict=strict)

    monkeypatch.setattr(RequestDecoder, "decode", noting)
    async with serving(HELLO, HELLO) as server:
        await server.ask(path, ROUTES[path])
        await server.ask(path, ROUTES[path] | {"unknown": "x" * INLINE_BYTES})
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [True, False]


LISTS = {
    "messages": ("/v1/chat/completions", {"messages": HI * (LISTED_MAX + 1)}, "messages"),
    "parts": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * (LISTED_MAX + 1)}]},
        "messages[0].content",
    ),
    "messages of blocks": ("/v1/messages", {"messages": HI * (LISTED_MAX + 1), "max_tokens": 1}, "messages"),
    "blocks": (
        "/v1/messages/count_tokens",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * (LISTED_MAX + 1)}]},
        "messages[0].content",
    ),
    "items": ("/v1/responses", {"input": HI * (LISTED_MAX + 1)}, "input"),
    "items counted": ("/v1/responses/input_tokens", {"input": HI * (LISTED_MAX + 1)}, "input"),
    "messages to tokenise": ("/tokenize", {"messages": HI * (LISTED_MAX + 1)}, "messages"),
    "ids": ("/v1/completions", {"prompt": [1] * (COST_MAX + 1)}, "prompt"),
    "fields": ("/v1/chat/completions", {"messages": HI, "more": {str(n): 1 for n in range(COST_MAX // 8)}}, "more"),
}


@pytest.mark.parametrize(("path", "body", "param"), LISTS.values(), ids=LISTS)
async def test_too_many_of_anything_are_refused_by_the_field(path: str, body: Any, param: str) -> None:
    async with serving() as server:
        answer = await server.ask(path, body)
    assert answer.status == 400 and len(answer.body) < 500
    assert answer.error["message"].startswith(param)


@settings(deadline=None, max_examples=60)
@given(json_values)
def test_what_is_in_texts_costs_nothing(value: Any) -> None:
    body = json.dumps({"field": value}, ensure_ascii=False).encode("utf-8", "replace")
    plain = json.loads(body)

    def texts_emptied(inner: Any) -> Any:
        if isinstance(inner, dict):
            return [texts_emptied(each) for each in inner.values()]
        return [texts_emptied(each) for each in inner] if isinstance(inner, list) else 0

    skeleton = json.dumps(texts_emptied(plain))
    names = _names(plain)
    texts = names + _texts(plain)
    expected = skeleton.count(",") + 8 * (skeleton.count("[") + names) + texts + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "COST_MAX", expected)
        assert bodies._cost_outside_texts(body) == (False, "")
        patch.setattr(bodies, "COST_MAX", expected - 1)
        assert bodies._cost_outside_texts(body)[0]


def _names(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_names, value.values()))
    return sum(map(_names, value)) if isinstance(value, list) else 0


def _texts(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, str) + sum(map(_texts, inner))


def test_a_long_text_full_of_commas_and_brackets_is_no_list() -> None:
    check_cost(json.dumps({"prompt": '[{",:\\"}]' * COST_MAX}).encode())


def test_the_fields_of_a_kind_are_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[type] = []
    fields = msgspec.structs.fields

    def noting(kind: Any) -> Any:
        looked.append(kind)
        return fields(kind)

    monkeypatch.setattr(msgspec.structs, "fields", noting)
    content = [{"type": "text", "text": "a"}] * 50
    body = json.dumps({"messages": [{"role": "user", "content": content}] * 20}).encode()
    COUNT_TOKENS.decode(body, strict=False)
    COUNT_TOKENS.decode(body, strict=False)
    assert len(looked) == len(set(looked)) <= 10


@pytest.mark.parametrize("decoder", [CHAT, COUNT_TOKENS])
def test_only_the_first_unknown_names_are_remembered_and_the_rest_is_still_checked(decoder: Any) -> None:
    unknown = {f"k{number}": 1 for number in range(5000)}
    body: dict[str, Any] = {"messages": HI} | unknown
    assert decoder.decode(json.dumps(body).encode(), strict=False)[1] == tuple(unknown)[:NAMES_MAX]
    refused = body | ({"best_of": 3} if decoder is CHAT else {"container": "c"})
    with pytest.raises(InvalidRequest):
        decoder.decode(json.dumps(refused).encode(), strict=False)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "Hello there"}),
        ("/detokenize", {"tokens": [72] * 11}),
        ("/v1/chat/completions/input_tokens", {"messages": [{"role": "user", "content": "Hello there"}]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hello there"}]}),
        ("/v1/responses/input_tokens", {"input": "Hello there"}),
    ],
)
async def test_tokens_looked_at_are_charged_like_those_of_a_prompt(path: str, body: Any, tmp_path: Any) -> None:
    limits = key_file(tmp_path, KEY, more="tokens_per_minute = 10")
    async with serving(auth=limits) as server:
        first = await server.ask(path, body, headers=bearer(KEY))
        second = await server.ask(path, body, headers=bearer(KEY))
    assert (first.status, second.status) == (200, 429)
    assert first.headers["x-ratelimit-remaining-tokens"] == "0"
