"""Tokens over a real socket: both dialects, what is refused and how, and long texts that hold up nobody."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.serving import ASK, Server, serving, serving_toy, until
from tests.api.strategies import conversations, json_values
from tests.conftest import Reference
from tripower.actors.preparation import INLINE_CHARACTERS
from tripower.api.http.tokens import answers, endpoints, work
from tripower.api.http.tokens.requests import APPLY_TEMPLATE, DETOKENIZE, TOKENIZE
from tripower.backends.gguf.reader import open_gguf
from tripower.backends.text.layer import GgufTextLayer
from tripower.backends.toy import ToyText
from tripower.runtime.engine import LoadedDelegate
from tripower.runtime.kernel import InvalidRequest

TOKENIZE_PATH, DETOKENIZE_PATH, TEMPLATE_PATH = "/tokenize", "/detokenize", "/apply-template"
COUNT_PATH, INFO_PATH = "/v1/chat/completions/input_tokens", "/tokenizer_info"
HI = [{"role": "user", "content": "Hi"}]
RENDERED = "user: Hi\nassistant: "
BODIES: dict[str, Any] = {
    TOKENIZE_PATH: {"content": "Hi"},
    DETOKENIZE_PATH: {"tokens": [72]},
    TEMPLATE_PATH: {"messages": HI},
    COUNT_PATH: {"messages": HI},
}
POSTS = list(BODIES)


# What is answered.


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"content": "Hi"}, {"tokens": [72, 105]}),
        ({"content": "Hi", "add_special": True, "parse_special": False}, {"tokens": [72, 105]}),
        ({"content": ""}, {"tokens": []}),
        (
            {"content": "aé", "with_pieces": True},
            {"tokens": [{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]},
        ),
        ({"prompt": "Hi"}, {"count": 2, "max_model_len": 512, "tokens": [72, 105], "token_strs": None}),
        (
            {"prompt": "Hi", "add_special_tokens": False, "return_token_strs": True},
            {"count": 2, "max_model_len": 512, "tokens": [72, 105], "token_strs": ["H", "i"]},
        ),
        (
            {"messages": HI},
            {"count": len(RENDERED), "max_model_len": 512, "tokens": list(RENDERED.encode()), "token_strs": None},
        ),
        ({"content": "a\0b"}, {"tokens": [97, 0, 98]}),
        ({"content": None, "prompt": "Hi", "with_pieces": None}, {"count": 2, "max_model_len": 512, "tokens": [72, 105], "token_strs": None}),
    ],
)  # fmt: skip
async def test_both_dialects_are_spoken(body: dict[str, Any], expected: dict[str, Any]) -> None:
    async with serving() as server:
        answer = await server.ask(TOKENIZE_PATH, body)
        assert (answer.status, answer.json) == (200, expected)
        assert (await server.ask(TOKENIZE_PATH, body | {"model": "fake"})).json == expected
    assert "x-tripower-ignored" not in answer.headers


@pytest.mark.parametrize(
    ("tokens", "text"), [([72, 105], "Hi"), ([], ""), ([195, 169], "é"), ([195], "\N{REPLACEMENT CHARACTER}"), ([72, 256], "H<end>")]
)  # fmt: skip
async def test_tokens_become_text_under_both_names(tokens: list[int], text: str) -> None:
    async with serving() as server:
        assert (await server.ask(DETOKENIZE_PATH, {"tokens": tokens})).json == {"content": text, "prompt": text}


async def test_a_conversation_becomes_the_text_of_its_template() -> None:
    async with serving() as server:
        assert (await server.ask(TEMPLATE_PATH, {"messages": HI})).json == {"prompt": RENDERED}
        parts = [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}]
        assert (await server.ask(TEMPLATE_PATH, {"messages": parts})).json == {"prompt": RENDERED}


async def test_the_count_of_a_request_is_what_its_answer_will_say() -> None:
    async with serving_toy() as server:
        request = ASK | {"model": "toy", "max_tokens": 3, "temperature": 0}
        counted = (await server.ask(COUNT_PATH, request)).json
        usage = (await server.ask("/v1/chat/completions", request)).json["usage"]
    assert counted == {"input_tokens": usage["prompt_tokens"], "object": "response.input_tokens"}


async def test_the_tokenizer_tells_what_remote_clients_ask() -> None:
    async with serving() as server:
        answer = await server.ask(INFO_PATH)
    assert answer.json == {
        "tokenizer_class": "tripower", "model": "fake", "vocab_size": 257, "model_max_length": 512, "bos_token": None,
        "eos_token": "<end>", "unk_token": None, "pad_token": None, "chat_template": None, "eos_token_ids": [256],
    }  # fmt: skip


async def test_the_tokenizer_of_one_of_several_models_is_named_in_the_query() -> None:
    async with serving(models=("a", "org/b")) as server:
        assert (await server.ask(f"{INFO_PATH}?model=org%2Fb")).json["model"] == "org/b"
        assert (await server.ask(f"{INFO_PATH}?model=org/b&x=1")).json["model"] == "org/b"
        for query, status in (
            ("", 400),
            ("?model=", 400),
            ("?model=c", 404),
            ("?model=%00%ff", 404),
            ("?" + "&".join("ab") * 400, 400),
        ):
            answer = await server.ask(INFO_PATH + query)
            assert (answer.status, answer.error["param"]) == (status, "model")


# What is refused.


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TOKENIZE_PATH, {}, "prompt"),
        (TOKENIZE_PATH, {"content": None}, "prompt"),
        (TOKENIZE_PATH, {"content": 5}, "content"),
        (TOKENIZE_PATH, {"content": ["a"]}, "content"),
        (TOKENIZE_PATH, {"content": "a", "prompt": "b"}, "prompt"),
        (TOKENIZE_PATH, {"prompt": "a", "messages": HI}, "messages"),
        (TOKENIZE_PATH, {"prompt": "a", "with_pieces": True}, "with_pieces"),
        (TOKENIZE_PATH, {"messages": HI, "add_special": False}, "add_special"),
        (TOKENIZE_PATH, {"content": "a", "return_token_strs": True}, "return_token_strs"),
        (TOKENIZE_PATH, {"content": "a", "add_special": "yes"}, "add_special"),
        (TOKENIZE_PATH, {"content": "a", "parse_special": 1}, "parse_special"),
        (TOKENIZE_PATH, {"content": "a", "model": 5}, "model"),
        (TOKENIZE_PATH, {"messages": []}, "messages"),
        (TOKENIZE_PATH, {"messages": HI, "tools": [{"type": "function"}]}, "tools[0].function"),
        (TOKENIZE_PATH, {"messages": HI, "continue_final_message": True}, "continue_final_message"),
        (TOKENIZE_PATH, {"content": "a", "chat_template_kwargs": {"a": 1}}, "content"),
        (DETOKENIZE_PATH, {}, "tokens"),
        (DETOKENIZE_PATH, {"tokens": "72"}, "tokens"),
        (DETOKENIZE_PATH, {"tokens": [1, -1]}, "tokens[1]"),
        (DETOKENIZE_PATH, {"tokens": [1, 1.5]}, "tokens[1]"),
        (DETOKENIZE_PATH, {"tokens": [1, True]}, "tokens[1]"),
        (DETOKENIZE_PATH, {"tokens": [1, 2**31]}, "tokens[1]"),
        (DETOKENIZE_PATH, {"tokens": [1, 257]}, "tokens[1]"),
        (TEMPLATE_PATH, {}, "messages"),
        (TEMPLATE_PATH, {"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role"),
        (TEMPLATE_PATH, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content[0]"),
        (TEMPLATE_PATH, {"messages": HI, "chat_template": "x"}, "chat_template"),
        (COUNT_PATH, {"messages": [{"role": "user"}]}, "messages[0].content"),
        (COUNT_PATH, {"messages": HI, "temperature": "hot"}, "temperature"),
    ],
)  # fmt: skip
async def test_a_refusal_names_the_field(path: str, body: dict[str, Any], param: str) -> None:
    async with serving() as server:
        answer = await server.ask(path, body)
    assert (answer.status, answer.error["type"], answer.error["param"]) == (400, "invalid_request_error", param)
    assert len(answer.error["message"]) < 500


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"[" * 50_000, b'{"content": NaN}'])
@pytest.mark.parametrize("path", POSTS)
async def test_a_body_that_is_no_request_is_refused(path: str, body: bytes) -> None:
    async with serving() as server:
        assert (await server.ask(path, body)).status == 400


@pytest.mark.parametrize("path", [TOKENIZE_PATH, TEMPLATE_PATH, COUNT_PATH])
async def test_half_a_character_is_refused_by_name(path: str) -> None:
    body = json.dumps({"content": "\ud800"} if path == TOKENIZE_PATH else {"messages": [{"role": "user", "content": "\ud800"}]})
    async with serving() as server:
        answer = await server.ask(path, body.encode())
    assert (answer.status, answer.error["code"]) == (400, "invalid_unicode")
    assert answer.error["param"] in ("content", "messages[0].content")


@pytest.mark.parametrize("path", POSTS)
async def test_a_model_is_found_or_refused_by_name(path: str) -> None:
    async with serving(models=("a", "org/b")) as server:
        assert (await server.ask(path, BODIES[path] | {"model": "org/b"})).status == 200
        for name, status, code in (
            (None, 400, "invalid_value"),
            ("c", 404, "model_not_found"),
            ("a\0", 404, "model_not_found"),
        ):
            answer = await server.ask(path, BODIES[path] | {"model": name})
            assert (answer.status, answer.error["code"], answer.error["param"]) == (status, code, "model")


@pytest.mark.parametrize("path", POSTS)
async def test_unknown_fields_are_named_or_refused_when_strict(path: str) -> None:
    body = BODIES[path] | {"zzz": 1}
    async with serving() as server:
        answer = await server.ask(path, body)
        assert (answer.status, answer.headers["x-tripower-ignored"]) == (200, "zzz")
        strict = await server.ask(path, body, headers={"x-tripower-strict": "1"})
    assert (strict.status, strict.error["param"]) == (400, "zzz")


@pytest.mark.parametrize("path", [*POSTS, INFO_PATH])
async def test_a_model_whose_tokenizer_is_elsewhere_says_so(path: str) -> None:
    engine: Any = SimpleNamespace(info=SimpleNamespace(backend="proxy"))
    async with serving() as server:
        server.runtime.delegate = LoadedDelegate(engine)
        answer = await server.ask(path, BODIES.get(path))
    assert (answer.status, answer.error["code"], answer.error["type"]) == (501, "endpoint_not_supported", "not_supported_error")
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("path", [*POSTS, INFO_PATH])
async def test_a_server_that_drains_takes_no_more(path: str) -> None:
    async with serving() as server:
        server.runtime.draining = True
        answer = await server.ask(path, BODIES.get(path))
    assert (answer.status, answer.error["code"]) == (503, "draining")


def decoded(decoder: Any, ask: Any, body: Any) -> None:
    """Decode and translate; the only way out but success is a refusal."""
    data = json.dumps(body).encode()
    try:
        asked, _ = decoder.decode(data, strict=False)
        asked.check()
        ask(asked)
    except InvalidRequest as refusal:
        assert refusal.status == 400 and len(refusal.message) < 500


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from([(TOKENIZE, endpoints.tokenize), (DETOKENIZE, endpoints.detokenize), (APPLY_TEMPLATE, endpoints.apply_template)]),
    st.dictionaries(
        st.sampled_from(["content", "prompt", "messages", "tokens", "model", "add_special", "with_pieces", "parse_special", "zz"]),
        json_values | conversations,
    ),
)  # fmt: skip
def test_whatever_json_says_it_is_a_request_or_a_bad_request(kind: tuple[Any, Any], body: dict[str, Any]) -> None:
    decoded(*kind, body)


NASTY: list[Any] = [
    None, True, 0, -1, 1.5, 1e308, 2**64, "", "a", "\0", "\ud800", "\U0001f600" * 20_000, "<end>", [], [[]], [None], [0, "a"], [2**31], {}, {"a": {}},
    [{"role": "user", "content": []}], [{"role": "user", "content": [{"type": "text"}]}], [{"role": "\0", "content": "\0"}],
    json.loads("[" * 200 + "]" * 200),
]  # fmt: skip
FIELDS = [
    "model", "content", "prompt", "messages", "tokens", "add_special", "add_special_tokens", "with_pieces", "return_token_strs",
    "parse_special", "stop", "seed", "stream_options", "\0", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("path", [*POSTS, "/models/load", "/models/unload"])
async def test_whatever_is_in_whatever_place_the_answer_is_no_fault_of_the_server(path: str) -> None:
    usual = BODIES.get(path, {"model": "toy"})
    async with serving_toy() as server, server.client() as client:
        for field in FIELDS:
            for value in NASTY:
                answer = await client.ask(path, usual | {field: value})
                assert answer.status in (200, 400, 404), (field, value, answer.body)
                if answer.status != 200:
                    assert set(answer.error) == {"message", "type", "param", "code"} and answer.error["message"]
                    assert len(answer.body) < 3000
        assert (await client.ask("/health")).status == 200


# Long texts.

LONG = "a" * (INLINE_CHARACTERS + 1)


class HeldText(ToyText):
    """Tokenises long texts when it is told to."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.threads: list[int] = []

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        if len(text) > INLINE_CHARACTERS:
            self.threads.append(threading.get_ident())
            assert self.released.wait(30)
        return super().tokenize(text)


