"""`POST /v1/embeddings` over a real socket: with an encoder whose vectors tell their row, and with MiniLM for the official client."""

from __future__ import annotations

import base64
import json
import shlex
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.actors.encoders import BEGIN, DIMENSIONS, END, TellingBackend, queue_of, telling, telling_plan
from tests.api.serving import PATIENCE, Answer, Server, configured, serving_toy, until
from tests.api.strategies import field_names, json_values
from tripower.actors.runtime import open_actors
from tripower.api.cli.serve_banner import curl_line
from tripower.api.embedding import open_runtime
from tripower.api.http import bind, start_api
from tripower.api.plan import find_source, make_plan
from tripower.runtime.configuration import Configuration
from tripower.runtime.engine import LoadSpecification, Progress
from tripower.runtime.engine.encoder import LoadedEncoder
from tripower.runtime.kernel import DeadlineExceeded, InvalidRequest
from tripower.runtime.store import Store

PATH = "/v1/embeddings"
ERROR = {"message", "type", "param", "code"}
ASK: dict[str, Any] = {"model": "vectors", "input": "ab"}


@asynccontextmanager
async def serving(**plan: Any) -> AsyncIterator[Server]:
    async with serving_toy(telling_plan(TellingBackend(), **plan)) as server:
        yield server


async def ask(server: Server, headers: dict[str, str] | None = None, **changes: Any) -> Answer:
    return await server.ask(PATH, ASK | changes, headers=headers)


class HeldBackend(TellingBackend):
    """Its encoders stop before their first row until they may go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedEncoder | None]:
        for loaded in super().load(specification, progress):
            if loaded is not None:
                self.engine.before_row = self.go.wait
            yield loaded


def row(text: str) -> list[int]:
    return [BEGIN, *text.encode(), END]


async def test_an_answer_has_openais_shape_and_the_inputs_order() -> None:
    async with serving() as server:
        answer = await ask(server, input=["abc", "d", [5, 6]])
    assert answer.status == 200
    body = answer.json
    assert (body["object"], body["model"], body["usage"]) == ("list", "vectors", {"prompt_tokens": 10, "total_tokens": 10})
    assert [(each["object"], each["index"]) for each in body["data"]] == [("embedding", index) for index in range(3)]
    expected = [telling(each) for each in (row("abc"), row("d"), [5, 6])]
    assert np.array_equal(np.array([each["embedding"] for each in body["data"]], np.float32), expected)


@pytest.mark.parametrize(
    ("given", "count"), [("ab", 1), (["ab"], 1), (["ab", "c"], 2), ([5, 6], 1), ([[5, 6], [7]], 2), ([[5], "a"], 2)]
)
async def test_every_form_of_input_is_taken_and_base64_is_the_same_as_numbers(given: Any, count: int) -> None:  # BB-059
    """Little-endian float32 of the true length: public report vllm #6744."""
    async with serving() as server:
        numbers = (await ask(server, input=given, encoding_format="float")).json["data"]
        texts = (await ask(server, input=given, encoding_format="base64")).json["data"]
    assert len(numbers) == len(texts) == count
    for number, text in zip(numbers, texts, strict=True):
        decoded = np.frombuffer(base64.b64decode(text["embedding"]), "<f4")
        assert decoded.shape == (DIMENSIONS,)
        assert np.array_equal(decoded, np.array(number["embedding"], np.float32))


async def test_dimensions_cut_and_give_unit_length_again() -> None:
    async with serving() as server:
        vector = np.array((await ask(server, dimensions=2)).json["data"][0]["embedding"], np.float32)
    whole = telling(row("ab"))[:2]
    assert np.allclose(vector, whole / np.linalg.norm(whole))


