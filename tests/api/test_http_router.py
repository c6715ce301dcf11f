"""Loading and unloading over a real socket, in llama-server's words."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.api.serving import ASK, serving, serving_toy, until
from tripower.actors.models import ModelSource
from tripower.actors.runtime import toy_plan

LOAD, UNLOAD, MODELS = "/models/load", "/models/unload", "/models"
TOY = {"model": "toy"}
CHAT = "/v1/chat/completions"
SHORT = ASK | TOY | {"max_tokens": 3, "temperature": 0}


def state(answer: Any) -> str:
    (model,) = answer.json["data"]
    return str(model["status"]["value"])


async def test_a_model_is_unloaded_and_loaded_and_its_state_is_listed() -> None:
    async with serving_toy() as server:
        assert state(await server.ask(MODELS)) == "loaded"
        for _ in range(2):
            answer = await server.ask(UNLOAD, TOY)
            assert (answer.status, answer.json) == (200, {"success": True})
            assert state(await server.ask(MODELS)) == "unloaded"
        for _ in range(2):
            assert (await server.ask(LOAD, TOY)).json == {"success": True}
            assert state(await server.ask("/v1/models")) == "loaded"


async def test_an_unloaded_model_is_loaded_again_for_whoever_asks_next() -> None:
    async with serving_toy() as server:
        first = (await server.ask(CHAT, SHORT)).json["choices"]
        await server.ask(UNLOAD, TOY)
        assert (await server.ask(CHAT, SHORT)).json["choices"] == first
        await server.ask(UNLOAD, TOY)
        assert (await server.ask("/tokenize", {"content": "Hi"})).json == {"tokens": [72, 105]}


async def test_a_stream_that_runs_comes_to_its_end_before_the_memory_is_freed() -> None:  # BB-097
    async with serving_toy() as server, trio.open_nursery() as nursery, server.client() as client:
        await client.send_request(CHAT, SHORT | {"stream": True, "max_tokens": 300, "ignore_eos": True})
        await client.read_head()
        statuses: list[int] = []

        async def unload() -> None:
            statuses.append((await server.ask(UNLOAD, TOY)).status)

        nursery.start_soon(unload)
        stream = b""
        while piece := await client.read_chunk():
            stream += piece
        assert stream.endswith(b"data: [DONE]\n\n") and b'"finish_reason":"length"' in stream and b'"error"' not in stream
        await until(lambda: statuses == [200])
        assert state(await server.ask(MODELS)) == "unloaded"


async def test_many_loads_and_unloads_at_once_are_all_answered() -> None:
    answers: list[tuple[str, int, str]] = []
    async with serving_toy() as server:

        async def ask(path: str) -> None:
            answer = await server.ask(path, TOY)
            answers.append((path, answer.status, answer.json.get("error", {}).get("code", "")))

        async with trio.open_nursery() as nursery:
            for path in (LOAD, UNLOAD) * 10:
                nursery.start_soon(ask, path)
        assert (await server.ask(CHAT, SHORT)).status == 200
    assert len(answers) == 20
    assert all(status == 200 for path, status, _ in answers if path == UNLOAD)
    assert {code for _, status, code in answers if status != 200} <= {"load_stopped"}


async def test_other_models_are_not_touched() -> None:
    sources = tuple(ModelSource(name=name, source="toy", backend="toy") for name in ("toy", "org/other:Q4"))
    async with serving_toy(toy_plan(sources=sources)) as server:
        assert (await server.ask(LOAD, {"model": "org/other:Q4"})).status == 200
        assert (await server.ask(UNLOAD, TOY)).status == 200
        states = {model["id"]: model["status"]["value"] for model in (await server.ask(MODELS)).json["data"]}
    assert states == {"toy": "unloaded", "org/other:Q4": "loaded"}


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "model"), ({"model": None}, 400, "model"), ({"model": 5}, 400, "model"), ({"model": ["toy"]}, 400, "model"),
        ({"model": "none"}, 404, "model"), ({"model": ""}, 404, "model"), ({"model": "a\0b"}, 404, "model"),
        ({"model": "../../etc/passwd"}, 404, "model"), ({"model": "x" * 1_000_000}, 404, "model"), ([], 400, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_a_model_that_is_none_is_refused_by_name(path: str, body: Any, status: int, param: str | None) -> None:
    async with serving_toy() as server:
        answer = await server.ask(path, body)
        assert (answer.status, answer.error["param"]) == (status, param)
        assert len(answer.body) < 2000
        assert state(await server.ask(MODELS)) == "loaded"


async def test_half_a_character_in_a_name_is_refused() -> None:
    async with serving_toy() as server:
        answer = await server.ask(UNLOAD, b'{"model": "\\ud800"}')
    assert (answer.status, answer.error["param"]) == (400, "model")


async def test_unknown_fields_are_named_and_refused_when_strict() -> None:
    async with serving() as server:
        answer = await server.ask(UNLOAD, {"model": "fake", "extra_args": []})
        assert (answer.status, answer.headers["x-tripower-ignored"]) == (200, "extra_args")
        assert (await server.ask(UNLOAD, {"model": "fake", "zz": 1}, headers={"x-tripower-strict": "1"})).status == 400
        assert server.runtime.unloaded == ["fake"]