@pytest.fixture
def held() -> Iterator[HeldText]:
    text = HeldText()
    yield text
    text.released.set()


async def start_long(server: Server, nursery: trio.Nursery, statuses: list[int], **options: Any) -> None:
    async def ask() -> None:
        statuses.append((await server.ask(TOKENIZE_PATH, {"content": LONG}, **options)).status)

    nursery.start_soon(ask)


async def test_a_long_text_holds_up_nobody(held: HeldText) -> None:
    statuses: list[int] = []
    async with serving() as server, trio.open_nursery() as nursery:
        server.runtime.text = held
        await start_long(server, nursery, statuses)
        await until(lambda: len(held.threads) == 1)
        assert (await server.ask(TOKENIZE_PATH, {"content": "Hi"})).json == {"tokens": [72, 105]}
        assert (await server.ask("/v1/chat/completions", ASK)).status == 200
        assert statuses == [] and threading.get_ident() not in held.threads
        held.released.set()
    assert statuses == [200]


async def test_few_long_texts_are_worked_on_at_once_few_wait_and_the_rest_is_refused(
    held: HeldText, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "LONG_TEXTS_WAITING_MAX", 1)
    statuses: list[int] = []
    async with serving() as server, trio.open_nursery() as nursery:
        server.runtime.text = held
        for _ in range(work.LONG_TEXTS_AT_ONCE + 1):
            await start_long(server, nursery, statuses)
        await until(lambda: len(held.threads) == work.LONG_TEXTS_AT_ONCE)
        await until(lambda: server.statistics().active_requests == work.LONG_TEXTS_AT_ONCE + 1)
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        refused = await server.ask(TOKENIZE_PATH, {"content": LONG})
        assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (503, "queue_full", "1")
        held.released.set()
    assert statuses == [200] * 3


