"""Several answers to one request, over the toy: each complete, all of them one."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.api.fake_runtime import HELLO, PROMPT_TOKENS, Script, failed, finished, tokens
from tests.api.serving import ASK, CHAT, COMPLETIONS, serving, serving_toy, until
from tripower.actors.dialogue import PromptProgress
from tripower.actors.queueing import QueueStatistics
from tripower.actors.runtime import Runtime, toy_plan

SEEDED = {"model": "toy", "prompt": "abc", "seed": 7, "max_tokens": 12, "ignore_eos": True}
TALK = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], "seed": 7, "max_tokens": 12, "ignore_eos": True}


def queue_of(runtime: Runtime) -> QueueStatistics:
    (found,) = [actor.details for actor in runtime.statistics() if isinstance(actor.details, QueueStatistics)]
    return found


def texts_of(events: list[Any]) -> dict[int, str]:
    """The text of each choice of a stream of completions."""
    texts: dict[int, str] = {}
    for event in events[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


async def test_choices_draw_by_themselves_and_each_is_complete() -> None:  # BB-019
    async with serving_toy() as server:
        body = (await server.ask(COMPLETIONS, SEEDED | {"n": 3})).json
        alone = (await server.ask(COMPLETIONS, SEEDED)).json
        again = (await server.ask(COMPLETIONS, SEEDED | {"n": 3})).json
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["length"] * 3
    texts = [choice["text"] for choice in body["choices"]]
    assert len(set(texts)) == 3 and texts[0] == alone["choices"][0]["text"]
    assert texts == [choice["text"] for choice in again["choices"]]
    assert body["usage"] == alone["usage"] | {"completion_tokens": 36, "total_tokens": 39}


async def test_a_stream_of_several_choices_says_the_same_and_ends_each_and_then_all() -> None:  # BB-019
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with serving_toy() as server:
        whole = (await server.ask(COMPLETIONS, SEEDED | {"n": 3})).json
        events = (await server.ask(COMPLETIONS, SEEDED | {"n": 3} | options)).events
        talk = (await server.ask(CHAT, TALK | {"n": 2} | options)).events
    assert texts_of(events) == {choice["index"]: choice["text"] for choice in whole["choices"]}
    ends = [choice["index"] for event in events[:-1] for choice in event["choices"] if choice["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    *chunks, usage, done = events
    assert done == "data: [DONE]" and usage["choices"] == [] and usage["usage"] == whole["usage"]
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    assert len(chunks) == 36 + 3  # one event a token, and one end a choice
    roles = [event["choices"][0] for event in talk[:2]]
    assert [(choice["index"], choice["delta"]["role"]) for choice in roles] == [(0, "assistant"), (1, "assistant")]


async def test_a_list_of_prompts_has_the_answers_of_the_prompts_alone() -> None:
    async with serving_toy() as server:
        body = (await server.ask(COMPLETIONS, SEEDED | {"prompt": ["abc", "zz"], "n": 2})).json
        tokens_body = (await server.ask(COMPLETIONS, SEEDED | {"prompt": [[97, 98, 99], [122, 122]], "n": 2})).json
        alone = [(await server.ask(COMPLETIONS, SEEDED | {"prompt": each, "n": 2})).json for each in ("abc", "zz")]
    expected = [choice["text"] for answer in alone for choice in answer["choices"]]
    assert [choice["text"] for choice in body["choices"]] == expected
    assert [choice["text"] for choice in tokens_body["choices"]] == expected
    assert body["usage"]["prompt_tokens"] == 5 and body["usage"]["completion_tokens"] == 48


@pytest.mark.parametrize("stream", [False, True])
async def test_all_choices_stop_together_when_the_client_leaves(stream: bool) -> None:  # BB-002
    async with serving_toy() as server:
        for _ in range(5):
            client = await server.open_client()
            await client.send_request(COMPLETIONS, SEEDED | {"n": 3, "max_tokens": 8000, "stream": stream})
            if stream:
                await client.read_head()
            await until(lambda: queue_of(server.actors).live == 3)
            await client.stream.aclose()
            await until(lambda: queue_of(server.actors).live == 0)
        await until(lambda: not queue_of(server.actors).batch.members)
        figures = queue_of(server.actors)
    assert figures.cancelled == 15 and figures.arrivals == 15
    assert server.actors.active() == 0


async def test_a_request_without_place_for_all_its_choices_is_refused_and_holds_none() -> None:
    refused = Script(refusal=trio.BrokenResourceError())  # type: ignore[arg-type]
    async with serving(HELLO, refused) as server:
        answer = await server.ask(CHAT, ASK | {"n": 2})
        await until(lambda: not server.runtime.running)
        assert answer.status == 500
        assert len(server.runtime.ended) == 1


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"n": 4}, "n"),
        ({"prompt": ["a"] * 4}, "prompt"),
        ({"prompt": ["a", "b"], "n": 2}, "n"),
        ({"n": 4, "stream": True}, "n"),
    ],
)
async def test_more_choices_than_there_will_ever_be_places_for_is_a_fault_of_the_request(asked: Any, param: str) -> None:
    async with serving_toy(toy_plan(members_max=2, waiting_max=1)) as server:
        refused = await server.ask(COMPLETIONS, SEEDED | asked)
        assert (refused.status, refused.error["param"]) == (400, param)
        assert refused.error["message"].startswith(f"{param}: 4 answers are more than the 3 ")
        assert (await server.ask(COMPLETIONS, SEEDED | {"n": 3})).status == 200
        figures = queue_of(server.actors)
    assert (figures.live, figures.refused) == (0, 0)


@pytest.mark.parametrize(
    "fields", [{}, {"stream": True}, {"stop": "e"}, {"max_tokens": 0}, {"max_tokens": 1, "logprobs": 1, "echo": True}]
)
async def test_lists_of_prompts_one_after_the_other_always_find_their_places(fields: Any) -> None:  # as lm-eval sends them
    asked = SEEDED | {"prompt": [f"Prompt {number}" for number in range(8)]} | fields
    async with serving_toy(toy_plan(members_max=8, waiting_max=0)) as server, server.client() as client:
        for number in range(25):
            answer = await client.ask(COMPLETIONS, asked | {"seed": number})
            assert answer.status == 200, answer.body
        assert queue_of(server.actors).refused == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_one_choice_that_fails_fails_the_request(stream: bool) -> None:
    async with serving(Script([tokens("a"), failed()]), Script([tokens("b"), 1000.0])) as server:
        answer = await server.ask(CHAT, ASK | {"n": 2, "stream": stream})
        assert not server.runtime.running
    error = answer.events[-2]["error"] if stream else answer.error
    assert error["code"] == "device_failed"


async def test_a_burst_of_several_choices_is_one_write() -> None:
    script = Script([0.01, tokens("a") + finished(generated=1)])
    async with serving(script) as server, server.client() as client:
        await client.send_request(CHAT, ASK | {"n": 3, "stream": True})
        await client.read_head()
        first = await client.read_chunk()
    assert first.count(b"data: ") >= 3


async def test_a_prompt_is_repeated_before_its_answer() -> None:
    async with serving_toy() as server:
        plain = (await server.ask(COMPLETIONS, SEEDED)).json["choices"][0]["text"]
        whole = (await server.ask(COMPLETIONS, SEEDED | {"echo": True})).json["choices"][0]["text"]
        ids = (await server.ask(COMPLETIONS, SEEDED | {"echo": True, "prompt": [97, 98, 99]})).json["choices"][0]["text"]
        only = (await server.ask(COMPLETIONS, SEEDED | {"echo": True, "max_tokens": 0})).json
        events = (await server.ask(COMPLETIONS, SEEDED | {"echo": True, "stream": True, "n": 2})).events
    assert whole == ids == "abc" + plain
    assert only["choices"][0]["text"] == "abc" and only["usage"]["completion_tokens"] == 0
    streamed = texts_of(events)
    assert streamed[0] == whole and streamed[1].startswith("abc") and streamed[1] != whole


async def test_a_prompt_of_tokens_cannot_be_repeated_by_an_engine_that_keeps_its_tokenizer() -> None:
    async with serving(HELLO) as server:
        server.runtime.text = None  # type: ignore[assignment]
        answer = await server.ask(COMPLETIONS, {"model": "fake", "prompt": [1, 2], "echo": True})
        assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "echo", "unsupported_by_engine")
        text = await server.ask(COMPLETIONS, {"model": "fake", "prompt": "Hi", "echo": True})
    assert text.json["choices"][0]["text"] == "HiHello there"


async def test_stop_tokens_and_a_shortest_length_reach_the_queue() -> None:
    async with serving_toy() as server:
        text = (await server.ask(COMPLETIONS, SEEDED)).json["choices"][0]["text"]
        fields = SEEDED | {"stop_token_ids": [ord(text[4])]}
        first = text.index(text[4])
        stopped = (await server.ask(COMPLETIONS, fields)).json["choices"][0]
        later = (await server.ask(COMPLETIONS, fields | {"min_tokens": 8})).json
        refusals = [
            await server.ask(COMPLETIONS, SEEDED | wrong)
            for wrong in ({"stop_token_ids": [257]}, {"min_tokens": 13}, {"stop_token_ids": [-1]}, {"stop_token_ids": ["a"]})
        ]
    assert (stopped["text"], stopped["finish_reason"], stopped["stop_reason"]) == (text[:first], "stop", ord(text[4]))
    assert later["usage"]["completion_tokens"] >= 8
    params = [(refusal.status, refusal.error["param"]) for refusal in refusals]
    assert params == [(400, "stop_token_ids"), (400, "min_tokens"), (400, "stop_token_ids[0]"), (400, "stop_token_ids[0]")]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_stop_string_is_named_and_kept_where_that_is_asked_for(stream: bool) -> None:
    async with serving_toy() as server:
        text = (await server.ask(COMPLETIONS, SEEDED)).json["choices"][0]["text"]
        stop = text[4:6]
        asked = SEEDED | {"stop": stop, "stream": stream}
        cut, kept = [await server.ask(COMPLETIONS, asked | {"include_stop_str_in_output": keep}) for keep in (False, True)]
    before = text[: text.index(stop)]
    if stream:
        assert texts_of(cut.events) == {0: before} and texts_of(kept.events) == {0: before + stop}
        assert cut.events[-2]["choices"][0]["stop_reason"] == stop
    else:
        assert cut.json["choices"][0]["text"] == before and cut.json["choices"][0]["stop_reason"] == stop
        assert kept.json["choices"][0]["text"] == before + stop


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({}, {}, 0),
        ({"x-tripower-priority": "5"}, {}, 5),
        ({"x-vllm-priority": "5"}, {}, -5),
        ({"x-tripower-priority": "5"}, {"priority": -3}, -3),
        ({"x-tripower-priority": "-100"}, {}, -100),
    ],
)
async def test_a_priority_comes_from_the_body_or_a_header(headers: dict[str, str], body: Any, expected: int) -> None:
    async with serving(HELLO) as server:
        assert (await server.ask(CHAT, ASK | body, headers=headers)).status == 200
        assert server.runtime.requests[0].priority == expected


@pytest.mark.parametrize(("path", "body"), [("/v1/responses", {"input": "Hi"}), ("/v1/messages", {"max_tokens": 3} | ASK)])
async def test_dialects_without_a_field_for_it_have_the_header(path: str, body: Any) -> None:
    async with serving(HELLO) as server:
        assert (await server.ask(path, {"model": "fake"} | body, headers={"x-tripower-priority": "7"})).status == 200
        assert server.runtime.requests[0].priority == 7
        assert (await server.ask(path, {"model": "fake"} | body, headers={"x-tripower-priority": "101"})).status == 400


@pytest.mark.parametrize("value", ["high", "101", "1.5", "", "9999999999"])
async def test_a_priority_that_is_none_is_refused_by_its_header(value: str) -> None:
    async with serving(HELLO) as server:
        answer = await server.ask(CHAT, ASK, headers={"x-tripower-priority": value})
    assert (answer.status, answer.error["param"]) == (400, "x-tripower-priority")


async def test_a_whole_answer_and_a_stream_tell_how_long_they_took() -> None:
    async with serving(HELLO) as server:
        whole, stream = await server.ask(CHAT, ASK), await server.ask(CHAT, ASK | {"stream": True})
    assert whole.headers["server-timing"] == "queue;dur=500.0, prefill;dur=250.0, decode;dur=2000.0"
    assert whole.headers["openai-processing-ms"].isdigit() and stream.headers["openai-processing-ms"].isdigit()
    assert stream.headers["server-timing"].startswith("queue;dur=500.0, prefill;dur=")
    assert whole.json["usage"]["prompt_tokens"] == PROMPT_TOKENS


async def test_progress_of_the_prompt_comes_before_the_first_token_where_it_was_asked_for() -> None:
    told = [PromptProgress(total=9, cached=0, processed=4, seconds=0.25), PromptProgress(9, 0, 9, 0.5)]
    script = Script([told[:1], 0.001, told[1:] + tokens("a"), finished(generated=1)])
    async with serving(script) as server:
        *chunks, _ = (await server.ask(CHAT, ASK | {"stream": True, "return_progress": True})).events
        await server.ask(CHAT, ASK | {"return_progress": True})
        assert [request.progress for request in server.runtime.requests] == [True, False]
    assert "role" in chunks[0]["choices"][0]["delta"]
    assert [chunk["prompt_progress"] for chunk in chunks[1:3]] == [
        {"total": 9, "cache": 0, "processed": 4, "time_ms": 250.0},
        {"total": 9, "cache": 0, "processed": 9, "time_ms": 500.0},
    ]
    assert chunks[1]["choices"] == [] and chunks[3]["choices"][0]["delta"] == {"content": "a"}


async def test_usage_so_far_counts_the_tokens_of_all_choices() -> None:
    options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    async with serving_toy() as server:
        *chunks, _ = (await server.ask(COMPLETIONS, SEEDED | {"n": 2, "max_tokens": 3} | options)).events
    told = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert told == sorted(told) and told[-1] == 6 and {1, 2, 3, 4, 5} <= set(told)