@pytest.mark.parametrize("given", ["x" * 20, ["x" * 20]])
async def test_too_long_an_input_is_refused_or_cut_as_asked(given: Any) -> None:  # BB-062
    """A text and a list of one alike."""
    async with serving() as server:
        for truncate in (None, False):
            refused = await ask(server, input=given, truncate=truncate)
            assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
            assert refused.error["param"] == ("input" if isinstance(given, str) else "input[0]")
        answers = [
            (await ask(server, input=given, **cut)).json
            for cut in ({"truncate": True}, {"truncate_prompt_tokens": -1}, {"truncate_prompt_tokens": 8})
        ]
        shorter = (await ask(server, input=given, truncate=True, truncate_prompt_tokens=4)).json
    assert answers[0] == answers[1] == answers[2]
    assert (answers[0]["usage"]["prompt_tokens"], shorter["usage"]["prompt_tokens"]) == (8, 4)


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"model": None}, "model", "invalid_value"),
        ({"model": 7}, "model", "invalid_value"),
        ({"input": None}, "input", "invalid_value"),
        ({"input": 7}, "input", "invalid_value"),
        ({"input": {"text": "a"}}, "input", "invalid_value"),
        ({"input": ""}, "input", "invalid_input"),
        ({"input": []}, "input", "invalid_input"),
        ({"input": ["a", ""]}, "input[1]", "invalid_input"),
        ({"input": [[]]}, "input[0]", "invalid_input"),
        ({"input": "a\0"}, "input", "invalid_input"),
        ({"input": ["a", None]}, "input[1]", "invalid_input"),
        ({"input": [["a"]]}, "input[0][0]", "invalid_input"),
        ({"input": [[[1]]]}, "input[0][0]", "invalid_input"),
        ({"input": [1, "a"]}, "input[1]", "invalid_input"),
        ({"input": ["a", 1]}, "input[1]", "invalid_input"),
        ({"input": [True]}, "input[0]", "invalid_input"),
        ({"input": [1.5]}, "input[0]", "invalid_input"),
        ({"input": [-1]}, "input[0]", "invalid_input"),
        ({"input": [1 << 40]}, "input[0]", "invalid_input"),
        ({"input": [999]}, "input", "invalid_input"),
        ({"input": ["a"] * 2049}, "input", "invalid_input"),
        ({"encoding_format": "int8"}, "encoding_format", "unsupported_encoding_format"),
        ({"encoding_format": 1}, "encoding_format", "invalid_value"),
        ({"dimensions": 0}, "dimensions", "unsupported_embedding_dimensions"),
        ({"dimensions": 5}, "dimensions", "unsupported_embedding_dimensions"),
        ({"dimensions": "4"}, "dimensions", "invalid_value"),
        ({"truncate": "END"}, "truncate", "invalid_value"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "invalid_value"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
        ({"truncate_prompt_tokens": 9}, "truncate_prompt_tokens", "invalid_value"),
        ({"truncate": False, "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "invalid_value"),
        ({"normalize": False}, "normalize", "unsupported_parameter"),
        ({"model": "toy"}, "model", "unsupported_by_model"),
    ],
)
async def test_one_400_names_the_field(changes: dict[str, Any], param: str, code: str) -> None:  # BB-061
    """Empty inputs are among them, and are answered promptly."""
    async with serving() as server:
        answer = await ask(server, **changes)
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, param, code)


async def test_model_and_input_must_be_there_and_the_model_must_exist() -> None:
    async with serving() as server, server.client() as client:
        for missing in ASK:
            answer = await client.ask(PATH, {name: value for name, value in ASK.items() if name != missing})
            assert (answer.status, answer.error["param"]) == (400, missing)
        assert (await client.ask(PATH, ASK | {"model": "none"})).status == 404


async def test_an_encoder_refuses_to_chat_and_to_complete_by_name() -> None:
    async with serving() as server, server.client() as client:
        chat = await client.ask("/v1/chat/completions", {"model": "vectors", "messages": [{"role": "user", "content": "Hi"}]})
        completion = await client.ask("/v1/completions", {"model": "vectors", "prompt": "Hi", "stream": True})
    for answer in (chat, completion):
        assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "model", "unsupported_by_model")


async def test_unknown_fields_are_named_or_refused() -> None:
    async with serving() as server:
        accepted = await ask(server, input_type="query", user="me")
        refused = await ask(server, {"x-tripower-strict": "1"}, input_type="query")
    assert (accepted.status, accepted.headers["x-tripower-ignored"]) == (200, "input_type")
    assert (refused.status, refused.error["param"]) == (400, "input_type")


async def test_a_client_that_leaves_frees_its_seat() -> None:
    held = HeldBackend()
    async with serving_toy(telling_plan(held)) as server:
        runtime = server.actors
        await runtime.load("vectors")
        async with server.client() as client:
            await client.send_request(PATH, ASK)
            await until(lambda: queue_of(runtime).live == 1)
        await until(lambda: queue_of(runtime).cancelled == 1)
        held.go.set()
        await until(lambda: not queue_of(runtime).step_running)
        assert queue_of(runtime).gate.active == 0


async def test_a_large_answer_is_written_beside_the_loop() -> None:
    async with serving() as server:
        await server.actors.load("vectors")
        body = (await ask(server, input=["abc"] * 2048)).json
    assert [each["index"] for each in body["data"]] == list(range(2048))