async def test_a_deadline_bounds_a_long_text(held: HeldText) -> None:
    async with serving() as server:
        server.runtime.text = held
        answer = await server.ask(TOKENIZE_PATH, {"content": LONG}, headers={"x-tripower-deadline-ms": "50"})
        held.released.set()
    assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")


async def test_a_client_that_leaves_waits_for_no_tokenizer(held: HeldText) -> None:
    async with serving() as server:
        server.runtime.text = held
        client = await server.open_client()
        await client.send_request(TOKENIZE_PATH, {"content": LONG})
        await until(lambda: len(held.threads) == 1)
        await client.stream.aclose()
        await server.wait_closed()
        assert server.statistics().active_requests == 0
        held.released.set()


@pytest.mark.parametrize(
    "path",
    [TOKENIZE_PATH, TEMPLATE_PATH, COUNT_PATH, DETOKENIZE_PATH, "/v1/responses/input_tokens", "/v1/messages/count_tokens"],
)
async def test_ten_megabytes_are_refused_with_the_field_and_the_cure(path: str) -> None:
    text = "a" * 10_000_000
    bodies: dict[str, tuple[Any, str]] = {
        TOKENIZE_PATH: ({"content": text}, "content"),
        DETOKENIZE_PATH: ({"tokens": [7] * 1_100_000}, "tokens"),
        "/v1/responses/input_tokens": ({"input": text}, "input"),
    }
    body, param = bodies.get(path, ({"messages": [{"role": "user", "content": text}]}, "messages"))
    async with serving() as server:
        answer = await server.ask(path, body)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "text_too_long", param)
    assert "send parts" in answer.error["message"] and len(answer.body) < 500


