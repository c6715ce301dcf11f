"""The official client, and raw bytes, against the real actors with the toy as their engine."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.serving import CHAT, COMPLETIONS, Server, serving_toy, until
from tests.api.strategies import field_names, json_values
from tripower.actors.runtime import toy_plan

MESSAGES: Any = [{"role": "user", "content": "Hi"}]


def async_client(server: Server, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", **options)


def use_sync_client(url: str) -> dict[str, Any]:
    """What the blocking client sees; runs in a thread."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        whole = client.chat.completions.create(
            model="toy", messages=MESSAGES, max_tokens=20, seed=1, extra_body={"ignore_eos": True}
        )
        stream = client.chat.completions.create(
            model="toy", messages=MESSAGES, max_tokens=20, seed=1, stream=True, extra_body={"ignore_eos": True}
        )
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        completion = client.completions.create(model="toy", prompt=[1, 2, 3], max_tokens=5)
        return {
            "whole": whole.choices[0].message.content,
            "streamed": streamed,
            "usage": whole.usage,
            "completion": completion.choices[0].text,
            "models": [model.id for model in client.models.list()],
            "model": client.models.retrieve("toy").id,
        }


async def test_the_official_client_chats_streams_completes_and_lists() -> None:
    async with serving_toy() as server:
        seen = await trio.to_thread.run_sync(use_sync_client, server.url)
    assert seen["whole"] == seen["streamed"]
    assert len(seen["whole"]) == 20
    assert seen["usage"].completion_tokens == 20
    assert 0 <= len(seen["completion"]) <= 5
    assert (seen["models"], seen["model"]) == (["toy"], "toy")


# The client stops reading at the end mark and leaves its own generators to the collector.
@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_the_official_client_runs_on_trio() -> None:
    async with serving_toy() as server, async_client(server) as client:
        options: Any = {"model": "toy", "messages": MESSAGES, "max_tokens": 30, "seed": 5}
        whole = await client.chat.completions.create(**options)
        stream = await client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        raw = await client.chat.completions.with_raw_response.create(**options, extra_headers={"x-request-id": "mine"})
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole.choices[0].message.content
    )
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert raw.headers["x-request-id"] == "mine"


@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_the_official_client_turns_each_refusal_into_its_class() -> None:
    async with serving_toy(toy_plan(members_max=1, waiting_max=0, source="toy:2000")) as server:
        client = async_client(server, max_retries=0)
        options: Any = {"messages": MESSAGES, "max_tokens": 4000, "extra_body": {"ignore_eos": True}}
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="none", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as long:
            await client.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=100_000)
        with pytest.raises(openai.BadRequestError) as unsupported:
            await client.chat.completions.create(model="toy", messages=MESSAGES, extra_body={"best_of": 2})
        running = await client.chat.completions.create(model="toy", stream=True, **options)
        with pytest.raises(openai.InternalServerError) as full:
            await client.chat.completions.create(model="toy", **options)
        await running.close()
        await until(lambda: not server.actors.active())
        with pytest.raises(openai.InternalServerError) as late:
            await client.chat.completions.create(model="toy", extra_headers={"x-tripower-deadline-ms": "60"}, **options)
        await client.close()
    assert missing.value.code == "model_not_found"
    assert long.value.code == "context_length_exceeded"  # BB-098
    assert unsupported.value.param == "best_of"
    assert (full.value.status_code, full.value.code) == (503, "queue_full")
    assert int(full.value.response.headers["retry-after"]) >= 1
    assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")


async def test_a_seat_is_free_again_when_its_client_has_left() -> None:  # BB-001
    async with serving_toy(toy_plan(members_max=1, waiting_max=0, source="toy:2000")) as server:
        body = {"model": "toy", "messages": MESSAGES, "max_tokens": 4000, "ignore_eos": True}
        for stream in (True, False, True, False):
            client = await server.open_client()
            await client.send_request(CHAT, body | {"stream": stream})
            await until(lambda: server.actors.active() == 1)
            await client.stream.aclose()
            await until(lambda: not server.actors.active())
        assert (await server.ask(CHAT, body | {"max_tokens": 1})).status == 200


async def test_streams_do_not_cut_each_other_short() -> None:  # BB-106
    bodies = [{"model": "toy", "messages": MESSAGES, "max_tokens": 50, "seed": seed, "ignore_eos": True} for seed in range(12)]
    texts: dict[int, str] = {}

    async def stream(body: dict[str, Any]) -> None:
        texts[body["seed"]] = (await server.ask(CHAT, body | {"stream": True})).text

    async with serving_toy(toy_plan(members_max=4)) as server:
        async with trio.open_nursery() as nursery:
            for body in bodies:
                nursery.start_soon(stream, body)
        for body in bodies:
            alone = await server.ask(CHAT, body)
            assert alone.json["choices"][0]["message"]["content"] == texts[body["seed"]]


async def test_a_stop_string_never_leaks_and_streams_say_the_same() -> None:  # BB-013, BB-014
    body = {"model": "toy", "messages": MESSAGES, "max_tokens": 200, "seed": 3, "ignore_eos": True}
    async with serving_toy() as server:
        text = (await server.ask(CHAT, body)).json["choices"][0]["message"]["content"]
        for start in (0, 5, 40):
            stop = text[start : start + 4]
            whole = (await server.ask(CHAT, body | {"stop": ["never!", stop]})).json["choices"][0]
            stream = await server.ask(CHAT, body | {"stop": stop, "stream": True})
            assert whole["message"]["content"] == stream.text == text.partition(stop)[0]
            assert whole["finish_reason"] == "stop"
        missed = await server.ask(CHAT, body | {"stop": text[-3:] + "!", "stream": True})
        assert missed.text == text  # what was held back comes in full


async def test_limits_of_tokens_hold_under_either_name() -> None:  # BB-020
    async with serving_toy() as server:
        for limits, expected in (
            ({"max_completion_tokens": 5}, 5),
            ({"max_completion_tokens": 5, "max_tokens": 9}, 5),
            ({"max_tokens": 0}, 0),
        ):
            body = {"model": "toy", "messages": MESSAGES, "ignore_eos": True} | limits
            answer = (await server.ask(CHAT, body)).json
            assert answer["usage"]["completion_tokens"] == expected
            assert answer["choices"][0]["finish_reason"] == "length"


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.dictionaries(field_names, json_values, max_size=6), min_size=1, max_size=8), st.booleans())
async def test_no_json_whatever_is_an_internal_error(bodies: list[dict[str, Any]], plausible: bool) -> None:
    async with serving_toy() as server, server.client() as client:
        for fields in bodies:
            body = fields | ({"messages": MESSAGES, "prompt": "p", "max_tokens": 3} if plausible else {})
            for path in (CHAT, COMPLETIONS):
                answer = await client.ask(path, json.dumps(body).encode())
                assert answer.status in (200, 400, 404)
                if answer.status != 200:
                    assert set(answer.error) == {"message", "type", "param", "code"}