@given(
    st.dictionaries(st.sampled_from(["input", "model", "dimensions", "truncate", "encoding_format"]) | field_names, json_values)
)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
async def test_no_body_is_answered_with_500(changes: dict[str, Any]) -> None:
    async with serving() as server:
        answer = await server.ask(PATH, json.dumps(ASK | changes).encode())
        assert answer.status in (200, 400, 404)
        assert answer.json["object"] == "list" if answer.status == 200 else set(answer.error) == ERROR


# The real model.


@asynccontextmanager
async def serving_minilm(path: Path, store: Store) -> AsyncIterator[Server]:
    configuration = configured()
    plan = make_plan(Configuration(), [find_source(f"minilm={path}", store)])
    with trio.fail_after(PATIENCE * 3), bind(configuration.server) as bound:
        async with open_actors(plan) as runtime:
            await runtime.load("minilm")
            api = start_api(runtime, configuration, bound)
            yield Server(bound.url, bound.port, None, api, configuration, runtime)  # type: ignore[arg-type]
            await api.stop()


def use_client(url: str) -> dict[str, Any]:
    """What the blocking official client sees; runs in a thread."""
    texts = ["The cat sleeps.", "A kitten naps.", "Stocks fell sharply."]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        plain = client.embeddings.create(model="minilm", input=texts)
        numbers = client.embeddings.create(model="minilm", input=texts, encoding_format="float")
        short = client.embeddings.create(model="minilm", input=texts[0], dimensions=64)
        try:
            client.embeddings.create(model="minilm", input="word " * 1000)
        except openai.BadRequestError as error:
            code = error.code
        cut = client.embeddings.create(model="minilm", input="word " * 1000, extra_body={"truncate": True})
    return {
        "plain": [each.embedding for each in plain.data],
        "numbers": [each.embedding for each in numbers.data],
        "short": short.data[0].embedding,
        "code": code,
        "usage": (plain.usage.prompt_tokens, plain.usage.total_tokens, cut.usage.prompt_tokens),
    }


async def test_the_official_client_gets_minilms_vectors(minilm_path: Path, tmp_path: Path) -> None:  # BB-058, BB-059
    """The client's default is base64."""
    async with serving_minilm(minilm_path, Store(tmp_path)) as server:
        seen = await trio.to_thread.run_sync(use_client, server.url)
    vectors = np.array(seen["plain"], np.float32)
    assert vectors.shape == (3, 384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
    assert np.allclose(vectors, np.array(seen["numbers"], np.float32), atol=1e-6)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    assert len(seen["short"]) == 64
    assert np.isclose(np.linalg.norm(seen["short"]), 1, atol=1e-3)
    assert (seen["code"], seen["usage"][2]) == ("context_length_exceeded", 256)
    assert seen["usage"][0] == seen["usage"][1] > 15


async def test_a_program_embeds_in_process(minilm_path: Path, tmp_path: Path) -> None:
    async with open_runtime(models=[f"minilm={minilm_path}"], store=Store(tmp_path)) as runtime:
        inputs: list[str | list[int]] = ["red", [101, 2417, 102]]
        found = await runtime.embed("minilm", inputs)
        assert np.allclose(found.vectors[0], found.vectors[1], atol=1e-5)
        assert (found.vectors.shape, found.prompt_tokens) == ((2, 384), 6)
        cut = await runtime.embed("minilm", "word " * 1000, truncate=True, dimensions=8)
        assert (cut.vectors.shape, cut.prompt_tokens) == ((1, 8), 256)
        assert (await runtime.embed("minilm", "word " * 1000, truncate=16)).prompt_tokens == 16
        wrong: list[Any] = ["", [], ["a", ""], {"a": 1}, [1.5]]
        for refused in wrong:
            with pytest.raises(InvalidRequest):
                await runtime.embed("minilm", refused)
        with pytest.raises(DeadlineExceeded):
            await runtime.embed("minilm", ["word " * 200] * 64, timeout=0.001)
        with pytest.raises(InvalidRequest, match="number of seconds"):
            await runtime.embed("minilm", "a", timeout="soon")  # type: ignore[arg-type]
        (card,) = await runtime.models()
        assert (card.backend, card.context) == ("embedded", 256)


async def test_the_line_to_paste_asks_an_encoder_for_vectors() -> None:
    plan = telling_plan(TellingBackend())
    async with open_actors(plan) as runtime:
        line = curl_line("http://here", plan, {"vectors": await runtime.load("vectors")})
    assert line.startswith("curl http://here/v1/embeddings ")
    assert json.loads(shlex.split(line)[-1])["model"] == "vectors"