async def test_a_body_over_the_limit_is_not_even_read() -> None:
    async with serving(max_body_bytes=1 << 20) as server:
        answer = await server.ask(TOKENIZE_PATH, {"content": "a" * 2_000_000})
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


async def test_a_million_characters_are_tokenised_for_any_model() -> None:
    async with serving() as server:
        answer = await server.ask(TOKENIZE_PATH, {"prompt": "a" * endpoints.SIZE_MIN})
        assert answer.json["count"] == endpoints.SIZE_MIN


@pytest.mark.parametrize(("name", "flag"), [("content", "with_pieces"), ("prompt", "return_token_strs")])
async def test_tokens_are_spelled_out_for_shorter_texts_only(name: str, flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "SPELLED_MAX", 3)
    async with serving() as server:
        assert (await server.ask(TOKENIZE_PATH, {name: "abc", flag: True})).status == 200
        assert (await server.ask(TOKENIZE_PATH, {name: "abcd", flag: False})).status == 200
        answer = await server.ask(TOKENIZE_PATH, {name: "abcd", flag: True})
    assert (answer.status, answer.error["param"]) == (400, flag)


# A real tokenizer.


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> GgufTextLayer:
    with open_gguf(smollm2_path) as file:
        return GgufTextLayer(file)


TEXTS = [
    "Hello world",
    "  two  spaces\n\n\ttabs",
    "naïve 日本語 👩‍👩‍👧",
    "<|im_start|>user\nHi<|im_end|>",
    "x = 10**9; // 1,000",
    "a\0b",
    "",
]


async def test_ids_are_those_of_llamacpp_in_both_dialects(
    smollm2: GgufTextLayer, smollm2_path: Path, llamacpp: Reference
) -> None:
    asked = [{"text": text, "parse_special": special} for text in TEXTS for special in (True, False)]
    async with serving() as server:
        server.runtime.text, server.runtime.vocabulary_size = smollm2, len(smollm2.tokenizer.vocabulary)
        expected = await trio.to_thread.run_sync(llamacpp, "tokenize", smollm2_path, asked)
        for request, ids in zip(asked, expected, strict=True):
            for name in ("content", "prompt"):
                body = {name: request["text"], "parse_special": request["parse_special"]}
                assert (await server.ask(TOKENIZE_PATH, body)).json["tokens"] == ids
            back = (await server.ask(DETOKENIZE_PATH, {"tokens": ids})).json
            assert back == {"content": request["text"], "prompt": request["text"]}


async def test_a_remote_client_finds_ids_of_special_tokens_and_renders_the_template(smollm2: GgufTextLayer) -> None:
    """The steps of lm-eval's remote tokenizer."""
    async with serving() as server:
        server.runtime.text, server.runtime.vocabulary_size = smollm2, len(smollm2.tokenizer.vocabulary)
        info = (await server.ask(INFO_PATH)).json
        assert (info["eos_token"], info["eos_token_ids"]) == ("<|im_end|>", [0, 2, 4]) and "im_start" in info["chat_template"]
        body = {"prompt": info["eos_token"], "add_special_tokens": False}
        assert (await server.ask(TOKENIZE_PATH, body)).json["tokens"] == [2]
        prompt = (await server.ask(TEMPLATE_PATH, {"messages": HI})).json["prompt"]
        whole = (await server.ask(TOKENIZE_PATH, {"prompt": prompt, "add_special_tokens": False})).json
        chat = (await server.ask(TOKENIZE_PATH, {"messages": HI})).json
        assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
        assert whole["tokens"] == chat["tokens"]
        counted = await server.ask(COUNT_PATH, {"messages": HI})
        assert counted.json["input_tokens"] == chat["count"]
